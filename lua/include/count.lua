--[[
  State of one time and one count, as one negative number: sixteen digits of time, then the digits of the count.

  The sign marks the value as written by this crate: other programs store ids, counts and timestamps, which are
  positive. Up to a count of 999 Redis stores the number as an integer in 8 bytes; above that as a short string. After
  a comma, a text with more state may follow.
]]
-- uses: prelude

-- Returns the time, the count and the text; nil for the text where there is none, nil for all where there is no key.
local function read_count(key)
  local state = call('GET', key)
  if not state then
    return nil
  end
  local count, text
  -- Match digits first: tonumber() also accepts spaces, exponents and `nan`.
  if string.find(state, '^%-%d+$') then
    count = tonumber(string.sub(state, 18))
  else
    text = string.match(state, '^%-%d+,(.+)$')
    count = text and tonumber(string.match(state, '^%d+', 18))
  end
  local at = tonumber(string.sub(state, 2, 17))
  if not count or at >= TOO_LARGE or count >= TOO_LARGE then
    error(FOREIGN, 0)
  end
  return at, count, text
end

-- Writes the state with a TTL for `lifetime` microseconds. Without a lifetime the key keeps its TTL.
local function write_count(key, at, count, lifetime, text)
  -- Two halves of the time, so that `%d` can print both.
  local low = at % 100000000
  local state
  if count < 2147483648 then
    state = format('-%08d%08d%d', (at - low) / 100000000, low, count)
  else
    state = format('-%08d%08d%.0f', (at - low) / 100000000, low, count)
  end
  if text then
    state = state .. ',' .. text
  end
  if lifetime then
    call('SET', key, state, 'PX', ttl(lifetime))
  else
    call('SET', key, state, 'KEEPTTL')
  end
end
