--[[
  What changes a bucket, apart from charges: refunds and leases. See "Refunds of a bucket" and "Leases of a bucket" in
  lua/README.md.
]]
-- uses: prelude muldiv drain text leases any_bucket state

-- Returns the lifetime and the state of a level that became lower.
local function lowered(bucket, at, level, elapsed, extra)
  local reset
  if extra.leases then
    reset = wait_for_room(bucket, extra, level, elapsed, 0)
  else
    reset = math.max(0, drain_time(bucket, level) - elapsed)
  end
  if reset == 0 and extra.refunded == 0 and extra.since == 0 and extra.above == 0 and not bucket.initial then
    return REMOVE
  end
  if bucket.initial then
    reset = reset + (bucket.kept or drain_time(bucket, bucket.burst))
  end
  local lifetime, stored, text = write_extra(bucket, extra, reset, at, level)
  return lifetime, stored, level, text
end

-- Returns also the units that a guarantee in this pool may get: what was returned, or all where the pool is full.
local function refund(bucket, units, made, mark, at, level, text)
  local asked = units
  if not at then
    return nil, nil, nil, nil, asked
  end
  local elapsed, extra, _
  at, level, elapsed, _, _, extra = open_bucket(bucket, at, level, text)
  extra = extra or read_extra()
  local time, returned = drain_time(bucket, units, true), units
  if made then
    -- The front and the charge's age; a stepped bucket drains in whole periods only.
    local front, age = now, now - made
    if bucket.stepped then
      front, age = at, math.ceil(age / bucket.period) * bucket.period
    end
    -- The larger of the two refundable parts, in microseconds.
    local refundable = math.max(mark - extra.refunded - front, time - age)
    local longest = drain_time(bucket, bucket.capacity + (bucket.debt or 0))
    if refundable <= 0 or made <= extra.since or made > now or now - made >= longest then
      return nil, nil, nil, nil, level == 0 and asked or 0
    end
    if refundable < time then
      time, returned = refundable, (muldiv(refundable, bucket.units, bucket.period))
      if bucket.stepped then
        units = returned
      else
        -- Drain the bucket for that much longer.
        extra.real_from = math.max(extra.real_from or 0, at)
        elapsed = elapsed + refundable
        units = (elapsed - elapsed % bucket.period) / bucket.period * bucket.units
        elapsed = elapsed % bucket.period
        at = math.max(0, now - elapsed)
      end
    end
  else
    units = math.min(units, level)
    time, returned = drain_time(bucket, units, true), units
  end
  extra.refunded = extra.refunded + time
  if extra.refunded > MAX_REFUNDED then
    extra.refunded, extra.since = 0, now
  end
  level = math.max(0, level - units)
  if level <= drained_in(bucket, elapsed) then
    -- The bucket is empty. A refund never goes below that, so units cannot be saved up.
    at, level, elapsed, returned = now, 0, 0, asked
  end
  local lifetime, stored, left, its_text = lowered(bucket, at, level, elapsed, extra)
  return lifetime, stored, left, its_text, returned
end

local function return_lease(bucket, units, spent, name, at, level, text)
  if not at then
    return nil
  end
  local elapsed, extra, _
  at, level, elapsed, _, _, extra = open_bucket(bucket, at, level, text)
  local leases = extra and extra.leases
  local age = leases and leases.slot - name
  if age ~= 0 and age ~= 1 then
    return nil
  end
  -- At most what is leased: the key may have been reset since.
  local returned = math.min(units, leases[age])
  leases[age] = leases[age] - returned
  if leases[0] + leases[1] == 0 then
    extra.leases = nil
  end
  return lowered(bucket, at, level + math.min(spent, returned), elapsed, extra)
end

local function lease(bucket, units, at, level, text)
  local elapsed, extra, _
  at, level, elapsed, _, _, extra = open_bucket(bucket, at, level, text)
  extra = extra or read_extra()
  -- The mark is now. The units are spent later, so their spans end later than one that starts now: this refunds less, never more.
  if units == 0 then
    return 0, 0, now
  end
  local lasts, name = add_lease(extra, units)
  return lasts, name, now, lowered(bucket, at, level, elapsed, extra)
end

return decide_any_bucket, refund, return_lease, lease
