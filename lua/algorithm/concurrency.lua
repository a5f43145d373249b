--[[
  Concurrency: at most `limit` permits in use at any moment, over all instances.

  Each charge has its own holder, which holds one permit per unit. The permits are in use until they are released, or
  until they expire `period` microseconds after the last renewal. A renewal adds a holder that the key has lost.

  State     a sorted set. Each holder is a member `holder:units`; its score is the time at which its permits expire.
            The member `units` marks the set as written by this crate; its score is the negated sum of all holders'
            units, so it sorts before every time.
  Arguments the limit; the period.
  Mark      none: a release names its holder.

  A decision calls ZSCORE, EXISTS without a sum, ZRANGEBYSCORE and ZREVRANGE, once for all decisions of a call;
  ZRANGEBYSCORE again for a denial; ZADD for each charge, then ZADD, ZREVRANGE and PEXPIRE, and ZREMRANGEBYRANK where
  permits have expired. A release calls ZSCORE, ZREM, ZREVRANGE, ZADD and PEXPIRE, or DEL. A renewal calls ZSCORE, ZADD, ZREVRANGE,
  ZADD and PEXPIRE.

  A holder that expires later than one period from `now` means that the clock stepped back or the period became shorter.
  It expires one period from `now`. A denial writes this down, so that the retry time it names stays true.
]]
-- uses: prelude
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

local function units_of(member)
  local _, _, units = string.find(string.sub(member, 1, 41), '^%x+:(%d+)$')
  if not units or #member > 40 or units + 0 < 1 then
    error('RATELIMIT-FOREIGN', 0)
  end
  return units + 0
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

-- The state while decisions are made: the stored set, as a table of `key`, `sum`, the units of all holders, `expired`,
-- the holders that have expired, `used`, the units of the others, and `last`, when the last of these expires, nil if
-- there are no others. Then the holders that were added since it was read: a chain of tables of `member`, `units` and
-- `previous`. Then the sum of their units.
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
    set.used = set.used - units_of(set.expired[i])
  end
  local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if set.used < 0 then
    error('RATELIMIT-FOREIGN', 0)
  end
  if last[1] ~= SUM then
    local expires = whole(tonumber(last[2]))
    set.last = expires > now and expires or nil
  end
  return set, nil, 0
end

-- Returns the microseconds until `missing` of the stored units have expired.
local function wait_for(set, missing, period)
  -- Each holder has at least one unit.
  local holders = range(set.key, above(now), '+inf', math.min(missing, MAX_HOLDERS))
  for i = 1, #holders, 2 do
    missing = missing - units_of(holders[i])
    if missing <= 0 then
      return math.min(whole(tonumber(holders[i + 1])) - now, period)
    end
  end
  -- The holders that were read are not enough: wait until the last one expires.
  return math.min(set.last - now, period)
end

local function decide(permits, cost, set, added, added_units, holder)
  local limit, period = permits.limit, permits.period
  local used = set.used + added_units
  local free = math.max(0, limit - used)
  if cost > 0 and cost <= free then
    local member = string.format('%s:%d', holder, cost)
    added = { member = member, units = cost, previous = added }
    return 0, free - cost, period, 0, 0, period, set, added, added_units + cost
  end
  local retry, reset = 0, 0
  if added then
    reset = period
  elseif set.last then
    reset = math.min(set.last - now, period)
  end
  if cost > limit then
    retry = NEVER
  elseif cost > free then
    local missing = used + cost - limit
    if missing > set.used and added then
      retry = period
    elseif set.last then
      retry = wait_for(set, missing, period)
    else
      -- Every holder has expired: the next decision removes more of them.
      retry = 1
    end
  end
  local is_stale = set.last and set.last > now + period or #set.expired == 2 * MAX_HOLDERS
  return retry, free, reset, 0, 0, is_stale and period or nil, set, added, added_units
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
  local expires, sum = string.format('%d', now + lifetime), set.used
  -- The expired holders follow the sum in the set.
  if #set.expired > 0 then
    call('ZREMRANGEBYRANK', key, 1, #set.expired / 2)
  end
  if set.last and set.last > now + lifetime then
    -- Let holders that expire later than one period from `now` expire then.
    local late = range(key, above(now + lifetime), '+inf', MAX_HOLDERS)
    for i = 1, #late, 2 do
      call('ZADD', key, expires, late[i])
    end
  end
  while added do
    -- ZADD adds nothing where the holder exists: the call was sent twice.
    sum = sum + call('ZADD', key, expires, added.member) * added.units
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
  if sum and call('ZREM', key, string.format('%s:%d', holder, units)) == 1 then
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
  local added = call('ZADD', key, string.format('%d', now + permits.period), string.format('%s:%d', holder, units))
  write_sum(key, sum + added * units, permits.period)
end

return { policy = policy, decide = decide, load = load, store = store, refund = refund, renew = renew }
