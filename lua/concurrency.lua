--[[
  Concurrency: at most `limit` units in use at any moment, over all instances.

  Every charge has a holder of its own, who keeps its units until they are released, or until `lease`
  microseconds pass without the holder being renewed: then it is taken for dead.

  State     a sorted set with a member for each unit in use, `holder:number`, scored by the time it expires.
  Arguments ARGV[arg], the limit; ARGV[arg + 1], the lease; ARGV[arg + 2], the holder.
  Cost      ZCOUNT and ZREVRANGE, and ZRANGEBYSCORE for a refusal; ZREMRANGEBYSCORE, ZADD for each unit and
            PEXPIRE for a charge; ZREM for each unit of a release.

  A unit that expires later than a lease from `now` means that the clock stepped back or the lease became
  shorter. It expires a lease from `now`, and a refusal writes that down, so that the wait it names holds.
]]
-- Where each Lua keeps it.
local unpack = unpack or table.unpack

local function after(time)
  return '(' .. integer(time)
end

-- When the latest unit in use expires; nil where none is in use.
local function latest(key)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local expires = tonumber(last[2])
  if expires and expires > now then
    return expires
  end
end

local function keep(key, lease)
  local last = latest(key)
  if last then
    redis.call('PEXPIRE', key, ttl(math.max(last - now, lease)))
  end
end

local function cut(key, lease)
  local long = redis.call('ZRANGEBYSCORE', key, after(now + lease), '+inf')
  for _, member in ipairs(long) do
    redis.call('ZADD', key, integer(now + lease), member)
  end
end

local function plan(key, cost, arg)
  local limit, lease = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local used = redis.call('ZCOUNT', key, after(now), '+inf')
  local last = latest(key)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    local place = integer(used + cost - limit - 1)
    local unit = redis.call('ZRANGEBYSCORE', key, after(now), '+inf', 'WITHSCORES', 'LIMIT', place, 1)
    retry = math.min(tonumber(unit[2]) - now, lease)
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
      redis.call('ZREMRANGEBYSCORE', key, '-inf', integer(now))
      if moved then
        cut(key, lease)
      end
      local expires, members = integer(now + lease), {}
      for unit = 1, cost do
        members[#members + 1] = expires
        members[#members + 1] = ARGV[arg + 2] .. ':' .. integer(unit)
        -- As many at a time as Lua passes on without trouble.
        if #members == 1000 or unit == cost then
          redis.call('ZADD', key, unpack(members))
          members = {}
        end
      end
      keep(key, lease)
    end,
    repair = moved and function()
      cut(key, lease)
      keep(key, lease)
    end,
  }
end

-- A holder's units came together and expire together, so the first that is missing is the end of them.

-- Releases the holder's units, and nobody else's.
local function refund(key, units, arg)
  for unit = 1, units do
    if redis.call('ZREM', key, ARGV[arg + 2] .. ':' .. integer(unit)) == 0 then
      break
    end
  end
end

-- Renews the holder's units. Those that have expired are somebody else's by now.
local function renew(key, units, arg)
  local lease = tonumber(ARGV[arg + 1])
  for unit = 1, units do
    local member = ARGV[arg + 2] .. ':' .. integer(unit)
    local expires = tonumber(redis.call('ZSCORE', key, member) or 0)
    if expires <= now then
      break
    end
    redis.call('ZADD', key, integer(now + lease), member)
  end
  keep(key, lease)
end

return plan, refund, renew
