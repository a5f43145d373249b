--[[
  What the keys of the call hold. Each is read once.
]]
-- uses: prelude call

-- What the keys hold, where that is a string.
local values = (reads_strings or marks > 0) and call('MGET', unpack(KEYS)) or {}

-- Whether a key without a value may exist: MGET has none of a key of another type.
local some_exist = false
do
  local absent, count = nil, 0
  for k = 1, reads_strings and #KEYS - marks or 0 do
    if not values[k] then
      -- A copy has room for all of them. A table that grows takes much longer.
      absent, count = absent or { unpack(KEYS) }, count + 1
      absent[count] = KEYS[k]
    end
  end
  if absent then
    local key = absent[1]
    some_exist = call('EXISTS', key, unpack(absent, 2, count)) > 0
  end
end
