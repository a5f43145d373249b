--[[
  The state of a key: a time, a count, and nil or a text with more state, which the algorithm defines.

  In Redis it is one string: 17 bytes, which are the version of the format, 1, then the time and the count as little-endian
  doubles; then the text. Lua has no other numbers, and reads these without parsing digits.
]]
-- uses: prelude

-- Returns the time, the count and the text of a value; false for the time without a key.
local function read_state(value)
  if not value then
    return false
  end
  local size = #value
  if size < 17 then
    error('RATELIMIT-FOREIGN', 0)
  end
  local version, at, count = struct.unpack('<Bdd', value)
  -- Other programs store bytes of any kind: NaN is not below anything.
  if
    version ~= 1 or at % 1 ~= 0 or count % 1 ~= 0
    or not (at >= 0 and at < 2^53 and count >= 0 and count < 2^53)
  then
    error('RATELIMIT-FOREIGN', 0)
  end
  return at, count, size > 17 and string.sub(value, 18) or nil
end

-- Returns the value of a state.
local function value_of(at, count, text)
  local value = pack('<Bdd', 1, at, count)
  return text and value .. text or value
end
