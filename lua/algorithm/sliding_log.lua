--[[
  Sliding log: at most `limit` units in any span of `period` microseconds, exactly. It stores the time of each admitted
  request.

  State     a list of entries of 13 bytes: `L`, 7 bytes of the time, 5 bytes of the running total, modulo 2^40: the
            units charged up to and including this request. The first entry holds the total before the log. The units
            in use are the last total minus the first, so they are known without reading the list. A request is one
            entry, whatever its cost.
  Arguments the limit; the period.
  Mark      none: a refund finds the charge by its time.
  Commands  LLEN and two to four LINDEX; a binary search with LINDEX where entries have expired or a denial looks for
            its retry time; RPUSH and PEXPIRE for a charge, and LTRIM where entries have expired. A refund reads and
            writes the entries before its charge or those after it, whichever are fewer, with LINDEX and LSET.

  Entries in the future mean that the clock stepped back. They count as of `now`. A denial writes this down, so that the
  retry time it names stays true.
]]
-- uses: prelude bytes
local WRAP = 1099511627776 -- 2^40
-- One refund writes at most this many entries, which takes Redis about 1.5 ms.
local MAX_REWRITTEN = 1000

local function entry(at, total)
  return 'L' .. pack(at, 7) .. pack(total % WRAP, 5)
end

-- Returns the time and the total of an entry.
local function read(bytes)
  if not bytes or #bytes ~= 13 or string.byte(bytes) ~= 76 then
    foreign()
  end
  return unpack_at(bytes, 2, 7), unpack_at(bytes, 9, 5)
end

local function entry_at(key, index)
  return read(redis.call('LINDEX', key, integer(index)))
end

-- Returns the lowest index from `low` to `high` whose entry satisfies `holds`, by binary search. `holds` must be true
-- for every index after the first true one; it is assumed to be true at `high`.
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

-- Reads the log of `key` as of `now`. Returns nil where no entry counts.
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
    -- The index of the first entry that counts, and the total before it.
    first = first,
    length = length,
    base = base,
    total = total,
    used = (total - base) % WRAP,
    last = math.min(last, now),
    stale = last > now,
  }
end

-- Replaces the entries in the future by one of the time `now`. As totals are cumulative, one entry stands for all.
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
    local missing = used + cost - limit
    local index = search(key, log.first, log.length - 1, function(_, total)
      return (total - log.base) % WRAP >= missing
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
        if log.stale then
          step_back(key, log)
        end
        if log.first > 1 then
          redis.call('LTRIM', key, integer(log.first - 1), -1)
        end
        redis.call('RPUSH', key, entry(now, log.total + cost))
      end
      redis.call('PEXPIRE', key, ttl(period))
    end,
    repair = log and log.stale and function()
      step_back(key, log)
      redis.call('PEXPIRE', key, ttl(reset))
    end,
  }
end

-- Removes `units` units from the entries `low` to `high`, which have the same time and at least that many units. It
-- works on the whole list, expired entries included: under a newer quota they may count.
local function remove_units(key, length, low, high, units)
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
  if high <= MAX_REWRITTEN and high <= length - low then
    -- Raise the totals of the entries before.
    change(0, low - 1, function(total)
      return total + units
    end)
    change(low, high - 1, function(total)
      return math.max(total, before + units)
    end)
  elseif length - low < MAX_REWRITTEN then
    -- Lower the totals of the entries after, which has the same effect.
    change(low, high - 1, function(total)
      return math.min(total, upto - units)
    end)
    change(high, length - 1, function(total)
      return total - units
    end)
  else
    -- Both sides are too long. Remove the oldest units instead: they expire sooner, so this never refunds too much.
    local index = search(key, 1, high, function(_, total)
      return (total - base) % WRAP >= units
    end)
    redis.call('LTRIM', key, integer(index - 1), -1)
    redis.call('LSET', key, 0, entry(0, base + units))
  end
end

-- Removes the latest entries that have no units left, and the key where no entry is left. The TTL stays.
local function remove_empty(key)
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

-- Removes the latest `units` units, fewer than the log has.
local function remove_latest(key, log, units, period)
  -- The entry with the last unit that is kept becomes the last entry, with a lower total.
  local kept = log.used - units
  local index = search(key, log.first, log.length - 1, function(_, total)
    return (total - log.base) % WRAP >= kept
  end)
  local at = entry_at(key, index)
  redis.call('LTRIM', key, integer(log.first - 1), integer(index))
  redis.call('LSET', key, -1, entry(at, log.base + kept))
  redis.call('PEXPIRE', key, ttl(at + period - now))
end

local function refund(key, units, arg, made)
  local period = tonumber(ARGV[arg + 1])
  local log = open(key, period)
  if made then
    if not log or log.stale or made + period <= now then
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
    remove_units(key, log.length, low, high, units)
    remove_empty(key)
    return
  end
  if not log then
    redis.call('DEL', key)
    return
  end
  if log.stale then
    step_back(key, log)
  end
  if units >= log.used then
    redis.call('DEL', key)
    return
  end
  remove_latest(key, log, units, period)
end

return plan, refund
