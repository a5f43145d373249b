--[[
  Sliding log: at most `limit` units in any span of `period` microseconds, exactly, by remembering when
  each admitted request came.

  State     a list. Each entry is 12 bytes: 7 of the time, 5 of the units charged up to and with this
            request, modulo 2^40. The first entry stands for everything before: what is used is the
            last total less the first. So a request of any cost is one entry, requests of the same
            microsecond are entries of their own, and what is used is known without a walk.
  Arguments ARGV[arg], the limit; ARGV[arg + 1], the period.
  Cost      LINDEX three or four times; more, the logarithm of the entries, when some have expired or a request
            of several units is refused. RPUSH and PEXPIRE where something is charged, and LTRIM where
            entries have expired.

  Entries of a time after `now` mean that the clock stepped back. They count as of `now`, and a refusal
  writes that down, so that the wait it names holds.
]]
local WRAP = 1099511627776 -- 2^40

local function entry(at, total)
  return pack(at, 7) .. pack(total % WRAP, 5)
end

local function entry_at(key, index)
  local bytes = redis.call('LINDEX', key, integer(index))
  if not bytes or #bytes ~= 12 then
    not_ours()
  end
  return unpack_at(bytes, 1, 7), unpack_at(bytes, 8, 5)
end

-- The lowest index from `low` to `high` whose entry satisfies `holds`, which once true stays true, and
-- is true at `high`.
local function search(key, low, high, holds)
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(entry_at(key, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- The log of `key` as of `now`, or nil where nothing in it counts any more.
local function open(key, period)
  local length = redis.call('LLEN', key)
  if length < 2 then
    return nil
  end
  local last, total = entry_at(key, length - 1)
  if last + period <= now then
    return nil
  end
  local function counts(at)
    return at + period > now
  end
  local first = 1
  if not counts(entry_at(key, 1)) then
    first = search(key, 2, length - 1, counts)
  end
  local _, base = entry_at(key, first - 1)
  return {
    first = first,
    length = length,
    base = base,
    total = total,
    used = (total - base) % WRAP,
    last = math.min(last, now),
    moved = last > now,
  }
end

-- Entries of a time after `now` become one of the time `now`. Totals being totals, it stands for them all.
local function step_back(key, log)
  local index = search(key, log.first, log.length - 1, function(at)
    return at > now
  end)
  redis.call('LTRIM', key, integer(log.first - 1), integer(index - 1))
  redis.call('RPUSH', key, entry(now, log.total))
  log.first, log.length = 1, index - log.first + 2
end

local function plan(key, cost, arg)
  local limit, period = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local log = open(key, period)
  local used = log and log.used or 0
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    local freed = used + cost - limit
    local index = search(key, log.first, log.length - 1, function(_, total)
      return (total - log.base) % WRAP >= freed
    end)
    retry = math.min(entry_at(key, index), now) + period - now
  end
  local reset = log and log.last + period - now or 0
  return {
    retry = retry,
    remaining = free,
    reset = reset,
    remaining_after = free - cost,
    reset_after = cost > 0 and period or reset,
    charge = function()
      if not log then
        redis.call('DEL', key)
        redis.call('RPUSH', key, entry(0, 0), entry(now, cost))
      else
        if log.moved then
          step_back(key, log)
        end
        if log.first > 1 then
          redis.call('LTRIM', key, integer(log.first - 1), -1)
        end
        redis.call('RPUSH', key, entry(now, log.total + cost))
      end
      redis.call('PEXPIRE', key, ttl(period))
    end,
    repair = log and log.moved and function()
      step_back(key, log)
      redis.call('PEXPIRE', key, ttl(reset))
    end,
  }
end

-- Gives back the latest units first.
local function refund(key, units, arg)
  local log = open(key, tonumber(ARGV[arg + 1]))
  if not log or units >= log.used then
    redis.call('DEL', key)
    return
  end
  if log.moved then
    step_back(key, log)
  end
  -- The entry in which the last unit that is kept was charged is the last one, with less in it.
  local kept = log.used - units
  local index = search(key, log.first, log.length - 1, function(_, total)
    return (total - log.base) % WRAP >= kept
  end)
  local at = entry_at(key, index)
  redis.call('LTRIM', key, integer(log.first - 1), integer(index))
  redis.call('LSET', key, -1, entry(at, log.base + kept))
  redis.call('PEXPIRE', key, ttl(at + tonumber(ARGV[arg + 1]) - now))
end

return plan, refund
