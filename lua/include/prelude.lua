--[[
  The clock, TTLs, and names for what every script uses.

  All times are microseconds since 1970. All numbers are integers below 2^53, which a Lua number holds exactly.

  Nothing in the include files is global, and loading them writes nothing.
]]
local call, pack = redis.call, struct.pack
-- The retry time of a cost that is never admitted.
local NEVER = -1
-- Instead of a lifetime: state to remove, and state whose key keeps its TTL.
local REMOVE, KEEP_TTL = 0, -1

-- ARGV[1] holds the numbers of the call as doubles. The first one is the time, or 0 for the server's clock. Only tests
-- send a time (a manual clock).
local manual_time = struct.unpack('<d', ARGV[1])
local now = manual_time
if manual_time == 0 then
  -- Read once, because TIME advances while a script runs on Redis before 7.2.
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The TTL in milliseconds, as text, of state that matters for `lifetime` more microseconds. Rounded up, plus 1 ms
-- because the server's idea of a key's age may lag behind `now`. Verdicts depend on the state and `now` only; a TTL
-- only frees memory.
local function ttl(lifetime)
  if manual_time ~= 0 then
    -- A manual clock does not move with the server's, so keys get a fixed TTL of one hour.
    return '3600000'
  end
  lifetime = lifetime + 1999
  return string.format('%d', (lifetime - lifetime % 1000) / 1000)
end
