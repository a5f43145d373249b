--[[
  The state of a key: a time, a count, and nil or a text with more state, which the algorithm defines.

  In Redis it is one string: a minus sign, sixteen digits of the time, the digits of the count, and the text after a
  comma. The sign marks the value as written by this crate: other programs store ids, counts and timestamps, which are
  positive. Up to a count of 999 and without a text Redis stores the string as an integer in 8 bytes.
]]
-- uses: prelude

-- Returns the time, the count and the text of a value; false for the time without a key.
local function read_state(value)
  if not value then
    return false
  end
  local size, text = #value, nil
  -- A sign and two numbers of sixteen digits; a foreign value may have any length. Match digits first: tonumber() also
  -- accepts spaces, exponents and `nan`.
  if size > 33 or not find(value, '^%-%d+$') then
    local _, comma = find(sub(value, 1, 34), '^%-%d+,')
    if not comma then
      error(FOREIGN, 0)
    end
    size, value, text = comma - 1, sub(value, 1, comma - 1), sub(value, comma + 1)
  end
  if size < 18 then
    error(FOREIGN, 0)
  end
  -- `+ 0` makes a number as tonumber() does, without a call.
  local at, count = sub(value, 2, 17) + 0, sub(value, 18) + 0
  if at >= TOO_LARGE or count >= TOO_LARGE then
    error(FOREIGN, 0)
  end
  return at, count, text
end

-- Returns the value of a state.
local function value_of(at, count, text)
  local value = format('-%016d%d', at, count)
  return text and value .. ',' .. text or value
end
