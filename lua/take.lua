--[[
  The driver of a call that is only takes of one charge, under one algorithm, with a key that no other decision of the
  call uses: the most frequent call by far, alone or in a batch. It keeps no states, rules and errors of several charges, so
  it takes fewer instructions than decide.lua.

  KEYS, ARGV, the reply and the functions of an algorithm are specified in lua/README.md. `algorithm` and `ARGUMENTS`,
  the format of a policy's numbers, are from src/store/redis/script.rs.
]]
-- uses: prelude state
local numbers = ARGV[1]
-- What the keys hold, which their records replace, and the latest key.
local values, k = nil, 0

-- Makes the decisions of a run, up to the key `last`.
local function take(policy, cost, last)
  local keys, decide = KEYS, algorithm.decide
  -- The latest state that was charged, and its value, TTL and record. Keys that were idle have the same ones.
  local at, used, rest, lived, state, expiry, record
  -- Whether they are of a key without a state: all such keys have the same.
  local is_of_new = false
  while k < last do
    k = k + 1
    local key, value = keys[k], values[k]
    if value or not is_of_new then
      local retry, remaining, reset, delay, mark, lifetime, time, count, text = decide(policy, cost, read_state(value))
      if time ~= at or count ~= used or lifetime ~= lived or text ~= rest or retry ~= 0 then
        if retry ~= 0 then
          at, record = nil, pack('<ddddd', 0, remaining, reset, retry, 0)
        else
          -- The text of a state that was not charged is as it was stored, and says less.
          at, record = (lifetime or not text) and time, pack('<ddddd', 1 + cost, remaining, reset, mark, delay)
        end
        if lifetime then
          state, expiry = value_of(time, count, text), ttl(lifetime)
        end
        used, rest, lived = count, text, lifetime
      end
      is_of_new = not value
    end
    if not lived or cost == 0 then
      if not value and call('EXISTS', key) == 1 then
        error('WRONGTYPE', 0)
      end
    elseif value then
      call('SET', key, state, 'PX', expiry)
    elseif not call('SET', key, state, 'PX', expiry, 'NX') then
      -- MGET has no value of a key of another type.
      error('WRONGTYPE', 0)
    end
    values[k] = record
  end
end

if #KEYS == 1 then
  -- An error is raised: it concerns no other decision.
  local key = KEYS[1]
  values = { call('GET', key) }
  take(algorithm.policy(struct.unpack(ARGUMENTS, numbers, 25)), struct.unpack('<d', numbers, 17), 1)
  local record = values[1]
  return pack('<d', now) .. record
end

values = call('MGET', unpack(KEYS))
local errors, place = {}, 9
while k < #KEYS do
  -- A run of decisions with the same policy and cost.
  local decisions, cost = struct.unpack('<dd', numbers, place)
  local policy, last = algorithm.policy(struct.unpack(ARGUMENTS, numbers, place + 16)), k + decisions
  while k < last do
    local made, problem = pcall(take, policy, cost, last)
    if not made then
      errors[#errors + 1] = k - 1
      errors[#errors + 1] = problem
      values[k] = pack('<ddddd', 0, 0, 0, 0, 0)
    end
  end
  place = place + 8 + 8 * #ARGUMENTS
end
local records = table.concat(values)
records = pack('<d', now) .. records
return #errors == 0 and records or { records, unpack(errors) }
