--[[
  The driver: decides one decision after another, each all or nothing.

  An algorithm's file is the body of a function that returns plan(key, cost, arg); where units can be
  given back, refund(key, units, arg); and where they are held, renew(key, units, arg). `arg` is the place of the algorithm's first argument in ARGV.

  plan reads `key`, writes nothing, and returns a table of

    retry            0: `cost` can be charged now; above 0: it can after so many microseconds; -1: never
    remaining        units that could be charged now, and
    reset            microseconds until the state is as good as new, both before the charge
    remaining_after  the same two after the charge; read only where `retry` is 0
    reset_after
    delay            nil, or the microseconds an admitted request has to wait for its turn
    charge           function that writes the charge down, with a TTL
    repair           nil, or function that writes state down that the clock or the quota made stale,
                     called when the decision is a refusal

  A plan is carried out only when every plan of its decision admits. A cost of 0, and a decision that
  only peeks, writes nothing.

  renew keeps the units of this charge's holder, which is the argument after the last, from expiring.

  refund writes down that up to `units` units, the latest ones, were given back, never more than were
  charged and still count; with a TTL, and without the key where nothing is left.

  ARGV[1]  the time, see include/prelude.lua
  then for every decision what to do, the number of its charges, and
  for every charge: the algorithm's name, the cost, the number of arguments, the arguments.
  KEYS     one for every charge, in the same order.

  What to do: 'take'; 'peek'; 'up-to', which takes as much of one charge's cost as there is; 'refund',
  which gives the costs back; 'renew', which keeps what the charges hold.

  Reply: five integers for every charge, one after the other: 0 where it was refused, else 1 and the units
  that were granted; what remains; reset; retry; delay. What remains and reset are those after the charge
  where the decision was carried out.
]]
local reply, keys, arg = {}, 0, 2
while arg < #ARGV do
  local mode, charges = ARGV[arg], tonumber(ARGV[arg + 1])
  arg = arg + 2

  local plans, costs, admitted = {}, {}, true
  for i = 1, charges do
    keys = keys + 1
    local name, cost = ARGV[arg], tonumber(ARGV[arg + 1])
    if mode == 'refund' or mode == 'renew' then
      local change = (mode == 'refund' and refunds or renewals)[name]
      if not change then
        error('the algorithm ' .. name .. ' has no ' .. mode, 0)
      end
      if cost > 0 then
        change(KEYS[keys], cost, arg + 3)
      end
      cost = 0
    end
    local plan = algorithms[name](KEYS[keys], cost, arg + 3)
    if mode == 'up-to' and plan.retry ~= 0 then
      -- What there is, or if there is nothing, when there will be something.
      cost = math.max(1, plan.remaining)
      plan = algorithms[name](KEYS[keys], cost, arg + 3)
    end
    plans[i], costs[i] = plan, cost
    admitted = admitted and plan.retry == 0
    arg = arg + 3 + tonumber(ARGV[arg + 2])
  end

  local take = mode == 'take' or mode == 'up-to'
  for i, plan in ipairs(plans) do
    if take and costs[i] > 0 then
      if admitted then
        plan.charge()
      elseif plan.repair then
        plan.repair()
      end
    end
    local charged = take and admitted
    local at = #reply
    reply[at + 1] = plan.retry == 0 and 1 + costs[i] or 0
    reply[at + 2] = charged and plan.remaining_after or plan.remaining
    reply[at + 3] = charged and plan.reset_after or plan.reset
    reply[at + 4] = plan.retry
    reply[at + 5] = plan.delay or 0
  end
end
return reply
