--[[
  The decision of a bucket in every case. include/bucket.lua makes the usual ones.
]]
-- uses: prelude muldiv drain text quotas leases state
-- Brings a state up to `now`. Returns the time of the level, the level, the microseconds since then, the free units,
-- whether a denial must write this state, and the table of what else it has.
local function open_bucket(bucket, at, level, text)
  local elapsed, drained, stale, leased, extra = 0, 0, false, 0, nil
  if text then
    extra = read_extra(text)
    at, level = fit(bucket, extra, at, level)
    at, level, leased, stale = end_leases(bucket, extra, at, level)
    -- Before anything is written: it could not be read again.
    if level + leased + extra.above > MOST_UNITS then
      error('RATELIMIT-FOREIGN', 0)
    end
  end
  local initial = bucket.initial
  if initial and at and at <= now and leased == 0 then
    -- A key counts as new again after it was full for as long as an empty bucket takes to fill.
    local all = level + (extra and extra.above or 0)
    if now - at >= drain_time(bucket, all) + (bucket.kept or drain_time(bucket, bucket.burst)) then
      at = false
      if extra then
        extra.above = 0
      end
    end
  end
  if not at then
    at, level = now, 0
    if initial then
      level, stale = bucket.burst - initial, true
      if bucket.kept and bucket.debt then
        -- A new guarantee has nothing, not even debt.
        extra = extra or read_extra()
        level, extra.owed = level + bucket.debt, bucket.debt
      end
    end
  elseif at > now then
    at, stale = now, true
  else
    -- Drain the whole periods that have passed; what is left of the time stays in `elapsed`.
    local period, units = bucket.period, bucket.units
    elapsed = (now - at) % period
    level = level - (now - at - elapsed) / period * units
    at = now - elapsed
    if elapsed > 0 and not bucket.stepped then
      drained = elapsed * units
      -- Without the call of muldiv() in the usual case.
      drained = drained < 2^53 and (drained - drained % period) / period or muldiv(elapsed, units, period)
    end
    if level <= drained then
      if extra then
        drain_above(extra, drained - level)
      end
      at, level, elapsed, drained = now, 0, 0, 0
    end
  end
  if bucket.wait > 0 then
    drained = muldiv(elapsed + bucket.wait, bucket.units, bucket.period)
  end
  local free = bucket.burst - level - leased + drained
  if free < 0 then
    -- What is above the burst is owed, or of a quota with a larger capacity.
    local owed = extra and math.min(extra.owed, bucket.debt or 0) or 0
    if free < -owed then
      extra = extra or read_extra()
      level = cut(bucket, extra, level - drained_in(bucket, elapsed), leased, owed)
      at, elapsed, stale = now, 0, true
      free = bucket.capacity - level - leased
    end
  end
  return at, level, elapsed, math.max(0, free + (bucket.room or 0)), stale, extra
end

-- The decision in every case.
local function decide_any_bucket(bucket, cost, at, level, text)
  local elapsed, free, stale, extra
  at, level, elapsed, free, stale, extra = open_bucket(bucket, at, level, text)
  local retry, delay = 0, 0
  local room = bucket.room or 0
  if cost > free or bucket.wait > 0 and cost > 0 then
    -- The microseconds until the whole cost fits into the burst.
    if extra and extra.leases then
      delay = wait_for_room(bucket, extra, level, elapsed, math.max(0, bucket.burst + room - cost))
      delay = cost > free and math.max(delay, bucket.wait + 1) or math.min(delay, bucket.wait)
    elseif level + cost > bucket.burst + room then
      delay = math.max(0, drain_time(bucket, level + cost - bucket.burst - room) - elapsed)
    end
  end
  if cost > free then
    retry, delay = cost > bucket.capacity + room and NEVER or delay - bucket.wait, 0
    stale = stale and (level > 0 or extra and extra.leases)
  else
    level, free = level + cost, free - cost
    stale = cost > 0 or stale and (level > 0 or extra and extra.leases)
  end
  local reset
  if extra and extra.leases then
    reset = wait_for_room(bucket, extra, level, elapsed, 0)
  else
    reset = drain_time(bucket, level) - elapsed
    if reset < 0 then
      reset = 0
    end
  end
  -- The end of the charge's span, see "Refunds of a bucket" in lua/README.md.
  local mark = now + reset
  if bucket.stepped or extra and extra.leases then
    mark = at + drain_time(bucket, level, true)
  end
  if extra then
    mark = mark + extra.refunded
  end
  local lifetime
  if room > 0 and level > bucket.burst then
    -- A debt is stored as such.
    extra = extra or read_extra()
  end
  if stale then
    lifetime = reset
    if bucket.initial then
      lifetime = lifetime + (bucket.kept or drain_time(bucket, bucket.burst))
    end
    if extra then
      lifetime, at, text = write_extra(bucket, extra, lifetime, at, level)
    end
  end
  return retry, free, reset, delay, mark, lifetime, at, level, text
end
