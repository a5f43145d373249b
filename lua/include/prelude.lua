--[[
  The clock, and names for what every script uses.

  All times are microseconds since 1970. All numbers are integers below 2^53, which a Lua number holds exactly.

  Nothing in the include files is global, and loading them writes nothing.
]]
-- `try` returns an error as a table.
local call, try, pack = redis.call, redis.pcall, struct.pack

-- ARGV[1] holds the numbers of the call. The first one is the time, or 0 for the server's clock. Only tests send a time (a
-- manual clock). The second one is where the usual decisions end, and the others start. The next ones are the first run of
-- usual decisions up to its first charge, if there are any. They are read together, because each call of unpack() costs as
-- much as six numbers. The headroom of a charge is what must remain; of a charge against a penalty, it is a position.
local request = ARGV[1]
local manual_time, others, decisions, width, before, records, cost, headroom, kind, first, second, third =
  struct.unpack('<dHHHHHdHBddd', request)
local now = manual_time
if manual_time == 0 then
  -- Read once, because TIME advances while a script runs on Redis before 7.2.
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
