--[[
  The keys of the call: each is read once and written once.

  The state of a key is three values: a time, a count and a text (include/state.lua). An algorithm that stores a list or
  a sorted set has values of its own, and the functions `load` and `store` to read and write them.
]]
-- uses: prelude state error call

-- What the keys hold, where that is a string.
local values = reads_strings and call('MGET', unpack(KEYS)) or {}

-- Raises an error where a key exists although MGET has no value of it: it is of another type.
local function check_is_new(k)
  local key = KEYS[k]
  if call('EXISTS', key) == 1 then
    error('WRONGTYPE', 0)
  end
end

-- Writes a state that is a string.
local function write(algorithm, k, lifetime, time, count, text)
  local key, value_of = KEYS[k], algorithm.value_of or value_of
  if lifetime == REMOVE then
    if not values[k] then
      return check_is_new(k)
    end
    call('DEL', key)
  elseif lifetime == KEEP_TTL and not values[k] then
    error('RATELIMIT-ALGORITHM the algorithm keeps the TTL of a key that does not exist', 0)
  elseif lifetime == KEEP_TTL then
    call('SET', key, value_of(time, count, text), 'KEEPTTL')
  elseif values[k] then
    call('SET', key, value_of(time, count, text), 'PX', ttl(lifetime))
  elseif not call('SET', key, value_of(time, count, text), 'PX', ttl(lifetime), 'NX') then
    error('WRONGTYPE', 0)
  end
end

-- The states as of the latest decision; their algorithms; the lifetimes of those that are to be written; and the first
-- record of the decision that changed each first.
local firsts, seconds, thirds, owners, lifetimes, changed_by = {}, {}, {}, {}, {}, {}

-- Raises an error where a decision of several charges could be carried out only in part.
local function check_type(k, algorithm)
  if not owners[k] and not algorithm.load and not values[k] then
    check_is_new(k)
  end
end

-- Returns the state of a key.
local function state_of(k, algorithm)
  if not owners[k] then
    if algorithm.load then
      firsts[k], seconds[k], thirds[k] = algorithm.load(KEYS[k])
    else
      firsts[k], seconds[k], thirds[k] = (algorithm.read or read_state)(values[k])
    end
    owners[k] = algorithm
  end
  return firsts[k], seconds[k], thirds[k]
end

-- Changes the state of a key in the decision with this first record.
local function set_state(record, k, lifetime, first, second, third)
  changed_by[k] = changed_by[k] or record
  firsts[k], seconds[k], thirds[k] = first, second, third
  if lifetime ~= KEEP_TTL or not lifetimes[k] then
    lifetimes[k] = lifetime
  end
end

-- Writes the state of a key if it changed, and forgets it. Returns nil, or the text of an error.
local function flush(k)
  local lifetime, owner, written, raised = lifetimes[k], owners[k], true, nil
  if lifetime then
    if owner.store then
      written, raised = pcall(owner.store, KEYS[k], lifetime, firsts[k], seconds[k], thirds[k])
    else
      written, raised = pcall(write, owner, k, lifetime, firsts[k], seconds[k], thirds[k])
    end
  elseif owner and not owner.load and not values[k] then
    written, raised = pcall(check_is_new, k)
  end
  owners[k], lifetimes[k] = nil, nil
  local problem = not written and text_of_error(raised) or nil
  if problem == 'WRONGTYPE' then
    -- The key was of another type before the first decision.
    changed_by[k] = nil
  end
  return problem
end
