--[[
  Day and night: at most `day` units in each hour from 06:00 to 22:00 UTC, and at most `night` units in each other hour.

  State     when the hour started; the units charged in it.
  Arguments the limit by day; the limit by night.
  Mark      when the hour of the charge started.

  `DayAndNight` in custom_algorithm.rs is the twin in Rust.
]]
local HOUR = 3600000000

local function policy(day, night)
  return { day = day, night = night }
end

-- Returns the start of this hour, the microseconds left in it, its limit, and its used units.
local function open(limits, time, count)
  local started = now - now % HOUR
  local hour = started / HOUR % 24
  local limit = hour >= 6 and hour < 22 and limits.day or limits.night
  return started, started + HOUR - now, limit, time == started and count or 0
end

local function decide(limits, cost, time, count)
  local started, left, limit, used = open(limits, time, count)
  local free = math.max(0, limit - used)
  if cost > free then
    -- A cost above this hour's limit may be within a later hour's.
    local retry = cost > math.max(limits.day, limits.night) and NEVER or left
    return retry, free, used > 0 and left or 0
  end
  used = used + cost
  -- Admitted: the units that remain, the reset, no delay, the mark, and the state with its lifetime.
  return 0, free - cost, used > 0 and left or 0, nil, started, left, started, used
end

local function refund(limits, units, made, mark, time, count)
  local started, _, _, used = open(limits, time, count)
  if used == 0 or made and mark ~= started then
    -- The charge no longer counts.
    return nil
  elseif used <= units then
    return REMOVE
  end
  return KEEP_TTL, started, used - units
end

return { policy = policy, decide = decide, refund = refund }
