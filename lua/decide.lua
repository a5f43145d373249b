--[[
  The driver of a call with any decisions. It reads every distinct key once, makes one decision after another in
  memory, each all or nothing, and writes every changed key once.

  KEYS, ARGV, the reply and the functions of an algorithm are specified in lua/README.md. `make(name, brief)`, from
  src/store/redis/script/assemble.rs, returns the functions of the algorithm `name`; only the most frequent ones if
  `brief`.
]]
-- uses: prelude error call keys

-- The records of the reply, and its errors: the number of a decision's first record, then the text.
local reply, errors = {}, {}
-- The errors of keys that could not be written.
local failures = {}

local function report(record, cost, retry, remaining, reset, delay, mark)
  if retry ~= 0 then
    reply[record] = pack('<ddddd', 0, remaining, reset, retry, 0)
  else
    reply[record] = pack('<ddddd', 1 + cost, remaining, reset, mark, delay)
  end
end

-- Makes the takes of a run whose decisions have one charge: the most frequent decisions.
local function take_each(run)
  local charge = run.charges[1]
  local policy, algorithm, cost, holder = charge.rule.policy, charge.rule.algorithm, charge.cost, charge.holder
  for decision = run.next, run.decisions do
    run.next = decision + 1
    local k, record = key_of(run, decision, 1), run.record + decision
    local first, second, third = state_of(k, algorithm)
    local retry, remaining, reset, delay, mark, lifetime
    retry, remaining, reset, delay, mark, lifetime, first, second, third =
      algorithm.decide(policy, cost, first, second, third, holder)
    if lifetime and cost > 0 then
      set_state(record, k, lifetime, first, second, third)
    end
    report(record, cost, retry, remaining, reset, delay, mark)
  end
end

-- Refunds or renews a charge, or bans its key, in the decision with this first record.
local function change_state(record, run, charge, k)
  local rule, made = charge.rule, charge.made
  local change = function_of(rule, run.mode == REFUND and 'refund' or run.mode == BAN and 'ban' or 'renew')
  -- An administrator's refund names no charge.
  if made == 0 then
    made = nil
  end
  if rule.algorithm.load then
    -- It changes the key itself, so what was decided before is written first.
    failures[k] = failures[k] or flush(k)
    if failures[k] then
      error(failures[k], 0)
    end
    return change(KEYS[k], rule.policy, charge.cost, charge.holder, made)
  end
  local first, second, third = state_of(k, rule.algorithm)
  local lifetime
  if run.mode == REFUND then
    lifetime, first, second, third =
      change(rule.policy, charge.cost, made, charge.mark, first, second, third, charge.holder)
  else
    lifetime, first, second, third = change(rule.policy, charge.cost, first, second, third, charge.holder)
  end
  if lifetime then
    set_state(record, k, lifetime, first, second, third)
  end
end

-- Evaluates `cost` units of a charge. Returns what the algorithm returns, as a table, with the cost.
local function plan(charge, k, cost)
  local algorithm = charge.rule.algorithm
  local first, second, third = state_of(k, algorithm)
  local retry, remaining, reset, delay, mark, lifetime
  retry, remaining, reset, delay, mark, lifetime, first, second, third =
    algorithm.decide(charge.rule.policy, cost, first, second, third, charge.holder)
  return {
    cost = cost, retry = retry, remaining = remaining, reset = reset, delay = delay, mark = mark,
    lifetime = lifetime, first = first, second = second, third = third,
  }
end

-- Counts the denials of charges with a penalty, in the decision with this first record, unless one of the keys is banned.
local function strike(record, run, decision, plans)
  for i, charge in ipairs(run.charges) do
    if charge.main and plans[i].retry ~= 0 then
      return
    end
  end
  for i, charge in ipairs(run.charges) do
    if charge.main and (charge.denied or plans[charge.main].retry ~= 0) then
      local k, rule = key_of(run, decision, i), charge.rule
      local lifetime, first, second, third = function_of(rule, 'strike')(rule.policy, state_of(k, rule.algorithm))
      if lifetime then
        set_state(record, k, lifetime, first, second, third)
        -- It may be banned now.
        plans[i] = plan(charge, k, 1)
      end
    end
  end
end

-- Makes a decision of any number of charges, in any mode but LEASE.
local function decide_all(run, decision)
  local mode, plans, admitted = run.mode, {}, true
  local charges_units, record = mode == TAKE or mode == UP_TO or mode == DEBIT, run.record + (decision - 1) * run.width
  for i, charge in ipairs(run.charges) do
    local k, cost = key_of(run, decision, i), charge.cost
    if #run.charges > 1 then
      check_type(k, charge.rule.algorithm)
    end
    if mode == REFUND or mode == RENEW then
      if cost > 0 then
        change_state(record + 1, run, charge, k)
      end
      cost = 0
    elseif mode == BAN then
      if charge.main then
        change_state(record + 1, run, charge, k)
      end
      cost = charge.main and 1 or 0
    end
    plans[i] = plan(charge, k, cost)
    if (mode == UP_TO or mode == DEBIT) and plans[i].retry ~= 0 then
      -- Charge what remains. Where nothing remains, a debit charges nothing; otherwise plan one unit for its retry time.
      plans[i] = plan(charge, k, math.max(mode == UP_TO and 1 or 0, math.min(cost, plans[i].remaining)))
    end
    admitted = admitted and (plans[i].retry == 0 or charge.shadow)
  end
  if run.has_penalties and charges_units then
    strike(record + 1, run, decision, plans)
  end
  for i, planned in ipairs(plans) do
    local k, now_planned = key_of(run, decision, i), planned
    if planned.retry == 0 and planned.cost > 0 and not (charges_units and admitted) then
      -- Not charged: report the state as it is.
      now_planned = plan(run.charges[i], k, 0)
    end
    if charges_units and planned.cost > 0 and now_planned.lifetime then
      set_state(record + 1, k, now_planned.lifetime, now_planned.first, now_planned.second, now_planned.third)
    end
    report(
      record + i, planned.cost, planned.retry, now_planned.remaining,
      now_planned.reset, planned.delay, planned.mark
    )
  end
end

-- Returns a lease, charges the cost, and leases units: at most a quarter of what remains, so that leases shrink to 0
-- near the limit and other instances find units too.
local function charge_and_lease(run)
  local charge, asked, k, record = run.charges[1], run.lease, key_of(run, 1, 1), run.record + 1
  local rule = charge.rule
  local return_lease, lease = function_of(rule, 'return_lease'), function_of(rule, 'lease')
  local lifetime, first, second, third
  if asked.units > 0 then
    lifetime, first, second, third =
      return_lease(rule.policy, asked.units, asked.spent, asked.name, state_of(k, rule.algorithm))
    if lifetime then
      set_state(record, k, lifetime, first, second, third)
    end
  end
  local planned, units, lasts, name, mark = plan(charge, k, charge.cost), 0, 0, 0, 0
  if planned.lifetime and planned.cost > 0 then
    set_state(record, k, planned.lifetime, planned.first, planned.second, planned.third)
  end
  if planned.retry == 0 then
    units = math.min(asked.wanted, floor(planned.remaining / 4))
    lasts, name, mark, lifetime, first, second, third = lease(rule.policy, units, state_of(k, rule.algorithm))
    if units > 0 then
      set_state(record, k, lifetime, first, second, third)
      local after = plan(charge, k, 0)
      planned.remaining, planned.reset = after.remaining, after.reset
    end
  end
  report(record, planned.cost, planned.retry, planned.remaining, planned.reset, planned.delay, planned.mark)
  reply[record + 1] = pack('<ddddd', units, lasts, name, mark, 0)
end

-- Makes the decisions of a run, from `run.next` on.
local function make_decisions(run)
  if run.mode == TAKE and #run.charges == 1 and not run.charges[1].shadow then
    return take_each(run)
  end
  for decision = run.next, run.decisions do
    run.next = decision + 1
    if run.mode == LEASE then
      charge_and_lease(run)
    else
      decide_all(run, decision)
    end
  end
end

-- Puts an error in the place of a decision.
local function fail(run, decision, text)
  local first = run.record + (decision - 1) * run.width
  for record = first + 1, first + run.width do
    reply[record] = pack('<ddddd', 0, 0, 0, 0, 0)
  end
  errors[#errors + 1] = first
  errors[#errors + 1] = text
end

for _, run in ipairs(runs) do
  while run.next <= run.decisions do
    local made, raised = pcall(make_decisions, run)
    if not made then
      fail(run, run.next - 1, text_of_error(raised))
    end
  end
end

for k = 1, #KEYS do
  failures[k] = failures[k] or flush(k)
end
if next(failures) then
  -- Whether the decision with this first record stands although the key of this charge, which is against a penalty, could
  -- not be written, because the server has no memory, cannot save or has too few replicas. Then the penalty has not
  -- counted the denial, and does not ban the key. A read-only server is left by the client, so there the decision fails.
  local function stands(run, record, charge, problem)
    local takes_no_writes = find(problem, 'OOM', 1, true) or find(problem, 'MISCONF', 1, true) or
      find(problem, 'NOREPLICAS', 1, true)
    if not run.charges[charge].main or run.mode == BAN or not takes_no_writes then
      return false
    end
    local place = record + charge - 1
    if struct.unpack('<d', reply[place]) ~= 0 then
      return true
    end
    for i, other in ipairs(run.charges) do
      if not other.main and not other.shadow and struct.unpack('<d', reply[record + i - 1]) == 0 then
        -- Denied without the ban.
        reply[place] = pack('<ddddd', 2, 0, 0, 0, 0)
        return true
      end
    end
    return false
  end

  for _, run in ipairs(runs) do
    for decision = 1, run.decisions do
      local record = run.record + (decision - 1) * run.width + 1
      for charge = 1, #run.charges do
        local k = key_of(run, decision, charge)
        -- What was decided before the key was changed does not depend on the failed write.
        local depends = failures[k] and record >= (changed_by[k] or 0)
        if depends and not stands(run, record, charge, failures[k]) then
          fail(run, decision, failures[k])
        end
      end
    end
  end
end

local records = table.concat(reply)
records = pack('<d', now) .. records
if #errors == 0 then
  return records
end
return { records, unpack(errors) }
