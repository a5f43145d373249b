--[[
  The reply; see "The reply" in lua/README.md.
]]
-- uses: prelude usual
if only and not left then
  return only
end
if #reply[1] == 40 then
  -- The usual decisions have it already.
  reply[1] = pack('<d', now) .. reply[1]
end
local records
if count_of_records == 2 then
  -- The usual case of several, without a call.
  records = reply[1] .. reply[2]
else
  records = table.concat(reply, '', 1, count_of_records)
end
return errors and #errors > 0 and { records, unpack(errors) } or records
