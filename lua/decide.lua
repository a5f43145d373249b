--[[
  The driver: decides one decision after another, each all or nothing.

  An algorithm's file is the body of a function of `leasing`, that returns plan(key, cost, arg); where units
  can be refunded, refund(key, units, arg, made, mark); and where they are held, renew(key, units, arg). `arg` is
  the place of the algorithm's first argument in ARGV.

  plan reads `key`, writes nothing, and returns a table of

    retry            0: `cost` can be charged now; above 0: it can after so many microseconds; -1: never
    remaining        units that could be charged now, and
    reset            microseconds until the state is as good as new, both before the charge
    remaining_after  the same two after the charge; read only where `retry` is 0
    reset_after
    delay            nil, or the microseconds an admitted request has to wait for its turn
    mark             nil, or an integer that tells refund, together with the time, which charge this one was
    charge           function that writes the charge down, with a TTL
    repair           nil, or function that writes state down that the clock or the quota made stale,
                     called when the decision is a refusal

  A plan is carried out only when every plan of its decision admits. A cost of 0, and a decision that
  only peeks, writes nothing. Where the charge of one plan fails, as for a user who may run SET and not ZADD, those
  before it stay charged and the decision is an error: less is admitted then, never more. RedisStore::acl_rule
  prints a rule under which none fails.

  An algorithm that many requests ask may return take(key, cost, arg) after renew, nil where it has none:
  for a decision of one charge, the plan and its carrying out in one, without a table. It returns retry,
  what remains and reset after that, the delay, 0 for none, and the mark.

  Where `leasing` says that it is asked for, one whose units can be leased returns lease(key, cost, arg,
  wanted, name, units, spent) after take; nil where that cannot be done without admitting more than the limit
  at some time. It takes back a lease or a part of one: of the one that is called `name`, `units` units, of
  which `spent` were spent; nothing of one that has ended. Then it takes `cost`, and where that is admitted it
  leases up to `wanted` units more: at most a quarter of what is free then, so that a lease shrinks to
  nothing near the limit, and others find something too. It returns what take returns, without the delay, and
  then the units leased, how many microseconds the lease lasts from `now` on, its name, an integer, and the
  mark of its units. The instance that has a lease may spend its units, each at any time until it ends.

  renew keeps the units of this charge's holder, which is the argument after the last, from expiring.

  refund writes down that up to `units` units were returned of the charge that was made at the time `made` with the
  mark `mark`: as many as still count, and none that another charge took. Where `made` is nil an administrator
  returns the latest units, whosever they are. It keeps a TTL, and no key where nothing is left to know. A refund of a
  charge that counts no more writes nothing: its decision may be of an older quota, by which the state must not be
  read anew.

  ARGV[1]  the time, see include/prelude.lua
  ARGV[2]  the number of policies, then for each of them the algorithm's name, the number of its
           arguments, the arguments
  then for every run of decisions of one form what to do, their number, the number of charges of each,
  and for every charge which policy, counted from 1, and the cost; to 'lease' then the units wanted, and
  the name, the units and the units spent of what is taken back; to 'refund' when the charge was made, 0 for
  an administrator's, and its mark.
  KEYS     one for every charge, in the same order.

  What to do: 'take'; 'peek'; 'up-to', which takes as much of one charge's cost as there is; 'refund',
  which refunds the costs; 'renew', which keeps what the charges hold; 'lease', for one charge, see above.

  Reply: for every decision, one after the other, five integers for each of its charges: 0 where it was
  denied, else 1 and the units that were granted; what remains; reset; retry, or the mark where it was not
  denied; delay. What remains and reset are those after the charge where the decision was carried out. Of a
  lease six: the units that were granted are the cost and those leased, and where it was not denied, how long
  it lasts, its name and the mark of its units stand in the place of retry and delay. A decision that failed has
  one text instead, the error; the others of the call are not touched by it. Last, the time.
]]
-- What is told of a decision that failed. Redis 7 raises a table, where its elders raise a text.
local function problem_of(raised)
  local text = raised
  if type(raised) == 'table' then
    text = raised.err
  end
  if type(text) == 'string' then
    return text
  end
  return 'RATELIMIT-ALGORITHM an algorithm of the call raised an error without a text'
end

-- One decision of one charge, as most calls are: without what several need, which costs a fifth of the call.
if #KEYS == 1 and ARGV[#ARGV - 4] == 'take' then
  local _, _, _, take = make(ARGV[3])
  if take then
    local cost = tonumber(ARGV[#ARGV])
    local fine, retry, remaining, reset, delay, mark = pcall(take, KEYS[1], cost, 5)
    if not fine then
      return { problem_of(retry), now }
    end
    if retry ~= 0 then
      return { 0, remaining, reset, retry, 0, now }
    end
    return { 1 + cost, remaining, reset, mark, delay, now }
  end
end

local PLAN, REFUND, RENEW, TAKE, NAME, PLACE = 1, 2, 3, 4, 5, 6
-- Tables are made as large as they usually become: one that grows costs as much as a decision.
local policies, arg = { false }, 3
for i = 1, tonumber(ARGV[2]) do
  local plan, refund, renew, take = make(ARGV[arg])
  policies[i] = { plan, refund, renew, take, ARGV[arg], arg + 2 }
  arg = arg + 2 + tonumber(ARGV[arg + 1])
end

local reply, size = { 0, 0, 0, 0, 0, 0 }, 0

local function report(granted, remaining, reset, retry, delay)
  reply[size + 1], reply[size + 2], reply[size + 3] = granted, remaining, reset
  reply[size + 4], reply[size + 5] = retry, delay
  size = size + 5
end

-- The plan of one charge, which stands at `at` in ARGV, and its cost. Gives back and renews at once.
local function look(mode, key, at)
  local policy, cost = policies[tonumber(ARGV[at])], tonumber(ARGV[at + 1])
  if mode == 'refund' or mode == 'renew' then
    local change = policy[mode == 'refund' and REFUND or RENEW]
    if not change then
      local name = policy[NAME]
      error('RATELIMIT-ALGORITHM the algorithm ' .. name .. ' has no ' .. mode, 0)
    end
    if cost > 0 then
      local made, mark
      if mode == 'refund' then
        made, mark = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
      end
      change(key, cost, policy[PLACE], made ~= 0 and made or nil, mark)
    end
    cost = 0
  end
  local plan = policy[PLAN](key, cost, policy[PLACE])
  if mode == 'up-to' and plan.retry ~= 0 then
    -- What there is, or if there is nothing, when there will be something.
    cost = math.max(1, plan.remaining)
    plan = policy[PLAN](key, cost, policy[PLACE])
  end
  return plan, cost
end

-- The decision whose charges stand in ARGV from `at` on and whose keys in KEYS after `keys`.
local function decide(mode, charges, at, keys)
  if charges == 1 and mode == 'take' then
    local policy, cost = policies[tonumber(ARGV[at])], tonumber(ARGV[at + 1])
    if policy[TAKE] then
      local retry, remaining, reset, delay, mark = policy[TAKE](KEYS[keys + 1], cost, policy[PLACE])
      if retry ~= 0 then
        return report(0, remaining, reset, retry, 0)
      end
      return report(1 + cost, remaining, reset, mark, delay)
    end
  end
  if mode == 'lease' then
    local policy, cost = policies[tonumber(ARGV[at])], tonumber(ARGV[at + 1])
    local wanted, called = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local units, spent = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
    local _, _, _, _, lease = make(policy[NAME], true)
    local retry, remaining, reset, leased, lasts, name, mark =
      lease(KEYS[keys + 1], cost, policy[PLACE], wanted, called, units, spent)
    if retry ~= 0 then
      report(0, remaining, reset, retry, 0)
    else
      report(1 + cost + leased, remaining, reset, lasts, name)
    end
    size = size + 1
    reply[size] = mark or 0
    return
  end
  local plans, costs, admitted = {}, {}, true
  for i = 1, charges do
    local plan, cost = look(mode, KEYS[keys + i], at + (mode == 'refund' and 4 or 2) * (i - 1))
    plans[i], costs[i] = plan, cost
    admitted = admitted and plan.retry == 0
  end
  local takes = mode == 'take' or mode == 'up-to'
  if takes then
    for i, plan in ipairs(plans) do
      if costs[i] > 0 then
        if admitted then
          plan.charge()
        elseif plan.repair then
          plan.repair()
        end
      end
    end
  end
  local charged = takes and admitted
  for i, plan in ipairs(plans) do
    report(
      plan.retry == 0 and 1 + costs[i] or 0,
      charged and plan.remaining_after or plan.remaining,
      charged and plan.reset_after or plan.reset,
      plan.retry == 0 and plan.mark or plan.retry,
      plan.delay or 0
    )
  end
end

local keys = 0
while arg < #ARGV do
  local mode, charges = ARGV[arg], tonumber(ARGV[arg + 2])
  local decisions = tonumber(ARGV[arg + 1])
  local numbers = mode == 'lease' and 6 or (mode == 'refund' and 4 or 2) * charges
  arg = arg + 3
  for _ = 1, decisions do
    local before = size
    local fine, raised = pcall(decide, mode, charges, arg, keys)
    if not fine then
      size = before + 1
      reply[size] = problem_of(raised)
    end
    arg = arg + numbers
    keys = keys + charges
  end
end
reply[size + 1] = now
-- The room that errors left unused.
for i = size + 2, 6 do
  reply[i] = nil
end
return reply
