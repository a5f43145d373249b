--[[
  Sliding log: at most `limit` units in any span of `period` microseconds, exactly. It stores the time of each charge.

  State     a list of entries of 13 bytes: `L`, 7 bytes of the time, 5 bytes of the running total, modulo 2^40: the
            units charged up to and including this entry. The first entry holds the total before the log. The units in
            use are the last total minus the first, so they are known without reading the list. The charges of one call
            are one entry, because they have the same time.
  Arguments the limit; the period.
  Mark      none: a refund finds the charge by its time.

  A decision calls LLEN and two to four LINDEX; a binary search with LINDEX follows where entries have expired or a
  denial looks for its retry time. A refund reads and writes the entries before its charge or the ones after it, the
  smaller group, with LINDEX and LSET.

  Entries in the future mean that the clock stepped back. They count as of `now`. A denial writes this down, so that the
  retry time it names stays true.
]]
-- uses: prelude state
local WRAP = 1099511627776 -- 2^40
-- One refund writes at most this many entries, which takes Redis about 1.5 ms.
local MAX_REWRITTEN = 1000

local function policy(limit, period)
  return { limit = limit, period = period }
end

local function entry(at, total)
  return pack('>c1I7I5', 'L', at, total % WRAP)
end

-- Returns the time and the total of an entry.
local function entry_at(key, index)
  local bytes = call('LINDEX', key, string.format('%d', index))
  if not bytes or #bytes ~= 13 or string.byte(bytes) ~= 76 then
    error('RATELIMIT-FOREIGN', 0)
  end
  local at, total = struct.unpack('>I7I5', bytes, 2)
  if at >= 2^53 then
    error('RATELIMIT-FOREIGN', 0)
  end
  return at, total
end

-- Returns the lowest index from `low` to `high` whose entry satisfies `holds`, by binary search. `holds` must be true
-- for every index after the first true one; it is assumed to be true at `high`.
local function search(key, low, high, holds)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if holds(entry_at(key, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- The state while decisions are made: the stored list, as a table of `key`, `length`, `base`, the total before its
-- first entry, `total`, the total of its last entry, and `last`, the time of that entry; false without a list. Then the
-- units that were charged since it was read, and the period under which they were.
local function load(key)
  local length = call('LLEN', key)
  if length == 0 then
    return false, 0
  end
  if length == 1 then
    error('RATELIMIT-FOREIGN', 0)
  end
  local _, base = entry_at(key, 0)
  local last, total = entry_at(key, length - 1)
  return { key = key, length = length, base = base, total = total, last = last }, 0
end

-- Finds the entries of a list that count. Returns the index of the first one and the total before it; nil where none
-- counts.
local function open(list, period)
  if not list or list.last + period <= now then
    return nil
  end
  local function counts(at)
    return at + period > now
  end
  -- The most frequent result is remembered, for the other decisions of the call.
  if list.period ~= period then
    list.first, list.before, list.period = 1, list.base, period
    if list.length > 2 and not counts(entry_at(list.key, 1)) then
      list.first = search(list.key, 2, list.length - 1, counts)
      local _, before = entry_at(list.key, list.first - 1)
      list.before = before
    end
  end
  return list.first, list.before
end

local function decide(log, cost, list, added)
  local limit, period = log.limit, log.period
  local first, before = open(list, period)
  local stored = first and (list.total - before) % WRAP or 0
  local free = math.max(0, limit - stored - added)
  local retry, reset = 0, 0
  if cost > limit then
    retry = NEVER
  elseif cost > free then
    local missing = stored + added + cost - limit
    retry = period
    if missing <= stored then
      local index = search(list.key, first, list.length - 1, function(_, total)
        return (total - before) % WRAP >= missing
      end)
      retry = math.min(entry_at(list.key, index), now) + period - now
      if retry <= 0 then
        -- The entries are not in the order of their times.
        error('RATELIMIT-FOREIGN', 0)
      end
    end
  elseif cost > 0 then
    return 0, free - cost, period, 0, 0, period, list, added + cost, period
  end
  if added > 0 then
    reset = period
  elseif first then
    reset = math.min(list.last, now) + period - now
  end
  return retry, free, reset, 0, 0, first and list.last > now and reset or nil, list, added, period
end

-- Replaces the entries in the future by one of the time `now`. As totals are cumulative, one entry stands for all.
local function step_back(key, first, list)
  local index = search(key, first, list.length - 1, function(at)
    return at > now
  end)
  call('LTRIM', key, string.format('%d', first - 1), string.format('%d', index - 1))
  call('RPUSH', key, entry(now, list.total))
end

-- Writes what was charged since the list was read, all of it at `now`.
local function store(key, lifetime, list, added, period)
  local first = open(list, period)
  if not first then
    call('DEL', key)
    call('RPUSH', key, entry(0, 0), entry(now, added))
  else
    if list.last > now then
      step_back(key, first, list)
    elseif first > 1 then
      call('LTRIM', key, string.format('%d', first - 1), -1)
    end
    if added > 0 then
      call('RPUSH', key, entry(now, list.total + added))
    end
  end
  call('PEXPIRE', key, ttl(lifetime))
end

if brief then
  return { policy = policy, decide = decide, load = load, store = store }
end

-- Removes `units` units from the entries `low` to `high`, which have the same time and at least that many units. It
-- works on the whole list, expired entries included: under a newer quota they may count.
local function remove_units(key, length, low, high, units)
  local _, base = entry_at(key, 0)
  local function change(from, to, change_of)
    for index = from, to do
      local at, total = entry_at(key, index)
      call('LSET', key, string.format('%d', index), entry(at, base + change_of((total - base) % WRAP)))
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
    call('LTRIM', key, string.format('%d', index - 1), -1)
    call('LSET', key, 0, entry(0, base + units))
  end
end

-- Removes the latest entries that have no units left, and the key where no entry is left. The TTL stays.
local function remove_empty(key)
  local _, total = entry_at(key, -1)
  local _, before = entry_at(key, -2)
  if total ~= before then
    return
  end
  local _, base = entry_at(key, 0)
  local used = (total - base) % WRAP
  if used == 0 then
    call('DEL', key)
    return
  end
  local last = search(key, 1, call('LLEN', key) - 1, function(_, upto)
    return (upto - base) % WRAP >= used
  end)
  call('LTRIM', key, 0, string.format('%d', last))
end

-- Removes the latest `units` units, fewer than the log has.
local function remove_latest(key, list, first, before, used, units, period)
  -- The entry with the last unit that is kept becomes the last entry, with a lower total.
  local kept = used - units
  local index = search(key, first, list.length - 1, function(_, total)
    return (total - before) % WRAP >= kept
  end)
  local at = entry_at(key, index)
  call('LTRIM', key, string.format('%d', first - 1), string.format('%d', index))
  call('LSET', key, -1, entry(at, before + kept))
  call('PEXPIRE', key, ttl(math.min(at, now) + period - now))
end

local function refund(key, log, units, _, made)
  local period, list = log.period, load(key)
  local first, before = open(list, period)
  if made then
    if not first or list.last > now or made + period <= now then
      return
    end
    local low = search(key, first, list.length, function(at)
      return at >= made
    end)
    local high = search(key, low, list.length, function(at)
      return at > made
    end) - 1
    if high < low then
      return
    end
    local _, total_before = entry_at(key, low - 1)
    local _, upto = entry_at(key, high)
    units = math.min(units, (upto - total_before) % WRAP)
    if units > 0 then
      remove_units(key, list.length, low, high, units)
      remove_empty(key)
    end
    return
  end
  local used = first and (list.total - before) % WRAP or 0
  if units >= used then
    call('DEL', key)
    return
  end
  if list.last > now then
    step_back(key, first, list)
    list = load(key)
    first, before = open(list, period)
  end
  remove_latest(key, list, first, before, used, units, period)
end

return { policy = policy, decide = decide, load = load, store = store, refund = refund }
