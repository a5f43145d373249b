--[[
  Errors of one decision among others.
]]

-- Returns the text of a raised error. Redis 7 raises a table, older versions raise a text.
local function text_of_error(raised)
  local text = raised
  if type(raised) == 'table' then
    text = raised.err
  end
  if type(text) == 'string' then
    return text
  end
  return 'RATELIMIT-ALGORITHM an algorithm of the call raised an error without a text'
end
