--[[
  Concurrency: at most `limit` units in use at any moment, over all instances.

  Every charge has a holder of its own, which keeps its units until they are released, or until `lease`
  microseconds pass without the holder being renewed: then it is taken for dead.

  State     a sorted set with a member for each holder, `holder:units`, scored by the time it expires; and the
            member `units`, which marks the set as ours. Its score is the sum of all holders' units, below zero,
            so that it comes before every time.
  Arguments ARGV[arg], the limit; ARGV[arg + 1], the lease; ARGV[arg + 2], the holder.
  Mark      none: a release names its holder.
  Cost      ZSCORE, ZRANGEBYSCORE and ZREVRANGE, and ZRANGEBYSCORE once more for a denial; two ZADD and PEXPIRE
            for a charge, and ZREMRANGEBYRANK where holders have expired.

  A holder that expires later than a lease from `now` means that the clock stepped back or the lease became
  shorter. It expires a lease from `now`, and a refusal writes that down, so that the wait it names holds.
]]
local SUM = 'units'
-- One decision looks at no more holders than this, some half a millisecond's worth. Where an instance with more of
-- them dies, so many of its holders come free with each decision.
local MOST = 1000

local function after(time)
  return '(' .. integer(time)
end

local function units_of(member)
  local units = tonumber(string.match(member, '^%x+:(%d+)$'))
  if not units then
    foreign()
  end
  return units
end

-- Members and their scores, from `from` to `to`, so many of them.
local function range(key, from, to, count)
  return redis.call('ZRANGEBYSCORE', key, from, to, 'WITHSCORES', 'LIMIT', 0, integer(count))
end

-- The units in use; when the latest of them expires, nil where none is in use; the holders that have expired, and
-- the sum with theirs.
local function open(key)
  local sum = redis.call('ZSCORE', key, SUM)
  if not sum then
    if redis.call('EXISTS', key) == 1 then
      foreign()
    end
    return 0, nil, {}, 0
  end
  sum = -tonumber(sum)
  local used, dead = sum, range(key, 0, integer(now), MOST)
  for i = 1, #dead, 2 do
    used = used - units_of(dead[i])
  end
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local expires = tonumber(last[2])
  return used, expires > now and expires or nil, dead, sum
end

-- Writes the sum down, and the TTL; removes the key where no holder is left.
local function keep(key, sum, lease)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  if last[1] == SUM then
    redis.call('DEL', key)
    return
  end
  redis.call('ZADD', key, integer(-sum), SUM)
  redis.call('PEXPIRE', key, ttl(math.max(tonumber(last[2]) - now, lease)))
end

-- Removes the holders that have expired, which come right after the sum.
local function remove(key, dead)
  if #dead > 0 then
    redis.call('ZREMRANGEBYRANK', key, 1, #dead / 2)
  end
end

local function cut(key, lease)
  local long = range(key, after(now + lease), '+inf', MOST)
  for i = 1, #long, 2 do
    redis.call('ZADD', key, integer(now + lease), long[i])
  end
end

-- Microseconds until `missing` units have expired.
local function wait_for(key, missing, last, lease)
  -- Each holder has a unit at least.
  local holders = range(key, after(now), '+inf', math.min(missing, MOST))
  for i = 1, #holders, 2 do
    missing = missing - units_of(holders[i])
    if missing <= 0 then
      return math.min(tonumber(holders[i + 1]) - now, lease)
    end
  end
  -- Later than all that was looked at: when everything has.
  return math.min(last - now, lease)
end

local function plan(key, cost, arg)
  local limit, lease = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local used, last, dead, sum = open(key)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    -- Where all have expired, some are still to be removed: the next decision does.
    retry = last and wait_for(key, used + cost - limit, last, lease) or 1
  end
  local reset = last and math.min(last - now, lease) or 0
  local moved = last and last > now + lease
  return {
    retry = retry,
    remaining = free,
    reset = reset,
    remaining_after = free - cost,
    reset_after = cost > 0 and lease or reset,
    charge = function()
      remove(key, dead)
      if moved then
        cut(key, lease)
      end
      -- A holder that is there already was sent twice, and has its units once.
      local added = redis.call('ZADD', key, integer(now + lease), ARGV[arg + 2] .. ':' .. integer(cost))
      keep(key, used + added * cost, lease)
    end,
    repair = (moved or #dead == 2 * MOST) and function()
      if moved then
        cut(key, lease)
      end
      if #dead == 2 * MOST then
        remove(key, dead)
        sum = used
      end
      keep(key, sum, lease)
    end,
  }
end

-- Releases the holder's units, and no other holder's.
local function refund(key, units, arg)
  local member = ARGV[arg + 2] .. ':' .. integer(units)
  local sum = redis.call('ZSCORE', key, SUM)
  if sum and redis.call('ZREM', key, member) == 1 then
    keep(key, -tonumber(sum) - units, tonumber(ARGV[arg + 1]))
  end
end

-- Renews the holder. One that has expired is dead.
local function renew(key, units, arg)
  local lease = tonumber(ARGV[arg + 1])
  local member = ARGV[arg + 2] .. ':' .. integer(units)
  local expires = tonumber(redis.call('ZSCORE', key, member) or 0)
  if expires > now then
    redis.call('ZADD', key, integer(now + lease), member)
    local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    redis.call('PEXPIRE', key, ttl(tonumber(last[2]) - now))
  end
end

return plan, refund, renew
