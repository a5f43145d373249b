--[[
  The states of keys in memory: each key is written once, after all decisions.

  A state is three values: a time, a count and a text (include/state.lua). An algorithm that stores a list or a sorted set has
  its own values, and the functions `load` and `store` to read and write them.
]]
-- uses: prelude text_of_error state keys

-- By key, where the state changed, or took several commands to read: a table of `rule`, `time`, `count`, `text`; and, where it
-- changed, `lifetime`, and `record`, the first one of the decision that changed it first.
local states = {}

-- Returns the state of a key.
local function state_of(k, rule)
  local state = states[k]
  if state then
    return state.time, state.count, state.text
  end
  local key = KEYS[k]
  if rule.algorithm.load then
    local time, count, text = rule.algorithm.load(key)
    states[k] = { rule = rule, time = time, count = count, text = text }
    return time, count, text
  end
  local value = values[k]
  if some_exist and not value and call('EXISTS', key) == 1 then
    error('WRONGTYPE', 0)
  end
  return read_state(value)
end

-- Changes the state of a key in the decision with this first record.
local function set_state(record, k, rule, lifetime, time, count, text)
  local state = states[k] or { rule = rule }
  states[k], state.record = state, state.record or record
  state.time, state.count, state.text = time, count, text
  if lifetime ~= KEEP_TTL or not state.lifetime then
    state.lifetime = lifetime
  end
end

-- By key: why its state could not be written, and the first record of the decision that changed it first.
local failures, failed_from = {}, {}

-- Writes the state of a key if it changed, and forgets it.
local function flush(k)
  local state = states[k]
  states[k] = nil
  if not state or not state.lifetime or failures[k] then
    return
  end
  local algorithm, lifetime, written, raised = state.rule.algorithm, state.lifetime, nil, nil
  if algorithm.store then
    written, raised = pcall(algorithm.store, KEYS[k], lifetime, state.time, state.count, state.text)
  else
    written, raised = pcall(write_state, KEYS[k], values[k], lifetime, state.time, state.count, state.text)
  end
  if not written then
    failures[k], failed_from[k] = text_of_error(raised), state.record
  end
end
