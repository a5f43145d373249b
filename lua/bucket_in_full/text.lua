--[[
  What the text of a bucket's state holds, as a table of

    leases         `slot`, the latest slot; [0], the units leased in that slot; [1], those leased in the slot before;
                   nil where no unit is leased: bucket_in_full/leases.lua
    refunded       by how many microseconds refunds moved the front
    since          when that sum last started from 0
    above          the units above the level, which were charged under a quota with a larger capacity:
                   bucket_in_full/quotas.lua
    capacity       the capacity of the quota that the level is of; 0 where nothing is owed and no units are above
    owed           the units of the level that are owed: a debt
    part, period, units
                   refunds drained the bucket for `part` microseconds that never passed, at this rate; or nil
    real_from      the time of the level is before this, and no time passed in between: refunds drained the bucket for that
                   much longer; nil or earlier where they did not

  The text is `<slot>,<units>,<units>;<refunded>;<since>;<above>,<capacity>,<owed>;<part>,<period>,<units>`. Parts at its end
  may be missing, and the leases may be empty. "The bucket" in lua/README.md explains what it is for.
]]
-- uses: prelude drain
-- 2^45: above the capacity of every quota, and exact in muldiv(). 2^49 microseconds, 18 years: the sum of this, a time before
-- 2112 and the longest wait is below 2^53.
local MOST_UNITS, MAX_REFUNDED = 35184372088832, 562949953421312
-- 2^52, 142 years. What a much larger quota has left may take longer to drain than a number holds.
local LONGEST_WAIT = 4503599627370496

-- Returns what `text` holds, nil for nothing.
local function read_extra(text)
  local extra = { refunded = 0, since = 0, above = 0, capacity = 0, owed = 0 }
  if text then
    -- Eleven numbers of up to 16 digits.
    if #text > 186 then
      error('RATELIMIT-FOREIGN', 0)
    end
    -- One part after the other: a pattern whose separators are optional would try every way to split what does not match.
    local match, after = string.match, #text + 1
    local slot, latest, previous, first = match(text, '^(%d+),(%d+),(%d+)()')
    local refunded, second = match(text, '^;(%d+)()', first or 1)
    local since, third = match(text, '^;(%d+)()', second or after)
    local above, capacity, owed, fourth = match(text, '^;(%d+),(%d+),(%d+)()', third or after)
    local part, period, units, fifth = match(text, '^;(%d+),(%d+),(%d+)()', fourth or after)
    if (fifth or fourth or third or second or first) ~= after then
      error('RATELIMIT-FOREIGN', 0)
    end
    extra.refunded, extra.since = (refunded or 0) + 0, (since or 0) + 0
    extra.above, extra.capacity, extra.owed = (above or 0) + 0, (capacity or 0) + 0, (owed or 0) + 0
    extra.leases = slot and { [0] = latest + 0, previous + 0, slot = slot + 0 }
    local most =
      math.max(slot or 0, latest or 0, previous or 0, extra.above, extra.capacity, extra.owed, period or 0, units or 0)
    if most > MOST_UNITS or extra.refunded > MAX_REFUNDED or extra.since >= 2^53 then
      error('RATELIMIT-FOREIGN', 0)
    end
    if part then
      extra.part, extra.period, extra.units = part + 0, period + 0, units + 0
      if extra.part >= extra.period or extra.units == 0 then
        error('RATELIMIT-FOREIGN', 0)
      end
    end
  end
  return extra
end

-- Returns how many units of a level exceed a capacity, beside the leased units; none if negative.
local function excess_of(extra, level, capacity)
  local leases = extra.leases
  return math.min(level, level + (leases and leases[0] + leases[1] or 0) - capacity)
end

-- Returns the lifetime of a state that would otherwise matter for `lifetime`, the time to store, and the text.
local function write_extra(bucket, extra, lifetime, at, level)
  local leases, written = extra.leases, nil
  local part = math.max(0, math.min(extra.real_from or 0, now) - at)
  if leases then
    written = string.format('%d,%d,%d', leases.slot, leases[0], leases[1])
  end
  local since, above, debt = extra.since, extra.above, bucket.debt or 0
  local owed = 0
  if debt > 0 then
    owed = math.max(0, excess_of(extra, level - drained_in(bucket, now - at + bucket.wait), bucket.burst))
  end
  local has_capacity = above > 0 or part > 0 or owed > 0
  if extra.refunded > 0 or since > 0 or has_capacity then
    -- After the longest time that a charge can take to drain, no refund needs to know of the charge.
    lifetime = math.max(lifetime, drain_time(bucket, bucket.capacity + debt))
    written = written or ''
    written = written .. string.format(';%d', extra.refunded)
    if since > 0 or has_capacity then
      written = written .. string.format(';%d', since)
    end
    if has_capacity then
      lifetime = math.min(lifetime + drain_time(bucket, above), LONGEST_WAIT)
      written = written .. string.format(';%d,%d,%d', above, bucket.capacity, owed)
    end
    if part > 0 then
      written = written .. string.format(';%d,%d,%d', part, bucket.period, bucket.units)
    end
  end
  return lifetime, at + part, written
end
