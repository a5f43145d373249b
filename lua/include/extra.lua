--[[
  The leases and refunds of a bucket: see "Leases of a bucket" and "Refunds of a bucket" in lua/README.md.

  The text is `<slot>,<units>,<units>;<refunded>;<since>`. Parts at its end may be missing, and the leases may be empty.
]]
-- uses: prelude muldiv drain

-- Returns the leases and refunds in `text`, nil for none, as a table of

--   leases         `slot`, the latest slot; [0], the units leased in that slot; [1], those leased in the slot before;
--                  nil where no unit is leased
--   refunded       by how many microseconds refunds moved the front
--   since          when that sum last started from 0

-- and the functions below. Few keys have leases or refunds, so the functions are created only for those.
local function read_extra(bucket, text)
  -- The length of a slot in microseconds.
  local SLOT = 500000
  local extra = { refunded = 0, since = 0 }
  if text then
    local leased, refunded, since = string.match(text, '^([%d,]*);?(%d*);?(%d*)$')
    if not leased then
      error(FOREIGN, 0)
    end
    extra.refunded, extra.since = tonumber(refunded) or 0, tonumber(since) or 0
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

  -- Adds the units of every lease that ended by `moment` to the level, each at the time its lease ended. Returns the
  -- time of the level and the level.
  local function end_by(leases, at, level, moment)
    for age = 1, 0, -1 do
      local units, ended = leases[age], (leases.slot - age + 2) * SLOT
      if units > 0 and ended <= moment then
        local periods = floor(math.max(0, ended - at) / bucket.period)
        at = at + periods * bucket.period
        level = level - periods * bucket.units
        if ended >= at and level <= extra.drained_in(ended - at) then
          at, level = ended, 0
        end
        level = math.min(level + units, bucket.capacity + extra.drained_in(math.max(0, ended - at)))
        leases[age] = 0
      end
    end
    return at, level
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
    at, level = end_by(leases, at, level, now)
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
    if extra.refunded > 0 or extra.since > 0 then
      -- After the longest time that a charge can take to drain, no refund needs to know of the charge.
      lifetime = math.max(lifetime, drain_time(bucket, bucket.capacity))
      written = written or ''
      written = written .. format(';%d', extra.refunded)
      if extra.since > 0 then
        written = written .. format(';%d', extra.since)
      end
    end
    return lifetime, written
  end

  return extra
end
