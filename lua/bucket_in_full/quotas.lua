--[[
  One bucket under several quotas: the units above its level, and parts of units; see "Two quotas of a bucket" and "Refunds of
  a bucket" in lua/README.md.
]]
-- uses: prelude muldiv drain text

-- Returns the time and the level as a quota of this rate and capacity sees them: as many units drained in time that never
-- passed, and units above count under a larger capacity. A debt drains first.
local function fit(bucket, extra, at, level)
  local part, period = extra.part, extra.period
  if part then
    extra.real_from = at
    if period ~= bucket.period or extra.units ~= bucket.units then
      local whole, rest = muldiv(part, extra.units, period)
      level = math.max(0, level - whole)
      part = math.floor(muldiv(rest, bucket.period, period) / bucket.units)
    end
    at = math.max(0, at - part)
  end
  if level + extra.above > MOST_UNITS then
    error('RATELIMIT-FOREIGN', 0)
  end
  if extra.owed > 0 then
    local excess = excess_of(extra, level, extra.capacity) - drained_in(bucket, math.max(0, now - at))
    extra.owed = math.max(0, math.min(extra.owed, excess))
  end
  if bucket.capacity > extra.capacity then
    level, extra.above = level + extra.above, 0
  end
  return at, level
end

-- Cuts a level at the capacity and what is owed, beside `leased` units, and keeps the rest above it. Returns the level.
local function cut(bucket, extra, level, leased, owed)
  local all = level + extra.above
  if all > MOST_UNITS then
    error('RATELIMIT-FOREIGN', 0)
  end
  level = math.max(0, bucket.capacity + owed - leased)
  extra.above = all - level
  return level
end

-- Drains units that are above an empty level.
local function drain_above(extra, units)
  extra.above = math.max(0, extra.above - units)
end
