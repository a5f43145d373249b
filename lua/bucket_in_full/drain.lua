--[[
  How long a bucket drains. include/bucket.lua describes the table `bucket`.
]]
-- uses: muldiv

-- Returns the microseconds in which `level` units drain. `is_smooth` ignores the steps of a bucket that has them.
local function drain_time(bucket, level, is_smooth)
  if bucket.stepped and not is_smooth then
    return math.ceil(level / bucket.units) * bucket.period
  end
  local product, units = level * 1.0 * bucket.period, bucket.units
  if product < 2^53 then
    -- The usual case of muldiv(), without its call.
    local rest = product % units
    return (product - rest) / units + (rest > 0 and 1 or 0)
  end
  local time, rest = muldiv(level, bucket.period, units)
  return rest > 0 and time + 1 or time
end

-- Returns the units that drain in `elapsed` microseconds.
local function drained_in(bucket, elapsed)
  if bucket.stepped then
    return math.floor(elapsed / bucket.period) * bucket.units
  end
  return (muldiv(elapsed, bucket.units, bucket.period))
end
