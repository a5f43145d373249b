--[[
  The arithmetic that GCRA, the token bucket and the leaky bucket share: a level that is paid off at
  `units` per `period` microseconds (in lowest terms where it is paid continuously), with room for `burst`.

  State is one number, `at` and `level`: a whole microsecond not after the last charge, and the units
  owed since then. That stays exact where a unit is paid in no whole number of microseconds (3 per
  second), and it keeps its meaning when the quota changes, because units do not depend on a rate.

  A bucket is a table of

    period, units  the rate
    burst          what an idle key admits at once
    wait           microseconds that an admitted request may be made to wait, so that as much more fits
    stepped        true where units are paid only when a whole period is over
    initial        what a key admits that was never seen; nil for `burst`

    capacity       0; burst and what a wait adds to it are filled in here

  A level above the capacity comes from a lowered quota, and a time before `at` from a clock that stepped
  back. Either way the state starts again at `now`, the first with a full level and the second with the
  level it had, and a refusal writes that down, so that the wait it names holds.
]]

-- Microseconds from `at` on until `level` units are paid.
-- The functions of an algorithm whose arguments, from `arg` on, `bucket_of` makes a bucket of.
local function bucket_algorithm(bucket_of)
  -- Microseconds from `at` on until `level` units are paid.
  local function owed(bucket, level)
    if bucket.stepped then
      return math.ceil(level / bucket.units) * bucket.period
    end
    return muldiv_up(level, bucket.period, bucket.units)
  end

  -- Units that are paid in `elapsed` microseconds.
  local function paid(bucket, elapsed)
    if bucket.stepped then
      return floor(elapsed / bucket.period) * bucket.units
    end
    return (muldiv(elapsed, bucket.units, bucket.period))
  end

  -- The bucket that was asked for last, and the place of its arguments: most decisions of a call are of
  -- one policy.
  local latest, place

  local function bucket_at(arg)
    if arg ~= place then
      latest, place = bucket_of(arg), arg
      latest.capacity = latest.burst + paid(latest, latest.wait)
    end
    return latest
  end

  -- The state of `key` as of `now`: `at`, `level`, the time since `at`, the units that are free, and
  -- whether a refusal must write that down.
  local function open(bucket, key)
    local at, level = read_count(key)
    local elapsed, moved = 0, false
    if at and bucket.initial and at <= now then
      -- Full, and then unseen for as long again as an empty bucket takes to fill: never seen.
      if now - at >= owed(bucket, level) + owed(bucket, bucket.burst) then
        at = nil
      end
    end
    if not at then
      at, level = now, 0
      if bucket.initial then
        level, moved = bucket.burst - bucket.initial, true
      end
    elseif at > now then
      at, moved = now, true
    else
      local spans = floor((now - at) / bucket.period)
      at = at + spans * bucket.period
      elapsed = now - at
      level = level - spans * bucket.units
      if level <= paid(bucket, elapsed) then
        at, level, elapsed = now, 0, 0
      end
    end
    local free = bucket.burst - level + paid(bucket, elapsed + bucket.wait)
    if free < 0 then
      at, level, elapsed, free, moved = now, bucket.capacity, 0, 0, true
    end
    return at, level, elapsed, free, moved
  end

  local function write(bucket, key, at, level, reset)
    if bucket.initial then
      reset = reset + owed(bucket, bucket.burst)
    end
    write_count(key, at, level, reset)
  end

  -- The state of `key` as of `now`, and what it says to `cost`: the wait until that fits, -1 for never,
  -- and how long it would have to queue.
  local function weigh(bucket, key, cost)
    local at, level, elapsed, free, moved = open(bucket, key)
    -- Until all of the cost would fit without a wait.
    local ahead = 0
    if level + cost > bucket.burst then
      ahead = math.max(0, owed(bucket, level + cost - bucket.burst) - elapsed)
    end
    local retry = 0
    if cost > bucket.capacity then
      retry = -1
    elseif cost > free then
      retry = ahead - bucket.wait
    end
    local delay = retry == 0 and cost > 0 and ahead or 0
    return at, level, elapsed, free, moved, retry, delay
  end

  local function reset_of(bucket, level, elapsed)
    return math.max(0, owed(bucket, level) - elapsed)
  end

  local function plan(key, cost, arg)
    local bucket = bucket_at(arg)
    local at, level, elapsed, free, moved, retry, delay = weigh(bucket, key, cost)
    local reset = reset_of(bucket, level, elapsed)
    local reset_after = retry == 0 and reset_of(bucket, level + cost, elapsed)
    return {
      retry = retry,
      delay = delay,
      remaining = free,
      reset = reset,
      remaining_after = free - cost,
      reset_after = reset_after,
      charge = function()
        write(bucket, key, at, level + cost, reset_after)
      end,
      repair = moved and level > 0 and function()
        write(bucket, key, at, level, reset)
      end,
    }
  end

  local function take(key, cost, arg)
    local bucket = bucket_at(arg)
    local at, level, elapsed, free, moved, retry, delay = weigh(bucket, key, cost)
    if retry ~= 0 then
      local reset = reset_of(bucket, level, elapsed)
      if moved and level > 0 then
        write(bucket, key, at, level, reset)
      end
      return retry, free, reset, 0
    end
    local reset = reset_of(bucket, level + cost, elapsed)
    if cost > 0 then
      write(bucket, key, at, level + cost, reset)
    end
    return 0, free - cost, reset, delay
  end

  local function refund(key, units, arg)
    local bucket = bucket_at(arg)
    if not read_count(key) then
      return
    end
    local at, level, elapsed = open(bucket, key)
    level = level - units
    if level <= paid(bucket, elapsed) then
      -- Full. A refund gives back, it does not save up.
      at, level, elapsed = now, 0, 0
    end
    local reset = math.max(0, owed(bucket, level) - elapsed)
    if reset == 0 and not bucket.initial then
      redis.call('DEL', key)
    else
      write(bucket, key, at, level, reset)
    end
  end

  return plan, refund, nil, take
end
