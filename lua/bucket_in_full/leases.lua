--[[
  The leases of a bucket; see "Leases of a bucket" in lua/README.md.
]]
-- uses: prelude drain text quotas
-- The length of a slot in microseconds.
local SLOT = 500000

-- Adds the units of every lease that ended by `moment` to the level, each at the time its lease ended. Returns the
-- time of the level, the level, and the units that drained beyond it.
local function end_by(bucket, leases, at, level, moment)
  local beyond = 0
  for age = 1, 0, -1 do
    local units, ended = leases[age], (leases.slot - age + 2) * SLOT
    if units > 0 and ended <= moment then
      local periods = math.floor(math.max(0, ended - at) / bucket.period)
      at = at + periods * bucket.period
      level = level - periods * bucket.units
      if ended >= at and level <= drained_in(bucket, ended - at) then
        beyond = beyond + drained_in(bucket, ended - at) - level
        at, level = ended, 0
      end
      level, leases[age] = level + units, 0
    end
  end
  return at, level, beyond
end

-- Ends the leases that are over. Returns the time of the level, the level, the number of leased units, and whether a
-- denial must write this state.
local function end_leases(bucket, extra, at, level)
  local leases, stale = extra.leases, false
  if not leases then
    return at, level, 0, false
  end
  if leases.slot > math.floor(now / SLOT) + 1 then
    -- The clock stepped back. Let the leases last as long as the longest lease that starts now.
    leases.slot, stale = math.floor(now / SLOT) + 1, true
  end
  if at > now then
    at, stale = now, true
  end
  local beyond
  at, level, beyond = end_by(bucket, leases, at, level, now)
  drain_above(extra, beyond)
  local units = leases[0] + leases[1]
  if units == 0 then
    extra.leases = nil
  end
  return at, level, units, stale
end

-- Returns the microseconds until the level and the leased units are at most `room`, if no lease is returned early.
local function wait_for_room(bucket, extra, level, elapsed, room)
  local leases = extra.leases
  local at, moment = now - elapsed, now
  local rest = { [0] = leases[0], leases[1], slot = leases.slot }
  for age = 1, 0, -1 do
    -- The level can drain to 0. Where that is not enough, wait until a lease ends.
    if rest[age] > 0 and rest[0] + rest[1] > room then
      moment = (rest.slot - age + 2) * SLOT
      at, level = end_by(bucket, rest, at, level, moment)
    end
  end
  local excess = math.max(0, level + rest[0] + rest[1] - room)
  return math.min(moment - now + math.max(0, drain_time(bucket, excess) - (moment - at)), LONGEST_WAIT)
end

-- Leases `units` more. Returns how many microseconds the new lease lasts, and its name, which is its slot.
local function add_lease(extra, units)
  local leases, slot = extra.leases, math.floor(now / SLOT)
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
