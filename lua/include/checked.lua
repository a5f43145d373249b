--[[
  Validates what a custom algorithm plans, so that a mistake becomes an error that names the algorithm and the field.

  Included only in scripts with a custom algorithm.
]]
-- uses: prelude

-- Wraps the functions of the algorithm `name`. `check_ttl` also checks, after each write, that the key has a TTL, and
-- deletes a key that has none.
local function checked(name, plan, refund, renew, check_ttl)
  local function fail(problem)
    error('RATELIMIT-ALGORITHM the algorithm ' .. name .. ' ' .. problem, 0)
  end
  if type(plan) ~= 'function' then
    fail('must return the function plan(key, cost, arg)')
  end
  local function checked_write(key, write)
    return write and function()
      write()
      if check_ttl and redis.call('PTTL', key) == -1 then
        redis.call('DEL', key)
        fail('wrote its key without a TTL')
      end
    end
  end
  local function checked_change(change)
    return change and function(key, units, arg, made, mark)
      checked_write(key, function()
        change(key, units, arg, made, mark)
      end)()
    end
  end
  local function checked_plan(key, cost, arg)
    local planned = plan(key, cost, arg)
    if type(planned) ~= 'table' then
      fail('must return a table from plan')
    end
    local function check(field, minimum)
      local value = planned[field]
      if type(value) ~= 'number' or value ~= floor(value) or value < minimum or value > TOO_LARGE then
        fail('must plan an integer ' .. field)
      end
    end
    planned.delay, planned.mark = planned.delay or 0, planned.mark or 0
    check('retry', -1)
    check('remaining', 0)
    check('reset', 0)
    check('delay', 0)
    check('mark', 0)
    if planned.retry == 0 then
      if type(planned.charge) ~= 'function' then
        fail('must plan a function charge where retry is 0')
      end
      check('remaining_after', 0)
      check('reset_after', 0)
    end
    planned.charge = checked_write(key, planned.charge)
    planned.repair = checked_write(key, planned.repair)
    return planned
  end
  return checked_plan, checked_change(refund), checked_change(renew)
end
