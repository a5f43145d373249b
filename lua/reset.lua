--[[
  A reset: removes the state of a key without reading it, regardless of its type. If there was one, it leaves the mark of the
  reset, the time in digits, so that a refund of a charge from before changes nothing: see "Resets" in lua/README.md.

  Redis takes the mark without memory (OOM) too, because the script has written a key.

  KEYS  the key; the key of its mark, in the same slot.
  ARGV  the least TTL of the mark in milliseconds; the time, or 0 for the server's clock.

  The mark stays at least as long as the state and an earlier mark would have: the state may be of a longer quota.

  Returns how many keys were reset.
]]
local key = KEYS[1]
local lifetime = redis.call('PTTL', key)
local removed = redis.call('DEL', key)
if removed > 0 then
  local now = tonumber(ARGV[2])
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  key = KEYS[2]
  lifetime = math.max(lifetime, redis.call('PTTL', key), tonumber(ARGV[1]))
  -- After the clock stepped back, the time of the reset before stands.
  now = math.max(now, tonumber(redis.pcall('GET', key)) or 0)
  redis.call('SET', key, string.format('%d', now), 'PX', string.format('%d', lifetime))
end
return removed
