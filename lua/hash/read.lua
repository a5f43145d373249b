-- The time of the server; a mark of what the hash is: the number of its fields and its field `@version`; and its fields,
-- unless the mark is ARGV[1], because to read many of them takes Redis milliseconds. If there are more than ARGV[2],
-- their number is in their place.
local key, call = KEYS[1], redis.call
local count = call('HLEN', key)
local mark = string.format('%d:%s', count, call('HGET', key, '@version') or '')
if count > tonumber(ARGV[2]) then return { call('TIME'), mark, count } end
if mark == ARGV[1] then return { call('TIME'), mark } end
return { call('TIME'), mark, call('HGETALL', key) }
