--[[
  The state of a key: a time, a count, and nil or a text with more state, which the algorithm defines.

  In Redis it is one string: a byte with the version of the format, the time and the count as doubles, the least significant
  byte first, and the text. Lua has no other numbers, and reads these without parsing digits.
]]
-- uses: prelude

-- The version, and the bytes before the text.
local VERSION, SIZE = 1, 17

-- Returns the time, the count and the text of a value; false for the time without a key.
local function read_state(value)
  if not value then
    return false
  end
  local size = #value
  if size < SIZE then
    error(FOREIGN, 0)
  end
  local version, at, count = struct.unpack('<Bdd', value)
  -- Other programs store bytes of any kind: NaN is not below anything.
  if
    version ~= VERSION or at % 1 ~= 0 or count % 1 ~= 0
    or not (at >= 0 and at < TOO_LARGE and count >= 0 and count < TOO_LARGE)
  then
    error(FOREIGN, 0)
  end
  return at, count, size > SIZE and sub(value, SIZE + 1) or nil
end

-- Returns the value of a state.
local function value_of(at, count, text)
  local value = pack('<Bdd', VERSION, at, count)
  return text and value .. text or value
end
