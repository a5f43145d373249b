--[[
  Exact multiplication followed by division.
]]

-- Returns the quotient and the remainder of a * b / m, exactly. `a`, `b` and `m` are integers from 0 to 2^45, `m` is
-- at least 1. Where the product is 2^53 or more, `b` is processed in digits of 7 bits, highest first: every
-- intermediate result stays below 2^45 * 2^7 * 2 = 2^53.
local function muldiv(a, b, m)
  -- `* 1.0` makes it a float in Lua versions with integers, which would wrap around.
  local product = a * 1.0 * b
  if product < 2^53 then
    local quotient = product / m
    -- The same as floor(), without the cost of a call.
    quotient = quotient - quotient % 1
    return quotient, product - quotient * m
  end
  local quotient, rest = 0, 0
  local place = 2^42
  while place >= 1 do
    local digit = math.floor(b / place)
    b = b - digit * place
    local part = rest * 128 + a % m * digit
    local step = math.floor(part / m)
    quotient = quotient * 128 + math.floor(a / m) * digit + step
    rest = part - step * m
    place = place / 128
  end
  return quotient, rest
end
