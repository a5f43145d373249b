--[[
  What every algorithm may use. It stands once at the top of the assembled script; nothing in it is
  global, and nothing in it writes before it is told to.

  All times are microseconds since 1970 and all numbers are integers below 2^53, which a Lua number
  holds exactly. Numbers become text only through integer(): `..` and tostring() print 14 digits.

  ARGV[1] is the time to decide at, or '' for the server's own clock. A given time is a test's manual
  clock, which does not move with the server's, so keys written under it live for a fixed hour.
]]
local floor = math.floor

local function integer(number)
  -- Twice as fast, and right also where a C long has 32 bits.
  if number < 2147483648 and number > -2147483648 then
    return string.format('%d', number)
  end
  return string.format('%.0f', number)
end

local now
if ARGV[1] == '' then
  -- Read once: on Redis before 7.2 TIME moves while a script runs.
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  now = tonumber(ARGV[1])
end

-- The quotient and the remainder of a * b / m, exactly. a, b and m are integers from 0 to 2^45, m is
-- at least 1. Where the product passes 2^53, b is taken seven bits at a time, highest first: every
-- step stays below 2^45 * 2^7 * 2 = 2^53.
local function muldiv(a, b, m)
  -- As a float where there are integers too, which would wrap around.
  local product = a * 1.0 * b
  if product < 9007199254740992 then
    local quotient = product / m
    -- As floor() does it, without a call.
    quotient = quotient - quotient % 1
    return quotient, product - quotient * m
  end
  local quotient, rest = 0, 0
  local place = 4398046511104 -- 2^42
  while place >= 1 do
    local digit = floor(b / place)
    b = b - digit * place
    local part = rest * 128 + a % m * digit
    local step = floor(part / m)
    quotient = quotient * 128 + floor(a / m) * digit + step
    rest = part - step * m
    place = place / 128
  end
  return quotient, rest
end

-- a * b / m, rounded up.
local function muldiv_up(a, b, m)
  local quotient, rest = muldiv(a, b, m)
  if rest > 0 then
    return quotient + 1
  end
  return quotient
end

-- The TTL in milliseconds of state that matters for `lifetime` more microseconds: rounded up, and one
-- more because the server's idea of a key's age may lag behind `now`. State and `now` decide; a TTL
-- only removes what no longer matters.
local function ttl(lifetime)
  if ARGV[1] ~= '' then
    return '3600000'
  end
  lifetime = lifetime + 999
  return integer((lifetime - lifetime % 1000) / 1000 + 1)
end

-- Errors of this script begin with a word that src/store/redis/error.rs knows, so that no other text of the server
-- has to be shown.
local function foreign()
  error('RATELIMIT-FOREIGN', 0)
end

-- Above every time and count of ours, and exact in a Lua number.
local TOO_LARGE = 9007199254740992

-- State of one time and one count is a single negative number: sixteen digits of time, then the digits of the
-- count. The sign marks it as ours, because what other programs keep is ids, counts and time stamps above zero. It
-- costs nothing: up to a count of 999 Redis keeps the number in 8 bytes, as an integer; above that as a short
-- string. A text may follow after a comma; read_count returns it last, nil where there is none.
local function read_count(key)
  local state = redis.call('GET', key)
  if not state then
    return nil
  end
  local count, text
  -- Digits alone: tonumber() reads spaces, exponents and `nan` too.
  if string.find(state, '^%-%d+$') then
    count = tonumber(string.sub(state, 18))
  else
    text = string.match(state, '^%-%d+,(.+)$')
    count = text and tonumber(string.match(state, '^%d+', 18))
  end
  local at = tonumber(string.sub(state, 2, 17))
  if not count or at >= TOO_LARGE or count >= TOO_LARGE then
    foreign()
  end
  return at, count, text
end

-- Without a lifetime the key keeps the TTL that it has.
local function write_count(key, at, count, lifetime, text)
  -- The digits of the time in two halves, for the sake of integer()'s short way.
  local low = at % 100000000
  local state
  if count < 2147483648 then
    state = string.format('-%08d%08d%d', (at - low) / 100000000, low, count)
  else
    state = string.format('-%08d%08d%.0f', (at - low) / 100000000, low, count)
  end
  if text then
    state = state .. ',' .. text
  end
  if lifetime then
    redis.call('SET', key, state, 'PX', ttl(lifetime))
  else
    redis.call('SET', key, state, 'KEEPTTL')
  end
end

-- `number` in `width` bytes, the highest first, and back.
local function pack(number, width)
  local bytes = ''
  for _ = 1, width do
    bytes = string.char(number % 256) .. bytes
    number = floor(number / 256)
  end
  return bytes
end

local function unpack_at(bytes, from, width)
  local number = 0
  for i = from, from + width - 1 do
    number = number * 256 + string.byte(bytes, i)
  end
  return number
end
