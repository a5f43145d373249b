-- Removes ARGV[2] fields of the hash, each of which is followed by the value that it must still have: one that was
-- written again stays. Then sets the other fields, and the field `@version` to ARGV[1].
local key, call = KEYS[1], redis.call
local at = 3
for _ = 1, tonumber(ARGV[2]) do
  if call('HGET', key, ARGV[at]) == ARGV[at + 1] then call('HDEL', key, ARGV[at]) end
  at = at + 2
end
while at < #ARGV do
  call('HSET', key, ARGV[at], ARGV[at + 1])
  at = at + 2
end
return call('HSET', key, '@version', ARGV[1])
