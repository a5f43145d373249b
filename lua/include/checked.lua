--[[
  What stands between the driver and an algorithm from outside: it says what is wrong with a plan instead
  of failing somewhere. `careful` also asks, after each write, whether the key has a TTL.
]]
local function checked(name, plan, careful)
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
        complain('wrote its key without a TTL')
      end
    end
  end
  return function(key, cost, arg)
    local planned = plan(key, cost, arg)
    if type(planned) ~= 'table' then
      complain('must return a table from plan')
    end
    for _, field in ipairs({ 'retry', 'remaining', 'reset' }) do
      local value = planned[field]
      if type(value) ~= 'number' or value ~= floor(value) then
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
end
