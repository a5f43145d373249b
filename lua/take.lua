--[[
  The driver of a call that is only takes of one charge, under one algorithm, with a key that no other decision of the
  call uses: the most frequent call by far, alone or in a batch. It keeps no state between decisions, so it takes half
  the time of decide.lua for one decision and seven eighths for 64.

  KEYS, ARGV, the reply and the functions of an algorithm are specified in lua/README.md. `algorithm` and `ARGUMENTS`,
  the format of a policy's numbers, are from src/store/redis/script/assemble.rs.
]]
-- uses: prelude state
local decide, read, value_of = algorithm.decide, algorithm.read or read_state, algorithm.value_of or value_of

-- Makes a decision. Returns its record.
local function take(policy, cost, key, value)
  local retry, remaining, reset, delay, mark, lifetime, time, count, text = decide(policy, cost, read(value))
  if lifetime and cost > 0 then
    if value then
      call('SET', key, value_of(time, count, text), 'PX', ttl(lifetime))
    elseif not call('SET', key, value_of(time, count, text), 'PX', ttl(lifetime), 'NX') then
      -- MGET has no value of a key of another type.
      error('WRONGTYPE', 0)
    end
  elseif not value and call('EXISTS', key) == 1 then
    error('WRONGTYPE', 0)
  end
  if retry ~= 0 then
    return pack('<ddddd', 0, remaining, reset, retry, 0)
  end
  return pack('<ddddd', 1 + cost, remaining, reset, mark, delay)
end

local numbers = ARGV[1]
if #KEYS == 1 then
  -- An error is raised: it concerns no other decision.
  local policy, key = algorithm.policy(struct.unpack(ARGUMENTS, numbers, 25)), KEYS[1]
  return pack('<d', now) .. take(policy, struct.unpack('<d', numbers, 17), key, call('GET', key))
end

local values, reply, errors = call('MGET', unpack(KEYS)), {}, {}
local k, at = 0, 9
while k < #KEYS do
  -- A run of decisions with the same policy and cost.
  local decisions, cost = struct.unpack('<dd', numbers, at)
  local policy = algorithm.policy(struct.unpack(ARGUMENTS, numbers, at + 16))
  for i = k + 1, k + decisions do
    local made, record = pcall(take, policy, cost, KEYS[i], values[i])
    if not made then
      errors[#errors + 1] = i - 1
      errors[#errors + 1] = record
      record = pack('<ddddd', 0, 0, 0, 0, 0)
    end
    reply[i] = record
  end
  k, at = k + decisions, at + 8 + 8 * #ARGUMENTS
end
local records = table.concat(reply)
records = pack('<d', now) .. records
return #errors == 0 and records or { records, unpack(errors) }
