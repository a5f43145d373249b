--[[
  Integers as bytes, the most significant byte first.
]]
-- uses: prelude

-- Returns `number` as `width` bytes.
local function pack(number, width)
  local bytes = ''
  for _ = 1, width do
    bytes = string.char(number % 256) .. bytes
    number = floor(number / 256)
  end
  return bytes
end

-- Returns the number in the `width` bytes from position `from` on.
local function unpack_at(bytes, from, width)
  local number = 0
  for i = from, from + width - 1 do
    number = number * 256 + string.byte(bytes, i)
  end
  return number
end
