--[[
  The leases and refunds of a bucket, and the units above its level: see "Leases of a bucket", "Refunds of a bucket" and
  "Two quotas of a bucket" in lua/README.md.

  The text is `<slot>,<units>,<units>;<refunded>;<since>;<above>,<capacity>`. Parts at its end may be missing, and the
  leases may be empty.
]]
-- uses: prelude muldiv drain

-- Returns what `text` holds, nil for nothing, as a table of

--   leases         `slot`, the latest slot; [0], the units leased in that slot; [1], those leased in the slot before;
--                  nil where no unit is leased
--   refunded       by how many microseconds refunds moved the front
--   since          when that sum last started from 0
--   above          the units above the level, which were charged under a quota with a larger capacity
--   capacity       the capacity of the quota that the level is of; 0 where no units are above

-- and the functions below. Few keys have leases or refunds, so the functions are created only for those.
local function read_extra(bucket, text)
  -- The length of a slot in microseconds.
  local SLOT = 500000
  local extra = { refunded = 0, since = 0, above = 0, capacity = 0 }
  if text then
    local leased, refunded, since, rest = string.match(text, '^([%d,]*);?(%d*);?(%d*);?([%d,]*)$')
    if not leased then
      error(FOREIGN, 0)
    end
    extra.refunded, extra.since = tonumber(refunded) or 0, tonumber(since) or 0
    if rest ~= '' then
      local above, capacity = string.match(rest, '^(%d+),(%d+)$')
      if not above then
        error(FOREIGN, 0)
      end
      extra.above, extra.capacity = tonumber(above), tonumber(capacity)
    end
    if leased ~= '' then
      local slot, latest, previous = string.match(leased, '^(%d+),(%d+),(%d+)$')
      if not slot then
        error(FOREIGN, 0)
      end
      extra.leases = { [0] = tonumber(latest), tonumber(previous), slot = tonumber(slot) }
    end
  end

  -- Returns the units that drain in `elapsed` microseconds.
  function extra.drained_in(elapsed)
    if bucket.stepped then
      return floor(elapsed / bucket.period) * bucket.units
    end
    return (muldiv(elapsed, bucket.units, bucket.period))
  end

  -- Returns the level as a quota of this capacity sees it: units above count under a larger one.
  function extra.fit(level)
    if bucket.capacity > extra.capacity then
      level, extra.above = level + extra.above, 0
    end
    extra.capacity = bucket.capacity
    return level
  end

  -- Cuts a level at the capacity beside `leased` units, and keeps the rest above it. Returns the level.
  function extra.cut(level, leased)
    local all = level + extra.above
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
    return moment - now + math.max(0, drain_time(bucket, excess) - (moment - at))
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

  -- Returns the lifetime of a state that would otherwise matter for `lifetime`, and the text.
  function extra.write(lifetime)
    local leases, written = extra.leases, nil
    if leases then
      written = format('%d,%d,%d', leases.slot, leases[0], leases[1])
    end
    local since, above = extra.since, extra.above
    if extra.refunded > 0 or since > 0 or above > 0 then
      -- After the longest time that a charge can take to drain, no refund needs to know of the charge.
      lifetime = math.max(lifetime, drain_time(bucket, bucket.capacity))
      written = written or ''
      written = written .. format(';%d', extra.refunded)
      if since > 0 or above > 0 then
        written = written .. format(';%d', since)
      end
      if above > 0 then
        lifetime = lifetime + drain_time(bucket, above)
        written = written .. format(';%d,%d', above, extra.capacity)
      end
    end
    return lifetime, written
  end

  return extra
end
