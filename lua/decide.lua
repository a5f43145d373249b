--[[
  The driver: decides one decision after another, each all or nothing.

  An algorithm is algorithms[name](key, cost, arg), where `arg` is the place of its first argument in
  ARGV. It plans: it reads `key`, writes nothing, and returns a table of

    retry            0: `cost` can be charged now; above 0: it can after so many microseconds; -1: never
    remaining        units that could be charged now, and
    reset            microseconds until the state is as good as new, both before the charge
    remaining_after  the same two after the charge; read only where `retry` is 0
    reset_after
    delay            nil, or the microseconds an admitted request has to wait for its turn
    charge           function that writes the charge down
    repair           nil, or function that writes state down that the clock or the quota made stale,
                     called when the decision is a refusal

  A plan is carried out only when every plan of its decision admits. A cost of 0, and a decision that
  only peeks, writes nothing.

  ARGV[1]  the time, see prelude.lua
  then for every decision: 'take' or 'peek', the number of its charges, and
  for every charge: the algorithm's name, the cost, the number of arguments, the arguments.
  KEYS     one for every charge, in the same order.

  Reply: five integers for every charge, one after the other: whether it would have been admitted (1 or
  0), what remains, reset, retry and delay. What remains and reset are those after the charge where the
  decision admits.
]]
local reply, keys, arg = {}, 0, 2
while arg < #ARGV do
  local take, charges = ARGV[arg] == 'take', tonumber(ARGV[arg + 1])
  arg = arg + 2

  local plans, costs, admitted = {}, {}, true
  for i = 1, charges do
    keys = keys + 1
    costs[i] = tonumber(ARGV[arg + 1])
    plans[i] = algorithms[ARGV[arg]](KEYS[keys], costs[i], arg + 3)
    admitted = admitted and plans[i].retry == 0
    arg = arg + 3 + tonumber(ARGV[arg + 2])
  end

  for i = 1, charges do
    local plan = plans[i]
    if take and costs[i] > 0 then
      if admitted then
        plan.charge()
      elseif plan.repair then
        plan.repair()
      end
    end
    local charged = take and admitted
    local at = #reply
    reply[at + 1] = plan.retry == 0 and 1 or 0
    reply[at + 2] = charged and plan.remaining_after or plan.remaining
    reply[at + 3] = charged and plan.reset_after or plan.reset
    reply[at + 4] = plan.retry
    reply[at + 5] = plan.delay or 0
  end
end
return reply
