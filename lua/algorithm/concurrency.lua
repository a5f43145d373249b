--[[
  Concurrency: at most `limit` permits in use at any moment, over all instances.

  Each charge has its own holder, which holds one permit per unit. The permits are in use until they are released, or
  until they expire `period` microseconds after the last renewal. A renewal adds a holder that the key has lost.

  State     a sorted set. Each holder is a member `holder:units:period`; its score is the time at which its permits expire.
            The period is the one of its charge, because policies with different periods may count one key.
            The member `units` marks the set as written by this crate; its score is the negated sum of all holders'
            units, so it sorts before every time.
  Arguments the limit; the period.
  Mark      none: a release names its holder.

  A decision calls ZSCORE, EXISTS without a sum, ZRANGEBYSCORE and ZREVRANGE, once for all decisions of a call;
  ZRANGEBYSCORE again for a denial; ZADD for each charge, then ZADD, ZREVRANGE and PEXPIRE, and ZREMRANGEBYRANK where
  permits have expired. If the clock stepped back, it calls ZREVRANGE once more, and ZADD for each holder. A release calls
  ZSCORE, ZREM, ZREVRANGE, ZADD and PEXPIRE, or DEL. A renewal calls ZSCORE, ZADD, ZREVRANGE, ZADD and PEXPIRE.

  If the last holder expires later than its period from `now`, the clock stepped back. Each holder then expires at most its
  period from `now`. A denial writes this down, so that the retry time it names stays true.
]]
-- uses: prelude state
local SUM = 'units'
-- One decision reads at most this many holders, which takes Redis about 0.5 ms. Where more have expired, each decision
-- removes this many.
local MAX_HOLDERS = 1000

local function policy(limit, period)
  return { limit = limit, period = period }
end

-- Returns a lower bound for scores above `time`.
local function above(time)
  return string.format('(%d', time)
end

-- Returns the units and the period of a holder.
local function parts_of(member)
  local units, period = string.match(string.sub(member, 1, 56), '^%x+:(%d+):(%d+)$')
  if not units or #member > 55 or units + 0 < 1 then
    error('RATELIMIT-FOREIGN', 0)
  end
  return units + 0, period + 0
end

-- Returns a time or a sum, which must be exact.
local function whole(number)
  if number % 1 ~= 0 or number < 0 or number >= 2^53 then
    error('RATELIMIT-FOREIGN', 0)
  end
  return number
end

-- Returns up to `count` members with scores from `from` to `to`, each followed by its score.
local function range(key, from, to, count)
  return call('ZRANGEBYSCORE', key, from, to, 'WITHSCORES', 'LIMIT', 0, string.format('%d', count))
end

-- Lets each holder expire at most its period from `now`: sets `cut`, the holders by the time they expire then, each followed
-- by this time, and `last`.
local function cut(key, set)
  local holders, list = call('ZREVRANGE', key, 0, string.format('%d', MAX_HOLDERS - 1), 'WITHSCORES'), {}
  for i = 1, #holders, 2 do
    local expires = tonumber(holders[i + 1])
    if expires > now then
      local _, period = parts_of(holders[i])
      list[#list + 1] = { holders[i], math.min(whole(expires), now + period) }
    end
  end
  table.sort(list, function(one, other)
    return one[2] < other[2]
  end)
  set.cut, set.last = {}, list[#list][2]
  for i = 1, #list do
    set.cut[2 * i - 1], set.cut[2 * i] = list[i][1], list[i][2]
  end
end

-- The state while decisions are made: the stored set, as a table of `key`, `sum`, the units of all holders, `expired`,
-- the holders that have expired, `used`, the units of the others, `last`, when the last of these expires, nil if there are
-- no others, and `cut`, nil unless the clock stepped back. Then the holders that were added since it was read: a chain of
-- tables of `member`, `units`, `expires`, `last`, when the last of the chain expires, and `previous`. Then the sum of their
-- units.
local function load(key)
  local set = { key = key, sum = 0, used = 0, expired = {} }
  local sum = call('ZSCORE', key, SUM)
  if not sum then
    if call('EXISTS', key) == 1 then
      error('RATELIMIT-FOREIGN', 0)
    end
    return set, nil, 0
  end
  set.sum = whole(-tonumber(sum))
  set.used, set.expired = set.sum, range(key, 0, string.format('%d', now), MAX_HOLDERS)
  for i = 1, #set.expired, 2 do
    set.used = set.used - parts_of(set.expired[i])
  end
  local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if set.used < 0 then
    error('RATELIMIT-FOREIGN', 0)
  end
  local expires = tonumber(last[2])
  if expires > now then
    local _, period = parts_of(last[1])
    set.last = whole(expires)
    if expires > now + period then
      cut(key, set)
    end
  end
  return set, nil, 0
end

-- Returns the microseconds until `missing` of the stored units have expired.
local function wait_for(set, missing)
  -- Each holder has at least one unit.
  local holders = set.cut or range(set.key, above(now), '+inf', math.min(missing, MAX_HOLDERS))
  for i = 1, #holders, 2 do
    missing = missing - parts_of(holders[i])
    if missing <= 0 then
      return whole(tonumber(holders[i + 1])) - now
    end
  end
  -- The holders that were read are not enough: wait until the last one expires.
  return set.last - now
end

local function decide(permits, cost, set, added, added_units, holder)
  local limit, period = permits.limit, permits.period
  local used = set.used + added_units
  local free = math.max(0, limit - used)
  local last = math.max(set.last or now, added and added.last or now)
  if cost > 0 and cost <= free then
    local expires = now + period
    last = math.max(last, expires)
    local member = string.format('%s:%d:%d', holder, cost, period)
    added = { member = member, units = cost, expires = expires, last = last, previous = added }
    return 0, free - cost, last - now, 0, 0, period, set, added, added_units + cost
  end
  local retry = 0
  if cost > limit then
    retry = NEVER
  elseif cost > free then
    local missing = used + cost - limit
    if missing > set.used and added then
      retry = added.last - now
    elseif set.last then
      retry = wait_for(set, missing)
    else
      -- Every holder has expired: the next decision removes more of them.
      retry = 1
    end
  end
  local is_stale = set.cut or #set.expired == 2 * MAX_HOLDERS
  return retry, free, last - now, 0, 0, is_stale and period or nil, set, added, added_units
end

-- Writes the sum and the TTL, or deletes the key where it has no holder.
local function write_sum(key, sum, lifetime)
  local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if last[1] == SUM then
    call('DEL', key)
    return
  end
  call('ZADD', key, string.format('%d', -sum), SUM)
  call('PEXPIRE', key, ttl(math.max(whole(tonumber(last[2])) - now, lifetime)))
end

local function store(key, lifetime, set, added)
  local sum = set.used
  -- The expired holders follow the sum in the set.
  if #set.expired > 0 then
    call('ZREMRANGEBYRANK', key, 1, #set.expired / 2)
  end
  for i = 1, set.cut and #set.cut or 0, 2 do
    call('ZADD', key, string.format('%d', set.cut[i + 1]), set.cut[i])
  end
  while added do
    -- ZADD adds nothing where the holder exists: the call was sent twice.
    sum = sum + call('ZADD', key, string.format('%d', added.expires), added.member) * added.units
    added = added.previous
  end
  write_sum(key, sum, lifetime)
end

if brief then
  return { policy = policy, decide = decide, load = load, store = store }
end

-- Releases the permits of the holder.
local function refund(key, permits, units, holder)
  if not holder then
    return
  end
  local sum = call('ZSCORE', key, SUM)
  if sum and call('ZREM', key, string.format('%s:%d:%d', holder, units, permits.period)) == 1 then
    write_sum(key, -tonumber(sum) - units, permits.period)
  end
end

-- Renews the permits of the holder, which are in use. Adds the holder again where it has expired or the key was lost, even
-- above the limit.
local function renew(key, permits, units, holder)
  local sum = call('ZSCORE', key, SUM)
  if not sum and call('EXISTS', key) == 1 then
    error('RATELIMIT-FOREIGN', 0)
  end
  sum = sum and whole(-tonumber(sum)) or 0
  local period = permits.period
  local member = string.format('%s:%d:%d', holder, units, period)
  local added = call('ZADD', key, string.format('%d', now + period), member)
  write_sum(key, sum + added * units, period)
end

return { policy = policy, decide = decide, load = load, store = store, refund = refund, renew = renew }
