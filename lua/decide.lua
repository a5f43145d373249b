--[[
  The driver: makes the decisions of a call one after another, each all or nothing.

  KEYS, ARGV, the reply and the functions of an algorithm are specified in lua/README.md. `make(name, leasing)`, from
  src/store/redis/script/assemble.rs, returns the functions of the algorithm `name`.
]]
-- uses: prelude

-- Returns the text of a raised error. Redis 7 raises a table, older versions raise a text.
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

-- The fast path for the most frequent call, one decision with one charge. It saves a fifth of the call's time.
if #KEYS == 1 and ARGV[#ARGV - 4] == 'take' then
  local _, _, _, charge = make(ARGV[3])
  if charge then
    local cost = tonumber(ARGV[#ARGV])
    local succeeded, retry, remaining, reset, delay, mark = pcall(charge, KEYS[1], cost, 5)
    if not succeeded then
      return { problem_of(retry), now }
    end
    if retry ~= 0 then
      return { 0, remaining, reset, retry, 0, now }
    end
    return { 1 + cost, remaining, reset, mark, delay, now }
  end
end

-- The fields of a policy.
local PLAN, REFUND, RENEW, CHARGE, NAME, ARGUMENTS = 1, 2, 3, 4, 5, 6
-- Preallocated: growing a table costs as much as a decision.
local policies, arg = { false }, 3
for i = 1, tonumber(ARGV[2]) do
  local plan, refund, renew, charge = make(ARGV[arg])
  policies[i] = { plan, refund, renew, charge, ARGV[arg], arg + 2 }
  arg = arg + 2 + tonumber(ARGV[arg + 1])
end

local reply, size = { 0, 0, 0, 0, 0, 0 }, 0

local function report(granted, remaining, reset, retry, delay)
  reply[size + 1], reply[size + 2], reply[size + 3] = granted, remaining, reset
  reply[size + 4], reply[size + 5] = retry, delay
  size = size + 5
end

-- Plans the charge at ARGV[at]. Returns the plan and its cost. Refunds and renewals are carried out here.
local function plan_charge(mode, key, at)
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
      change(key, cost, policy[ARGUMENTS], made ~= 0 and made or nil, mark)
    end
    cost = 0
  end
  local plan = policy[PLAN](key, cost, policy[ARGUMENTS])
  if mode == 'up-to' and plan.retry ~= 0 then
    -- Charge what remains. Where nothing remains, plan one unit for its retry time.
    cost = math.max(1, plan.remaining)
    plan = policy[PLAN](key, cost, policy[ARGUMENTS])
  end
  return plan, cost
end

-- Makes the decision whose charges start at ARGV[at] and whose keys start at KEYS[keys + 1].
local function decide(mode, charges, at, keys)
  if charges == 1 and mode == 'take' then
    local policy, cost = policies[tonumber(ARGV[at])], tonumber(ARGV[at + 1])
    if policy[CHARGE] then
      local retry, remaining, reset, delay, mark = policy[CHARGE](KEYS[keys + 1], cost, policy[ARGUMENTS])
      if retry ~= 0 then
        return report(0, remaining, reset, retry, 0)
      end
      return report(1 + cost, remaining, reset, mark, delay)
    end
  end
  if mode == 'lease' then
    local policy, cost = policies[tonumber(ARGV[at])], tonumber(ARGV[at + 1])
    local wanted, returned = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local units, spent = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
    local _, _, _, _, lease = make(policy[NAME], true)
    local retry, remaining, reset, leased, lasts, name, mark =
      lease(KEYS[keys + 1], cost, policy[ARGUMENTS], wanted, returned, units, spent)
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
    local plan, cost = plan_charge(mode, KEYS[keys + i], at + (mode == 'refund' and 4 or 2) * (i - 1))
    plans[i], costs[i] = plan, cost
    admitted = admitted and plan.retry == 0
  end
  local charging = mode == 'take' or mode == 'up-to'
  if charging then
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
  local charged = charging and admitted
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
  -- The arguments of one decision.
  local arguments = mode == 'lease' and 6 or (mode == 'refund' and 4 or 2) * charges
  arg = arg + 3
  for _ = 1, decisions do
    local before = size
    local succeeded, raised = pcall(decide, mode, charges, arg, keys)
    if not succeeded then
      size = before + 1
      reply[size] = problem_of(raised)
    end
    arg = arg + arguments
    keys = keys + charges
  end
end
reply[size + 1] = now
-- Remove the preallocated entries that failed decisions did not fill.
for i = size + 2, 6 do
  reply[i] = nil
end
return reply
