--[[
  By day and by night: at most `day` units in each hour from 06:00 to 22:00 UTC, and at most `night` in
  each of the others.

  State     one number: the time the hour began, and the units charged in it.
  Arguments ARGV[arg], the limit by day; ARGV[arg + 1], the limit by night.
]]
local HOUR = 3600000000

return function(key, cost, arg)
  local began = now - now % HOUR
  local hour = began / HOUR % 24
  local by_day = hour >= 6 and hour < 22
  local limit = tonumber(by_day and ARGV[arg] or ARGV[arg + 1])

  local at, used = read_count(key)
  if at ~= began then
    used = 0
  end
  local left = began + HOUR - now
  local free = math.max(0, limit - used)
  return {
    -- What is too much for this hour may be little enough for a later one, so it is never "never".
    retry = cost <= free and 0 or left,
    remaining = free,
    reset = used > 0 and left or 0,
    remaining_after = free - cost,
    reset_after = left,
    charge = function()
      write_count(key, began, used + cost, left)
    end,
  }
end
