--[[
  Day and night: at most `day` units in each hour from 06:00 to 22:00 UTC, and at most `night` units in each other hour.

  State     a time, when the hour started, and a count, the units charged in it.
  Arguments the limit by day; the limit by night.
  Commands  GET; SET where units are charged.
]]
-- uses: prelude count
local HOUR = 3600000000

return function(key, cost, arg)
  local started = now - now % HOUR
  local hour = started / HOUR % 24
  local by_day = hour >= 6 and hour < 22
  local limit = tonumber(by_day and ARGV[arg] or ARGV[arg + 1])

  local at, used = read_count(key)
  if at ~= started then
    used = 0
  end
  local left = started + HOUR - now
  local free = math.max(0, limit - used)
  return {
    -- Never -1: a cost above this hour's limit may be within a later hour's.
    retry = cost <= free and 0 or left,
    remaining = free,
    reset = used > 0 and left or 0,
    remaining_after = free - cost,
    reset_after = left,
    charge = function()
      write_count(key, started, used + cost, left)
    end,
  }
end
