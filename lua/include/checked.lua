--[[
  Validates what a custom algorithm returns, so that a mistake becomes an error that names the algorithm and the value.

  Included only in scripts with a custom algorithm.
]]
-- uses: muldiv state

-- Returns a * b / m, rounded up.
local function muldiv_up(a, b, m)
  local quotient, rest = muldiv(a, b, m)
  return rest > 0 and quotient + 1 or quotient
end

-- Wraps the functions of the custom algorithm `name`.
local function checked(name, functions)
  local function fail(problem)
    error('RATELIMIT-ALGORITHM the algorithm ' .. name .. ' ' .. problem, 0)
  end
  local function check(field, value, minimum)
    if type(value) ~= 'number' or value ~= math.floor(value) or value < minimum or value >= 2^53 then
      fail('must return an integer ' .. field)
    end
  end
  local function check_state(lifetime, minimum, time, count, text)
    check('lifetime', lifetime, minimum)
    if lifetime == REMOVE then
      -- The next decision of the call finds no state.
      return REMOVE, false
    end
    check('time', time, 0)
    check('count', count, 0)
    if text ~= nil and type(text) ~= 'string' then
      fail('must return a text or nil after the count')
    end
    -- An empty text would not be found again.
    return lifetime, time, count, text ~= '' and text or nil
  end
  if type(functions) ~= 'table' or type(functions.decide) ~= 'function' then
    fail('must return a table with the function decide')
  end

  local function decide(policy, cost, time, count, text, holder)
    local retry, remaining, reset, delay, mark, lifetime, new_time, new_count, new_text =
      functions.decide(policy, cost, time, count, text, holder)
    delay, mark = delay or 0, mark or 0
    check('retry', retry, NEVER)
    check('remaining', remaining, 0)
    check('reset', reset, 0)
    check('delay', delay, 0)
    check('mark', mark, 0)
    if retry ~= 0 and cost == 0 then
      fail('must admit a cost of 0')
    end
    if lifetime == nil then
      if retry == 0 and cost > 0 then
        fail('must return an integer lifetime')
      end
      return retry, remaining, reset, delay, mark
    end
    return retry, remaining, reset, delay, mark, check_state(lifetime, 1, new_time, new_count, new_text)
  end

  local function check_change(time, lifetime, ...)
    if lifetime == nil then
      return nil
    end
    if lifetime == KEEP_TTL and not time then
      fail('must not return KEEP_TTL for a key that does not exist')
    end
    return check_state(lifetime, KEEP_TTL, ...)
  end

  local function refund(policy, units, made, mark, time, ...)
    if functions.refund then
      return check_change(time, functions.refund(policy, units, made, mark, time, ...))
    end
  end

  local function renew(policy, units, time, ...)
    return check_change(time, functions.renew(policy, units, time, ...))
  end

  local function numbers(...)
    return { ... }
  end
  return {
    policy = functions.policy or numbers,
    decide = decide,
    refund = refund,
    renew = functions.renew and renew,
  }
end
