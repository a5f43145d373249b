--[[
  Sliding log: at most `limit` units in any span of `period` microseconds, exactly, by remembering when
  each admitted request came.

  State     a list. Each entry is 13 bytes: the mark `L`, 7 of the time, 5 of the units charged up to and with
            this request, modulo 2^40. The first entry stands for everything before: what is used is the
            last total less the first. So a request of any cost is one entry, requests of the same
            microsecond are entries of their own, and what is used is known without a walk.
  Arguments ARGV[arg], the limit; ARGV[arg + 1], the period.
  Mark      none: a charge is found by its time.
  Cost      LINDEX three or four times; more, the logarithm of the entries, when some have expired or a request
            of several units is refused. RPUSH and PEXPIRE where something is charged, and LTRIM where
            entries have expired. A refund writes the entries anew that came before its charge, or those after
            it, whichever are fewer.

  Entries of a time after `now` mean that the clock stepped back. They count as of `now`, and a refusal
  writes that down, so that the wait it names holds.
]]
local WRAP = 1099511627776 -- 2^40
-- A refund writes no more entries anew than this, some 1.5 milliseconds' worth.
local MOST_REWRITTEN = 1000

local function entry(at, total)
  return 'L' .. pack(at, 7) .. pack(total % WRAP, 5)
end

local function read(bytes)
  if not bytes or #bytes ~= 13 or string.byte(bytes) ~= 76 then
    foreign()
  end
  return unpack_at(bytes, 2, 7), unpack_at(bytes, 9, 5)
end

local function entry_at(key, index)
  return read(redis.call('LINDEX', key, integer(index)))
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
  if length == 0 then
    return nil
  end
  if length == 1 then
    foreign()
  end
  local _, base = entry_at(key, 0)
  local last, total = entry_at(key, length - 1)
  if last + period <= now then
    return nil
  end
  local function counts(at)
    return at + period > now
  end
  local first = 1
  if length > 2 and not counts(entry_at(key, 1)) then
    first = search(key, 2, length - 1, counts)
    _, base = entry_at(key, first - 1)
  end
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

-- Takes `units` units out of the entries from `low` to `high`, which are all of one time and have as many. It looks at
-- the whole list, expired entries too: they may count by a newer quota.
local function take_out(key, length, low, high, units)
  local _, base = entry_at(key, 0)
  local function change(from, to, change_of)
    for index = from, to do
      local at, total = entry_at(key, index)
      redis.call('LSET', key, integer(index), entry(at, base + change_of((total - base) % WRAP)))
    end
  end
  local _, before = entry_at(key, low - 1)
  local _, upto = entry_at(key, high)
  before, upto = (before - base) % WRAP, (upto - base) % WRAP
  if high <= MOST_REWRITTEN and high <= length - low then
    -- With higher totals before them.
    change(0, low - 1, function(total)
      return total + units
    end)
    change(low, high - 1, function(total)
      return math.max(total, before + units)
    end)
  elseif length - low < MOST_REWRITTEN then
    -- Or lower ones after them, which is the same.
    change(low, high - 1, function(total)
      return math.min(total, upto - units)
    end)
    change(high, length - 1, function(total)
      return total - units
    end)
  else
    -- As many of the oldest units: they count for less long, so nothing is returned too much.
    local index = search(key, 1, high, function(_, total)
      return (total - base) % WRAP >= units
    end)
    redis.call('LTRIM', key, integer(index - 1), -1)
    redis.call('LSET', key, 0, entry(0, base + units))
  end
end

-- Drops the latest entries that have nothing left, and the key where none has. Its TTL stays.
local function settle(key)
  local length = redis.call('LLEN', key)
  while length > 1 do
    local _, total = entry_at(key, -1)
    local _, before = entry_at(key, -2)
    if total ~= before then
      return
    end
    redis.call('LTRIM', key, 0, -2)
    length = length - 1
  end
  redis.call('DEL', key)
end

local function last_units(key, log, units, period)
  -- The entry in which the last unit that is kept was charged is the last one, with less in it.
  local kept = log.used - units
  local index = search(key, log.first, log.length - 1, function(_, total)
    return (total - log.base) % WRAP >= kept
  end)
  local at = entry_at(key, index)
  redis.call('LTRIM', key, integer(log.first - 1), integer(index))
  redis.call('LSET', key, -1, entry(at, log.base + kept))
  redis.call('PEXPIRE', key, ttl(at + period - now))
end

-- Without a charge, the latest units first.
local function refund(key, units, arg, made)
  local period = tonumber(ARGV[arg + 1])
  local log = open(key, period)
  if made then
    if not log or log.moved or made + period <= now then
      return
    end
    local low = search(key, log.first, log.length, function(at)
      return at >= made
    end)
    local high = search(key, low, log.length, function(at)
      return at > made
    end) - 1
    if high < low then
      return
    end
    local _, before = entry_at(key, low - 1)
    local _, upto = entry_at(key, high)
    units = math.min(units, (upto - before) % WRAP)
    if units == 0 then
      return
    end
    take_out(key, log.length, low, high, units)
    settle(key)
    return
  end
  if not log then
    redis.call('DEL', key)
    return
  end
  if log.moved then
    step_back(key, log)
  end
  if units >= log.used then
    redis.call('DEL', key)
    return
  end
  last_units(key, log, units, period)
end

return plan, refund
