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

  Units that an instance has on lease are out: they take up room, as a level does, and are not paid off,
  because nobody knows yet when they are spent. So level and out together never pass the burst. They
  become level when they are reported spent, or else when the lease ends, as if all of them were spent
  then; never earlier than they really are. In any span, what was spent in it is level that came in it, or
  is still out at its end: no more than the burst and what was paid in the span.

  Leases are kept by generation, which is all that a key needs to know of any number of them: time is cut
  into slots, and a lease that is taken in one ends with the next. The state then has after a comma the
  latest slot, the units out since then, and those out since the slot before. Where none is out it is one
  number as before.

  A refund of a decision returns the larger of two parts of its charge, neither of which another charge can own:

  * what a bucket would still hold that nothing else was charged to: it drains from the moment of the charge on;
  * what this one still holds, if the oldest units drain first. Think of a line on which every charge has a span of
    its own, as long as it takes to drain, one after the other; the bucket's level is what lies between the front,
    where it drains now, and the end of the last span. A refund moves the front by what it returns, instead of
    taking a span out of the middle.

  All that can still be refunded is then never more than the level. (The first part of a charge exceeds the second
  only by what refunds moved the front over its span; as much lies ahead in the spans of the charges that were
  refunded; and time takes from both alike.) Hence what was not refunded keeps within the limit by itself,
  whatever was refunded, and when. Refunds in the order of their charges return all that is still in the bucket;
  in another order they can return less of a charge that is older than the time it takes to drain. `refunded` is by how much, in microseconds, refunds
  moved the front. A charge's mark is the end of its span, as a time, plus the `refunded` of that moment. In
  the state `refunded` stands last, after a semicolon, and such a state is kept as long as the oldest charge
  can be refunded. Where it grows too large for exact numbers it starts again from 0, and charges of before that,
  whose moment follows after another semicolon, cannot be refunded any more. Fractions of a microsecond are rounded in favour of the refund: by less than 2 microseconds.
]]

-- What only leases need, of buckets with these functions; most calls need nothing of it. What is out on lease of
-- a key is a table: `slot`, the latest slot; at [0], the units out since then, and at [1], those since the slot
-- before; and how to find out when it is `drained`.
local function lending(owed, paid)
  -- The length of a slot, in microseconds.
  local SLOT = 500000

  -- The level after the leases that are over by `moment` became level, each when it ended, and its time.
  local function expire(lent, bucket, at, level, moment)
    for age = 1, 0, -1 do
      local units, ended = lent[age], (lent.slot - age + 2) * SLOT
      if units > 0 and ended <= moment then
        local spans = floor(math.max(0, ended - at) / bucket.period)
        at = at + spans * bucket.period
        level = level - spans * bucket.units
        if ended >= at and level <= paid(bucket, ended - at) then
          at, level = ended, 0
        end
        level = math.min(level + units, bucket.capacity + paid(bucket, math.max(0, ended - at)))
        lent[age] = 0
      end
    end
    return at, level
  end

  -- Microseconds until no more than `room` units are left of the level and what is out, if nothing is given
  -- back.
  local function drained(lent, bucket, level, elapsed, room)
    local at, moment = now - elapsed, now
    local left = { [0] = lent[0], lent[1], slot = lent.slot }
    for age = 1, 0, -1 do
      -- Beside what is out the level can shrink to nothing. Where that does not do, leases have to end.
      if left[age] > 0 and left[0] + left[1] > room then
        moment = (left.slot - age + 2) * SLOT
        at, level = expire(left, bucket, at, level, moment)
      end
    end
    local over = math.max(0, level + left[0] + left[1] - room)
    return moment - now + math.max(0, owed(bucket, over) - (moment - at))
  end

  -- Finds out from the state's `text` what is out as of `now`. The level without it and its time, how much it
  -- is, whether a refusal must write that down, and the table, nil for nothing.
  local function settle(bucket, at, level, text)
    local slot, out, before = string.match(text, '^(%d+),(%d+),(%d+)$')
    if not slot then
      foreign()
    end
    local lent = { [0] = tonumber(out), tonumber(before), slot = tonumber(slot), drained = drained }
    local moved = false
    if lent.slot > floor(now / SLOT) + 1 then
      -- The clock stepped back. They last longer than any lease from now on, so longer than they did.
      lent.slot, moved = floor(now / SLOT) + 1, true
    end
    if at > now then
      at, moved = now, true
    end
    at, level = expire(lent, bucket, at, level, now)
    out = lent[0] + lent[1]
    return at, level, out, moved, out > 0 and lent or nil
  end

  -- Leases `units` more. What is out then, how long they last, and the slot that they are called by.
  local function lend(lent, units)
    local slot = floor(now / SLOT)
    if not lent then
      lent = { [0] = 0, 0, slot = slot, drained = drained }
    elseif lent.slot < slot then
      -- What was out since the slot before that one has ended.
      lent = { [0] = 0, lent[0], slot = slot, drained = drained }
    end
    lent[0] = lent[0] + units
    return lent, (lent.slot + 2) * SLOT - now, lent.slot
  end

  return settle, lend
end

-- 2^49, 18 years: a moment before 2112, the longest wait and this are exact together.
local MOST_REFUNDED = 562949953421312

-- The functions of an algorithm whose arguments, from `arg` on, `bucket_of` makes a bucket of: those of
-- leases too where `leasing` says so.
local function bucket_algorithm(bucket_of, leasing)
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

  -- What is out on lease of the key that was opened last, nil for nothing; and by how many microseconds refunds
  -- moved its front, and since when.
  local lent, refunded, since

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
    local at, level, text = read_count(key)
    local elapsed, moved, out = 0, false, 0
    lent, refunded, since = nil, 0, 0
    if text then
      local leases, time, start = string.match(text, '^([%d,]*);?(%d*);?(%d*)$')
      if not leases then
        foreign()
      end
      refunded, since = tonumber(time) or 0, tonumber(start) or 0
      if leases ~= '' then
        at, level, out, moved, lent = lending(owed, paid)(bucket, at, level, leases)
      end
    end
    if at and bucket.initial and not lent and at <= now then
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
      -- What is over in whole periods.
      elapsed = (now - at) % bucket.period
      local spans = (now - at - elapsed) / bucket.period
      at = now - elapsed
      level = level - spans * bucket.units
      if level <= paid(bucket, elapsed) then
        at, level, elapsed = now, 0, 0
      end
    end
    local free = bucket.burst - level - out + paid(bucket, elapsed + bucket.wait)
    if free < 0 then
      at, level, elapsed, free, moved = now, math.max(0, bucket.capacity - out), 0, 0, true
    end
    return at, level, elapsed, free, moved
  end

  -- How long any charge can be in the bucket, and with it what a refund of it has to know.
  local function longest(bucket)
    return owed(bucket, bucket.capacity)
  end

  local function write(bucket, key, at, level, reset)
    if bucket.initial then
      reset = reset + owed(bucket, bucket.burst)
    end
    local text
    if lent then
      text = integer(lent.slot) .. ',' .. integer(lent[0]) .. ',' .. integer(lent[1])
    end
    if refunded > 0 or since > 0 then
      reset = math.max(reset, longest(bucket))
      text = text or ''
      text = text .. ';' .. integer(refunded)
      if since > 0 then
        text = text .. ';' .. integer(since)
      end
    end
    write_count(key, at, level, reset, text)
  end

  -- The mark of the charge that made `level` of the bucket, which is drained after `reset`.
  local function mark_of(bucket, at, level, reset)
    if bucket.stepped or lent then
      return at + muldiv_up(level, bucket.period, bucket.units) + refunded
    end
    return now + reset + refunded
  end

  -- The state of `key` as of `now`, and what it says to `cost`: the wait until that fits, -1 for never,
  -- and how long it would have to queue.
  local function weigh(bucket, key, cost)
    local at, level, elapsed, free, moved = open(bucket, key)
    -- Until all of the cost would fit without a wait.
    local ahead = 0
    if lent then
      ahead = lent:drained(bucket, level, elapsed, math.max(0, bucket.burst - cost))
      ahead = cost > free and math.max(ahead, bucket.wait + 1) or math.min(ahead, bucket.wait)
    elseif level + cost > bucket.burst then
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
    if lent then
      return lent:drained(bucket, level, elapsed, 0)
    end
    return math.max(0, owed(bucket, level) - elapsed)
  end

  local function plan(key, cost, arg)
    local bucket = bucket_at(arg)
    local at, level, elapsed, free, moved, retry, delay = weigh(bucket, key, cost)
    local reset = reset_of(bucket, level, elapsed)
    local reset_after = retry == 0 and reset_of(bucket, level + cost, elapsed)
    -- Another key may be opened before this one is charged.
    local leased, moved_by, moved_since = lent, refunded, since
    return {
      retry = retry,
      delay = delay,
      remaining = free,
      reset = reset,
      remaining_after = free - cost,
      reset_after = reset_after,
      mark = retry == 0 and mark_of(bucket, at, level + cost, reset_after),
      charge = function()
        lent, refunded, since = leased, moved_by, moved_since
        write(bucket, key, at, level + cost, reset_after)
      end,
      repair = moved and (level > 0 or leased) and function()
        lent, refunded, since = leased, moved_by, moved_since
        write(bucket, key, at, level, reset)
      end,
    }
  end

  local function take(key, cost, arg)
    local bucket = bucket_at(arg)
    local at, level, elapsed, free, moved, retry, delay = weigh(bucket, key, cost)
    if retry ~= 0 then
      local reset = reset_of(bucket, level, elapsed)
      if moved and (level > 0 or lent) then
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

  -- Writes a level down that became lower.
  local function lower(bucket, key, at, level, elapsed)
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
      -- Of the span's last `time` microseconds those behind the front, or what drains alone, in whole steps.
      local front, age = now, now - made
      if bucket.stepped then
        front, age = at, math.ceil(age / bucket.period) * bucket.period
      end
      local left = math.max(mark - refunded - front, time - age)
      if left <= 0 or made <= since or made > now or now - made >= longest(bucket) then
        return
      end
      if left < time then
        time = left
        if bucket.stepped then
          units = (muldiv(left, bucket.units, bucket.period))
        else
          -- As if it had drained for so much longer.
          elapsed = elapsed + left
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
    if refunded > MOST_REFUNDED then
      refunded, since = 0, now
    end
    level = math.max(0, level - units)
    if level <= paid(bucket, elapsed) then
      -- Full. A refund gives back, it does not save up.
      at, level, elapsed = now, 0, 0
    end
    lower(bucket, key, at, level, elapsed)
  end

  if not leasing then
    return plan, refund, nil, take
  end

  local _, lend = lending(owed, paid)

  -- A lease is called by its slot.
  local function lease(key, cost, arg, wanted, name, units, spent)
    local bucket = bucket_at(arg)
    if units > 0 then
      local at, level, elapsed = open(bucket, key)
      local age = lent and lent.slot - name
      if age == 0 or age == 1 then
        -- Not more than is out: somebody else may have reset the key.
        local back = math.min(units, lent[age])
        lent[age] = lent[age] - back
        level = level + math.min(spent, back)
        if lent[0] + lent[1] == 0 then
          lent = nil
        end
        lower(bucket, key, at, level, elapsed)
      end
    end
    local retry, remaining, reset = take(key, cost, arg)
    -- Its units are spent later and stand further back in the line then, so a span from here on is none too long.
    local mark = now + refunded
    local leased = retry == 0 and math.min(wanted, floor(remaining / 4)) or 0
    if leased == 0 then
      return retry, remaining, reset, 0, 0, 0, mark
    end
    local at, level, elapsed = open(bucket, key)
    local lasts, slot
    lent, lasts, slot = lend(lent, leased)
    reset = reset_of(bucket, level, elapsed)
    write(bucket, key, at, level, reset)
    return 0, remaining - leased, reset, leased, lasts, slot, mark
  end

  return plan, refund, nil, take, lease
end
