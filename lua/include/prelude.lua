--[[
  The clock, numbers as text, TTLs and the error for foreign state.

  All times are microseconds since 1970. All numbers are integers below 2^53, which a Lua number holds exactly.
  Only integer() turns a number into text: `..` and tostring() print 14 digits.

  Nothing in the include files is global, and loading them writes nothing.
]]
local floor = math.floor

-- The decimal digits of an integer.
local function integer(number)
  -- `%d` is twice as fast as `%.0f`, but fails above 2^31 where a C long has 32 bits.
  if number < 2147483648 and number > -2147483648 then
    return string.format('%d', number)
  end
  return string.format('%.0f', number)
end

-- ARGV[1] is a time, or '' for the server's clock. Only tests send a time (a manual clock).
local now
if ARGV[1] == '' then
  -- Read once, because TIME advances while a script runs on Redis before 7.2.
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  now = tonumber(ARGV[1])
end

-- The TTL in milliseconds, as text, of state that matters for `lifetime` more microseconds. Rounded up, plus 1 ms
-- because the server's idea of a key's age may lag behind `now`. Verdicts depend on the state and `now` only; a TTL
-- only frees memory.
local function ttl(lifetime)
  if ARGV[1] ~= '' then
    -- A manual clock does not move with the server's, so keys get a fixed TTL of one hour.
    return '3600000'
  end
  lifetime = lifetime + 999
  return integer((lifetime - lifetime % 1000) / 1000 + 1)
end

-- Raises the error for a key whose value has another format. src/store/redis/error.rs knows the code.
local function foreign()
  error('RATELIMIT-FOREIGN', 0)
end

-- 2^53: above every valid time and count, and exact in a Lua number.
local TOO_LARGE = 9007199254740992
