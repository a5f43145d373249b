--[[
  Concurrency: at most `limit` permits in use at any moment, over all instances.

  Each charge has its own holder, which holds one permit per unit. The permits are in use until they are released, or
  until they expire `period` microseconds after the last renewal.

  State     a sorted set. Each holder is a member `holder:units`; its score is the time at which its permits expire.
            The member `units` marks the set as written by this crate; its score is the negated sum of all holders'
            units, so it sorts before every time.
  Arguments the limit; the period; the holder.
  Mark      none: a release names its holder.
  Commands  ZSCORE, EXISTS where there is no sum, ZRANGEBYSCORE and ZREVRANGE; ZRANGEBYSCORE again for a denial; two
            ZADD, ZREVRANGE and PEXPIRE for a charge, and ZREMRANGEBYRANK where permits have expired; ZREM and DEL for
            a release.

  A holder that expires later than one period from `now` means that the clock stepped back or the period became shorter.
  It expires one period from `now`. A denial writes this down, so that the retry time it names stays true.
]]
-- uses: prelude
local SUM = 'units'
-- One decision reads at most this many holders, which takes Redis about 0.5 ms. Where more have expired, each decision
-- removes this many.
local MAX_HOLDERS = 1000

-- Returns a lower bound for scores above `time`.
local function above(time)
  return '(' .. integer(time)
end

local function units_of(member)
  local units = tonumber(string.match(member, '^%x+:(%d+)$'))
  if not units then
    foreign()
  end
  return units
end

-- Returns up to `count` members with scores from `from` to `to`, each followed by its score.
local function range(key, from, to, count)
  return redis.call('ZRANGEBYSCORE', key, from, to, 'WITHSCORES', 'LIMIT', 0, integer(count))
end

-- Returns the units in use; when the last of them expires, nil where none is in use; the expired holders; and the sum
-- of all units, those of the expired holders included.
local function open(key)
  local sum = redis.call('ZSCORE', key, SUM)
  if not sum then
    if redis.call('EXISTS', key) == 1 then
      foreign()
    end
    return 0, nil, {}, 0
  end
  sum = -tonumber(sum)
  local used, expired = sum, range(key, 0, integer(now), MAX_HOLDERS)
  for i = 1, #expired, 2 do
    used = used - units_of(expired[i])
  end
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local expires = tonumber(last[2])
  return used, expires > now and expires or nil, expired, sum
end

-- Writes the sum and the TTL, or deletes the key where it has no holder.
local function write_sum(key, sum, period)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if last[1] == SUM then
    redis.call('DEL', key)
    return
  end
  redis.call('ZADD', key, integer(-sum), SUM)
  redis.call('PEXPIRE', key, ttl(math.max(tonumber(last[2]) - now, period)))
end

-- Removes the expired holders, which follow the sum in the set.
local function remove(key, expired)
  if #expired > 0 then
    redis.call('ZREMRANGEBYRANK', key, 1, #expired / 2)
  end
end

-- Lets holders that expire later than one period from `now` expire then.
local function shorten(key, period)
  local late = range(key, above(now + period), '+inf', MAX_HOLDERS)
  for i = 1, #late, 2 do
    redis.call('ZADD', key, integer(now + period), late[i])
  end
end

-- Returns the microseconds until `missing` units have expired.
local function wait_for(key, missing, last, period)
  -- Each holder has at least one unit.
  local holders = range(key, above(now), '+inf', math.min(missing, MAX_HOLDERS))
  for i = 1, #holders, 2 do
    missing = missing - units_of(holders[i])
    if missing <= 0 then
      return math.min(tonumber(holders[i + 1]) - now, period)
    end
  end
  -- The holders that were read are not enough: wait until the last one expires.
  return math.min(last - now, period)
end

local function plan(key, cost, arg)
  local limit, period = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local used, last, expired, sum = open(key)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    -- Where every holder has expired, the next decision removes more of them.
    retry = last and wait_for(key, used + cost - limit, last, period) or 1
  end
  local reset = last and math.min(last - now, period) or 0
  local stale = last and last > now + period
  return {
    retry = retry,
    remaining = free,
    reset = reset,
    remaining_after = free - cost,
    reset_after = cost > 0 and period or reset,
    charge = function()
      remove(key, expired)
      if stale then
        shorten(key, period)
      end
      -- ZADD adds nothing where the holder exists: the call was sent twice.
      local added = redis.call('ZADD', key, integer(now + period), ARGV[arg + 2] .. ':' .. integer(cost))
      write_sum(key, used + added * cost, period)
    end,
    repair = (stale or #expired == 2 * MAX_HOLDERS) and function()
      if stale then
        shorten(key, period)
      end
      if #expired == 2 * MAX_HOLDERS then
        remove(key, expired)
        sum = used
      end
      write_sum(key, sum, period)
    end,
  }
end

-- Releases the permits of the holder.
local function refund(key, units, arg)
  local member = ARGV[arg + 2] .. ':' .. integer(units)
  local sum = redis.call('ZSCORE', key, SUM)
  if sum and redis.call('ZREM', key, member) == 1 then
    write_sum(key, -tonumber(sum) - units, tonumber(ARGV[arg + 1]))
  end
end

-- Renews the permits of the holder. Expired permits stay expired.
local function renew(key, units, arg)
  local period = tonumber(ARGV[arg + 1])
  local member = ARGV[arg + 2] .. ':' .. integer(units)
  local expires = tonumber(redis.call('ZSCORE', key, member) or 0)
  if expires > now then
    redis.call('ZADD', key, integer(now + period), member)
    local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    redis.call('PEXPIRE', key, ttl(tonumber(last[2]) - now))
  end
end

return plan, refund, renew
