--[[
  What stands between the driver and an algorithm from outside: it says what is wrong with a plan instead
  of failing somewhere. `careful` also asks, after each write, whether the key has a TTL, and removes one
  that has none.
]]
local function checked(name, plan, refund, renew, careful)
  local function complain(problem)
    error('RATELIMIT-ALGORITHM the algorithm ' .. name .. ' ' .. problem, 0)
  end
  if type(plan) ~= 'function' then
    complain('must return the function plan(key, cost, arg)')
  end
  local function writing(key, write)
    return write and function()
      write()
      if careful and redis.call('PTTL', key) == -1 then
        redis.call('DEL', key)
        complain('wrote its key without a TTL')
      end
    end
  end
  local function changing(change)
    return change and function(key, units, arg, made, mark)
      writing(key, function()
        change(key, units, arg, made, mark)
      end)()
    end
  end
  local function planning(key, cost, arg)
    local planned = plan(key, cost, arg)
    if type(planned) ~= 'table' then
      complain('must return a table from plan')
    end
    local function check(field, least)
      local value = planned[field]
      if type(value) ~= 'number' or value ~= floor(value) or value < least or value > TOO_LARGE then
        complain('must plan an integer ' .. field)
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
        complain('must plan a function charge where retry is 0')
      end
      check('remaining_after', 0)
      check('reset_after', 0)
    end
    planned.charge = writing(key, planned.charge)
    planned.repair = writing(key, planned.repair)
    return planned
  end
  return planning, changing(refund), changing(renew)
end
