--[[
  The leased units of a bucket: see "Leases of a bucket" in lua/README.md.

  The leases of one key are a table: `slot`, the latest slot; [0], the units leased in that slot; [1], the units leased
  in the slot before; `wait_for_room`, the function below.
]]
-- uses: prelude

-- Returns the functions `read` and `add`. `drain_time` and `drained_in` are those of bucket.lua. Only a key with leased
-- units needs these functions, so a call without any does not create them.
local function lease_functions(drain_time, drained_in)
  -- The length of a slot in microseconds.
  local SLOT = 500000

  -- Adds the units of every lease that ended by `moment` to the level, each at the time its lease ended. Returns the
  -- time of the level and the level.
  local function end_leases(leases, bucket, at, level, moment)
    for age = 1, 0, -1 do
      local units, ended = leases[age], (leases.slot - age + 2) * SLOT
      if units > 0 and ended <= moment then
        local periods = floor(math.max(0, ended - at) / bucket.period)
        at = at + periods * bucket.period
        level = level - periods * bucket.units
        if ended >= at and level <= drained_in(bucket, ended - at) then
          at, level = ended, 0
        end
        level = math.min(level + units, bucket.capacity + drained_in(bucket, math.max(0, ended - at)))
        leases[age] = 0
      end
    end
    return at, level
  end

  -- Returns the microseconds until the level and the leased units are at most `room`, if no lease is returned early.
  local function wait_for_room(leases, bucket, level, elapsed, room)
    local at, moment = now - elapsed, now
    local rest = { [0] = leases[0], leases[1], slot = leases.slot }
    for age = 1, 0, -1 do
      -- The level can drain to 0. Where that is not enough, wait until a lease ends.
      if rest[age] > 0 and rest[0] + rest[1] > room then
        moment = (rest.slot - age + 2) * SLOT
        at, level = end_leases(rest, bucket, at, level, moment)
      end
    end
    local excess = math.max(0, level + rest[0] + rest[1] - room)
    return moment - now + math.max(0, drain_time(bucket, excess) - (moment - at))
  end

  -- Reads the leases from the state's `text` and ends those that are over. Returns the time of the level, the level,
  -- the number of leased units, whether a denial must write this state, and the leases, nil where no unit is leased.
  local function read(bucket, at, level, text)
    local slot, latest, previous = string.match(text, '^(%d+),(%d+),(%d+)$')
    if not slot then
      error(FOREIGN, 0)
    end
    local leases =
      { [0] = tonumber(latest), tonumber(previous), slot = tonumber(slot), wait_for_room = wait_for_room }
    local stale = false
    if leases.slot > floor(now / SLOT) + 1 then
      -- The clock stepped back. Let the leases last as long as the longest lease that starts now.
      leases.slot, stale = floor(now / SLOT) + 1, true
    end
    if at > now then
      at, stale = now, true
    end
    at, level = end_leases(leases, bucket, at, level, now)
    local leased = leases[0] + leases[1]
    return at, level, leased, stale, leased > 0 and leases or nil
  end

  -- Leases `units` more. Returns the leases, how many microseconds the new one lasts, and its name, which is its slot.
  local function add(leases, units)
    local slot = floor(now / SLOT)
    if not leases then
      leases = { [0] = 0, 0, slot = slot, wait_for_room = wait_for_room }
    elseif leases.slot < slot then
      -- The leases of the slot before have ended.
      leases = { [0] = 0, leases[0], slot = slot, wait_for_room = wait_for_room }
    end
    leases[0] = leases[0] + units
    return leases, (leases.slot + 2) * SLOT - now, leases.slot
  end

  return read, add
end
