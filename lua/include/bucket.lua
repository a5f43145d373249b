--[[
  The arithmetic of GCRA, the token bucket and the leaky bucket: a level that drains at a rate.

  The design, the state, leases and refunds are explained under "The bucket" in lua/README.md.

  A bucket is a table of

    period, units  the rate: `units` drain per `period` microseconds; in lowest terms unless `stepped`
    burst          the units that an idle key admits at once
    wait           the longest delay of an admitted request in microseconds; 0 for no delays
    stepped        true where units drain only at the end of each period
    initial        the units that a new key admits; nil for `burst`
    capacity       0; bucket_algorithm() sets it to the burst and the units that drain during `wait`
]]
-- uses: prelude muldiv count lease

-- 2^49 microseconds, 18 years. The sum of this, a time before 2112 and the longest wait is below 2^53.
local MAX_REFUNDED = 562949953421312

-- Returns the functions of an algorithm. `bucket_of(arg)` makes its bucket from ARGV. `leasing` asks for the function
-- `lease` too.
local function bucket_algorithm(bucket_of, leasing)
  -- Returns the microseconds in which `level` units drain.
  local function drain_time(bucket, level)
    if bucket.stepped then
      return math.ceil(level / bucket.units) * bucket.period
    end
    return muldiv_up(level, bucket.period, bucket.units)
  end

  -- Returns the units that drain in `elapsed` microseconds.
  local function drained_in(bucket, elapsed)
    if bucket.stepped then
      return floor(elapsed / bucket.period) * bucket.units
    end
    return (muldiv(elapsed, bucket.units, bucket.period))
  end

  -- The last bucket and the `arg` that it was made from. Most decisions of a call use one policy.
  local latest, latest_arg

  -- State of the last key that open() read: its leases, nil where no unit is leased; by how many microseconds refunds
  -- moved the front; and when that sum last started from 0.
  local leases, refunded, since

  local function bucket_at(arg)
    if arg ~= latest_arg then
      latest, latest_arg = bucket_of(arg), arg
      latest.capacity = latest.burst + drained_in(latest, latest.wait)
    end
    return latest
  end

  -- Reads the state of `key` and brings it up to `now`. Returns the time `at` of the level, the level, the
  -- microseconds since `at`, the free units, and whether a denial must write this state.
  local function open(bucket, key)
    local at, level, text = read_count(key)
    local elapsed, stale, leased = 0, false, 0
    leases, refunded, since = nil, 0, 0
    if text then
      local leases_text, time, start = string.match(text, '^([%d,]*);?(%d*);?(%d*)$')
      if not leases_text then
        foreign()
      end
      refunded, since = tonumber(time) or 0, tonumber(start) or 0
      if leases_text ~= '' then
        at, level, leased, stale, leases =
          lease_functions(drain_time, drained_in)(bucket, at, level, leases_text)
      end
    end
    if at and bucket.initial and not leases and at <= now then
      -- A key counts as new again after it was full for as long as an empty bucket takes to fill.
      if now - at >= drain_time(bucket, level) + drain_time(bucket, bucket.burst) then
        at = nil
      end
    end
    if not at then
      at, level = now, 0
      if bucket.initial then
        level, stale = bucket.burst - bucket.initial, true
      end
    elseif at > now then
      at, stale = now, true
    else
      -- Drain the whole periods that have passed; what is left of the time stays in `elapsed`.
      elapsed = (now - at) % bucket.period
      local periods = (now - at - elapsed) / bucket.period
      at = now - elapsed
      level = level - periods * bucket.units
      if level <= drained_in(bucket, elapsed) then
        at, level, elapsed = now, 0, 0
      end
    end
    local free = bucket.burst - level - leased + drained_in(bucket, elapsed + bucket.wait)
    if free < 0 then
      at, level, elapsed, free, stale = now, math.max(0, bucket.capacity - leased), 0, 0, true
    end
    return at, level, elapsed, free, stale
  end

  -- Returns the longest time that a charge can take to drain. After it, no refund needs to know of the charge.
  local function max_drain_time(bucket)
    return drain_time(bucket, bucket.capacity)
  end

  local function write(bucket, key, at, level, reset)
    if bucket.initial then
      reset = reset + drain_time(bucket, bucket.burst)
    end
    local text
    if leases then
      text = integer(leases.slot) .. ',' .. integer(leases[0]) .. ',' .. integer(leases[1])
    end
    if refunded > 0 or since > 0 then
      reset = math.max(reset, max_drain_time(bucket))
      text = text or ''
      text = text .. ';' .. integer(refunded)
      if since > 0 then
        text = text .. ';' .. integer(since)
      end
    end
    write_count(key, at, level, reset, text)
  end

  -- Returns the mark of the charge that raised the level to `level`, which drains in `reset` microseconds.
  local function mark_of(bucket, at, level, reset)
    if bucket.stepped or leases then
      return at + muldiv_up(level, bucket.period, bucket.units) + refunded
    end
    return now + reset + refunded
  end

  -- Returns the state as open() does, then the retry time of `cost` (0 admits it, -1 is never) and its delay.
  local function evaluate(bucket, key, cost)
    local at, level, elapsed, free, stale = open(bucket, key)
    -- The microseconds until the whole cost fits into the burst.
    local wait = 0
    if leases then
      wait = leases:wait_for_room(bucket, level, elapsed, math.max(0, bucket.burst - cost))
      wait = cost > free and math.max(wait, bucket.wait + 1) or math.min(wait, bucket.wait)
    elseif level + cost > bucket.burst then
      wait = math.max(0, drain_time(bucket, level + cost - bucket.burst) - elapsed)
    end
    local retry = 0
    if cost > bucket.capacity then
      retry = -1
    elseif cost > free then
      retry = wait - bucket.wait
    end
    local delay = retry == 0 and cost > 0 and wait or 0
    return at, level, elapsed, free, stale, retry, delay
  end

  local function reset_of(bucket, level, elapsed)
    if leases then
      return leases:wait_for_room(bucket, level, elapsed, 0)
    end
    return math.max(0, drain_time(bucket, level) - elapsed)
  end

  local function plan(key, cost, arg)
    local bucket = bucket_at(arg)
    local at, level, elapsed, free, stale, retry, delay = evaluate(bucket, key, cost)
    local reset = reset_of(bucket, level, elapsed)
    local reset_after = retry == 0 and reset_of(bucket, level + cost, elapsed)
    -- The driver may plan another key before it charges this one.
    local own_leases, own_refunded, own_since = leases, refunded, since
    return {
      retry = retry,
      delay = delay,
      remaining = free,
      reset = reset,
      remaining_after = free - cost,
      reset_after = reset_after,
      mark = retry == 0 and mark_of(bucket, at, level + cost, reset_after),
      charge = function()
        leases, refunded, since = own_leases, own_refunded, own_since
        write(bucket, key, at, level + cost, reset_after)
      end,
      repair = stale and (level > 0 or own_leases) and function()
        leases, refunded, since = own_leases, own_refunded, own_since
        write(bucket, key, at, level, reset)
      end,
    }
  end

  local function charge(key, cost, arg)
    local bucket = bucket_at(arg)
    local at, level, elapsed, free, stale, retry, delay = evaluate(bucket, key, cost)
    if retry ~= 0 then
      local reset = reset_of(bucket, level, elapsed)
      if stale and (level > 0 or leases) then
        write(bucket, key, at, level, reset)
      end
      return retry, free, reset, 0
    end
    local reset = reset_of(bucket, level + cost, elapsed)
    if cost > 0 then
      write(bucket, key, at, level + cost, reset)
    end
    return 0, free - cost, reset, delay, mark_of(bucket, at, level + cost, reset)
  end

  -- Writes a level that became lower, or deletes the key where the state says nothing.
  local function write_lowered(bucket, key, at, level, elapsed)
    local reset = reset_of(bucket, level, elapsed)
    if reset == 0 and refunded == 0 and since == 0 and not bucket.initial then
      redis.call('DEL', key)
    else
      write(bucket, key, at, level, reset)
    end
  end

  local function refund(key, units, arg, made, mark)
    local bucket = bucket_at(arg)
    if not read_count(key) then
      return
    end
    local at, level, elapsed = open(bucket, key)
    local time = muldiv_up(units, bucket.period, bucket.units)
    if made then
      -- The front and the charge's age; a stepped bucket drains in whole periods only.
      local front, age = now, now - made
      if bucket.stepped then
        front, age = at, math.ceil(age / bucket.period) * bucket.period
      end
      -- The larger of the two refundable parts, in microseconds.
      local refundable = math.max(mark - refunded - front, time - age)
      if refundable <= 0 or made <= since or made > now or now - made >= max_drain_time(bucket) then
        return
      end
      if refundable < time then
        time = refundable
        if bucket.stepped then
          units = (muldiv(refundable, bucket.units, bucket.period))
        else
          -- Drain the bucket for that much longer.
          elapsed = elapsed + refundable
          units = (elapsed - elapsed % bucket.period) / bucket.period * bucket.units
          elapsed = elapsed % bucket.period
          at = math.max(0, now - elapsed)
        end
      end
    else
      units = math.min(units, level)
      time = muldiv_up(units, bucket.period, bucket.units)
    end
    refunded = refunded + time
    if refunded > MAX_REFUNDED then
      refunded, since = 0, now
    end
    level = math.max(0, level - units)
    if level <= drained_in(bucket, elapsed) then
      -- The bucket is empty. A refund never goes below that, so units cannot be saved up.
      at, level, elapsed = now, 0, 0
    end
    write_lowered(bucket, key, at, level, elapsed)
  end

  if not leasing then
    return plan, refund, nil, charge
  end

  local _, add_lease = lease_functions(drain_time, drained_in)

  local function lease(key, cost, arg, wanted, name, units, spent)
    local bucket = bucket_at(arg)
    if units > 0 then
      local at, level, elapsed = open(bucket, key)
      local age = leases and leases.slot - name
      if age == 0 or age == 1 then
        -- At most what is leased: the key may have been reset since.
        local returned = math.min(units, leases[age])
        leases[age] = leases[age] - returned
        level = level + math.min(spent, returned)
        if leases[0] + leases[1] == 0 then
          leases = nil
        end
        write_lowered(bucket, key, at, level, elapsed)
      end
    end
    local retry, remaining, reset = charge(key, cost, arg)
    -- The units are spent later, so their spans end later than one that starts now: this mark refunds less, never more.
    local mark = now + refunded
    local leased = retry == 0 and math.min(wanted, floor(remaining / 4)) or 0
    if leased == 0 then
      return retry, remaining, reset, 0, 0, 0, mark
    end
    local at, level, elapsed = open(bucket, key)
    local lasts, slot
    leases, lasts, slot = add_lease(leases, leased)
    reset = reset_of(bucket, level, elapsed)
    write(bucket, key, at, level, reset)
    return 0, remaining - leased, reset, leased, lasts, slot, mark
  end

  return plan, refund, nil, charge, lease
end
