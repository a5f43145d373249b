--[[
  Day and night: at most `day` units in each hour from 06:00 to 22:00 UTC, and at most `night` units in each other hour.

  State     when the hour started; the units charged in it.
  Arguments the limit by day; the limit by night.
]]
local HOUR = 3600000000

local function decide(limits, cost, time, count)
  local started = now - now % HOUR
  local hour = started / HOUR % 24
  local by_day = hour >= 6 and hour < 22
  local limit = by_day and limits[1] or limits[2]

  local used = time == started and count or 0
  local left, free = started + HOUR - now, math.max(0, limit - used)
  if cost > free then
    -- Never -1: a cost above this hour's limit may be within a later hour's.
    return left, free, used > 0 and left or 0
  end
  used = used + cost
  -- Admitted: the units that remain, the reset, no delay, no mark, and the state with its lifetime.
  return 0, limit - used, used > 0 and left or 0, 0, 0, left, started, used
end

return { decide = decide }
