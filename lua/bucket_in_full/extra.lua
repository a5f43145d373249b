--[[
  The leases and refunds of a bucket, and the units above its level: see "Leases of a bucket", "Refunds of a bucket" and
  "Two quotas of a bucket" in lua/README.md.

  The text is `<slot>,<units>,<units>;<refunded>;<since>;<above>,<capacity>;<part>,<period>,<units>`. Parts at its end may be
  missing, and the leases may be empty.
]]
-- uses: prelude muldiv drain

-- Returns what `text` holds, nil for nothing, as a table of

--   leases         `slot`, the latest slot; [0], the units leased in that slot; [1], those leased in the slot before;
--                  nil where no unit is leased
--   refunded       by how many microseconds refunds moved the front
--   since          when that sum last started from 0
--   above          the units above the level, which were charged under a quota with a larger capacity
--   capacity       the capacity of the quota that the level is of; 0 where no units are above
--   real_from      the time of the level is before this, and no time passed in between: refunds drained the bucket for that
--                  much longer; nil or earlier where they did not

-- and the functions below. Few keys have leases or refunds, so the functions are created only for those.
local function read_extra(bucket, text)
  -- The length of a slot in microseconds.
  local SLOT = 500000
  -- 2^45: above the capacity of every quota, and exact in muldiv(). 2^49: as in include/bucket_changes.lua.
  local MOST_UNITS, MAX_REFUNDED = 35184372088832, 562949953421312
  -- 2^52, 142 years. What a much larger quota has left may take longer to drain than a number holds.
  local LONGEST_WAIT = 4503599627370496
  local extra = { refunded = 0, since = 0, above = 0, capacity = 0 }
  if text then
    -- Ten numbers of up to 16 digits.
    if #text > 169 then
      error(FOREIGN, 0)
    end
    -- One part after the other: a pattern whose separators are optional would try every way to split what does not match.
    local match, after = string.match, #text + 1
    local slot, latest, previous, first = match(text, '^(%d+),(%d+),(%d+)()')
    local refunded, second = match(text, '^;(%d+)()', first or 1)
    local since, third = match(text, '^;(%d+)()', second or after)
    local above, capacity, fourth = match(text, '^;(%d+),(%d+)()', third or after)
    local part, period, units, fifth = match(text, '^;(%d+),(%d+),(%d+)()', fourth or after)
    if (fifth or fourth or third or second or first) ~= after then
      error(FOREIGN, 0)
    end
    extra.refunded, extra.since = (refunded or 0) + 0, (since or 0) + 0
    extra.above, extra.capacity = (above or 0) + 0, (capacity or 0) + 0
    extra.leases = slot and { [0] = latest + 0, previous + 0, slot = slot + 0 }
    local most = math.max(slot or 0, latest or 0, previous or 0, above or 0, capacity or 0, period or 0, units or 0)
    if most > MOST_UNITS or extra.refunded > MAX_REFUNDED or extra.since > 9007199254740991 then
      error(FOREIGN, 0)
    end
    if part then
      extra.part, extra.period, extra.units = part + 0, period + 0, units + 0
      if extra.part >= extra.period or extra.units == 0 then
        error(FOREIGN, 0)
      end
    end
  end

  -- Returns the units that drain in `elapsed` microseconds.
  function extra.drained_in(elapsed)
    if bucket.stepped then
      return floor(elapsed / bucket.period) * bucket.units
    end
    return (muldiv(elapsed, bucket.units, bucket.period))
  end

  -- Returns the time and the level as a quota of this rate and capacity sees them: as many units drained in time that never
  -- passed, and units above count under a larger capacity.
  function extra.fit(at, level)
    local part, period = extra.part, extra.period
    if part then
      extra.real_from = at
      if period ~= bucket.period or extra.units ~= bucket.units then
        local whole, rest = muldiv(part, extra.units, period)
        level = math.max(0, level - whole)
        part = floor(muldiv(rest, bucket.period, period) / bucket.units)
      end
      at = math.max(0, at - part)
    end
    if level + extra.above > MOST_UNITS then
      error(FOREIGN, 0)
    end
    if bucket.capacity > extra.capacity then
      level, extra.above = level + extra.above, 0
    end
    extra.capacity = bucket.capacity
    return at, level
  end

  -- Cuts a level at the capacity beside `leased` units, and keeps the rest above it. Returns the level.
  function extra.cut(level, leased)
    local all = level + extra.above
    if all > MOST_UNITS then
      error(FOREIGN, 0)
    end
    level = math.max(0, bucket.capacity - leased)
    extra.above, extra.capacity = all - level, bucket.capacity
    return level
  end

  -- Drains units that are above an empty level.
  function extra.drain_above(units)
    extra.above = math.max(0, extra.above - units)
  end

  -- Adds the units of every lease that ended by `moment` to the level, each at the time its lease ended. Returns the
  -- time of the level, the level, and the units that drained beyond it.
  local function end_by(leases, at, level, moment)
    local beyond = 0
    for age = 1, 0, -1 do
      local units, ended = leases[age], (leases.slot - age + 2) * SLOT
      if units > 0 and ended <= moment then
        local periods = floor(math.max(0, ended - at) / bucket.period)
        at = at + periods * bucket.period
        level = level - periods * bucket.units
        if ended >= at and level <= extra.drained_in(ended - at) then
          beyond = beyond + extra.drained_in(ended - at) - level
          at, level = ended, 0
        end
        level, leases[age] = level + units, 0
      end
    end
    return at, level, beyond
  end

  -- Ends the leases that are over. Returns the time of the level, the level, the number of leased units, and whether a
  -- denial must write this state.
  function extra.end_leases(at, level)
    local leases, stale = extra.leases, false
    if not leases then
      return at, level, 0, false
    end
    if leases.slot > floor(now / SLOT) + 1 then
      -- The clock stepped back. Let the leases last as long as the longest lease that starts now.
      leases.slot, stale = floor(now / SLOT) + 1, true
    end
    if at > now then
      at, stale = now, true
    end
    local beyond
    at, level, beyond = end_by(leases, at, level, now)
    extra.drain_above(beyond)
    local units = leases[0] + leases[1]
    if units == 0 then
      extra.leases = nil
    end
    return at, level, units, stale
  end

  -- Returns the microseconds until the level and the leased units are at most `room`, if no lease is returned early.
  function extra.wait_for_room(level, elapsed, room)
    local leases = extra.leases
    local at, moment = now - elapsed, now
    local rest = { [0] = leases[0], leases[1], slot = leases.slot }
    for age = 1, 0, -1 do
      -- The level can drain to 0. Where that is not enough, wait until a lease ends.
      if rest[age] > 0 and rest[0] + rest[1] > room then
        moment = (rest.slot - age + 2) * SLOT
        at, level = end_by(rest, at, level, moment)
      end
    end
    local excess = math.max(0, level + rest[0] + rest[1] - room)
    return math.min(moment - now + math.max(0, drain_time(bucket, excess) - (moment - at)), LONGEST_WAIT)
  end

  -- Leases `units` more. Returns how many microseconds the new lease lasts, and its name, which is its slot.
  function extra.add_lease(units)
    local leases, slot = extra.leases, floor(now / SLOT)
    if not leases then
      leases = { [0] = 0, 0, slot = slot }
    elseif leases.slot < slot then
      -- The leases of the slot before have ended.
      leases = { [0] = 0, leases[0], slot = slot }
    end
    leases[0] = leases[0] + units
    extra.leases = leases
    return (leases.slot + 2) * SLOT - now, leases.slot
  end

  -- Returns the lifetime of a state that would otherwise matter for `lifetime`, the time to store, and the text.
  function extra.write(lifetime, at)
    local leases, written = extra.leases, nil
    local part = math.max(0, math.min(extra.real_from or 0, now) - at)
    if leases then
      written = format('%d,%d,%d', leases.slot, leases[0], leases[1])
    end
    local since, above = extra.since, extra.above
    if extra.refunded > 0 or since > 0 or above > 0 or part > 0 then
      -- After the longest time that a charge can take to drain, no refund needs to know of the charge.
      lifetime = math.max(lifetime, drain_time(bucket, bucket.capacity))
      written = written or ''
      written = written .. format(';%d', extra.refunded)
      if since > 0 or above > 0 or part > 0 then
        written = written .. format(';%d', since)
      end
      if above > 0 or part > 0 then
        lifetime = math.min(lifetime + drain_time(bucket, above), LONGEST_WAIT)
        written = written .. format(';%d,%d', above, extra.capacity)
      end
      if part > 0 then
        written = written .. format(';%d,%d,%d', part, bucket.period, bucket.units)
      end
    end
    return lifetime, at + part, written
  end

  return extra
end
