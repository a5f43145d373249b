--[[
  What stands between the driver and an algorithm from outside: it says what is wrong with a plan instead
  of failing somewhere. `careful` also asks, after each write, whether the key has a TTL, and removes one
  that has none.
]]
local function checked(name, plan, refund, renew, careful)
  local function complain(problem)
    error('the algorithm ' .. name .. ' ' .. problem, 0)
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
    return change and function(key, units, arg)
      writing(key, function()
        change(key, units, arg)
      end)()
    end
  end
  local function planning(key, cost, arg)
    local planned = plan(key, cost, arg)
    if type(planned) ~= 'table' then
      complain('must return a table from plan')
    end
    planned.delay = planned.delay or 0
    for _, field in ipairs({ 'retry', 'remaining', 'reset', 'delay' }) do
      local value = planned[field]
      local least = field == 'retry' and -1 or 0
      if type(value) ~= 'number' or value ~= floor(value) or value < least or value > 9007199254740992 then
        complain('must plan an integer ' .. field)
      end
    end
    if planned.retry == 0 then
      if type(planned.charge) ~= 'function' then
        complain('must plan a function charge where retry is 0')
      end
      for _, field in ipairs({ 'remaining_after', 'reset_after' }) do
        if type(planned[field]) ~= 'number' then
          complain('must plan a number ' .. field .. ' where retry is 0')
        end
      end
    end
    planned.charge = writing(key, planned.charge)
    planned.repair = writing(key, planned.repair)
    return planned
  end
  return planning, changing(refund), changing(renew)
end
