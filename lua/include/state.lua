--[[
  The state of a key: a time, a count, and nil or a text with more state, which the algorithm defines.

  In Redis it is one string: 25 bytes, which are the version of the format, 2, then as little-endian doubles the time, the
  count, and when the key's TTL ends at the earliest; then the text. Lua has no other numbers, and reads these without
  parsing digits. In version 1, the end of the TTL is missing.

  A TTL is twice as long as the state matters. So most states of an active key are written in place, and the key keeps its
  TTL: that takes a third of the time. A TTL only frees memory: verdicts depend on the state and `now` only.
]]
-- uses: prelude
-- The retry time of a cost that is never admitted.
local NEVER = -1
-- Instead of a lifetime: state to remove, and state whose key keeps its TTL.
local REMOVE, KEEP_TTL = 0, -1

-- The TTL in milliseconds, as text, of a key that is needed for `time` more microseconds. Rounded up, plus 1 ms because the
-- server's idea of a key's age may lag behind `now`.
local function ttl(time)
  if manual_time ~= 0 then
    -- A manual clock does not move with the server's, so keys get a fixed TTL of one hour.
    return '3600000'
  end
  time = time + 1999
  return string.format('%d', (time - time % 1000) / 1000)
end

-- Returns the time, the count and the text of a value; false for the time without a key.
local function read_state(value)
  if not value then
    return false
  end
  local version, size = string.byte(value), #value
  local header = version == 1 and 17 or 25
  if version ~= 1 and version ~= 2 or size < header then
    error('RATELIMIT-FOREIGN', 0)
  end
  local at, count = struct.unpack('<dd', value, 2)
  -- Other programs store bytes of any kind: NaN is not below anything.
  if
    at % 1 ~= 0 or count % 1 ~= 0
    or not (at >= 0 and at < 2^53 and count >= 0 and count < 2^53)
  then
    error('RATELIMIT-FOREIGN', 0)
  end
  return at, count, size > header and string.sub(value, header + 1) or nil
end

-- Writes a state that matters for `lifetime` more microseconds, or removes it. `value` is what the key holds.
local function write_state(key, value, lifetime, at, count, text)
  if lifetime == REMOVE then
    return call('DEL', key)
  end
  local ends = value and string.byte(value) == 2 and struct.unpack('<d', value, 18) or 0
  local keeps = lifetime == KEEP_TTL or now + lifetime <= ends
  if not keeps then
    ends = now + 2 * lifetime
  end
  local state = pack('<Bddd', 2, at, count, ends)
  state = text and state .. text or state
  if not keeps then
    call('SET', key, state, 'PX', ttl(2 * lifetime))
  elseif not value then
    error('RATELIMIT-ALGORITHM the algorithm keeps the TTL of a key that does not exist', 0)
  elseif #state == #value then
    call('SETRANGE', key, '0', state)
  else
    call('SET', key, state, 'KEEPTTL')
  end
end
