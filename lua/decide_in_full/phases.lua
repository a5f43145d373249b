--[[
  A decision of any action, in three phases: it changes the states, for a refund, a renewal or a ban; it plans each charge; and
  it charges all of them, or reports each as it is. What an action does is in the call: `Action::spec` in src/store/action.rs.

  The run of the decision is a table of

    at             its place
    change         'refund', 'renew' or 'ban'; nil where the states are not changed first
    charges        whether what is admitted is charged
    least          the units that are charged at least where not all remain; nil where none are then
    lease          the units to lease, and of the returned lease the name, the units, the spent units and when it was made; or nil
    counts         whether denials are counted for penalties
    counts_earlier whether one of them was decided by an earlier call
    stamp          the charge that records the settlement of a token, which comes last; or nil
    ordinary       the number of charges without the stamp

  and of a table for each charge:

    rule, holder   what is charged
    reset_mark     where units that were charged before are refunded or returned, the index of the key with the mark of a reset
    cost           the units; those to refund or renew, or the microseconds of a ban, where the state is changed
    made, made_mark  when the charge was made that is refunded, and its mark; of a stamp, made_mark is when its token expires
    shadow         whether its denial denies nothing
    main           of a charge against the penalty of another charge, the place of that one; otherwise false
    denied         whether an earlier call denied that one
    headroom       the units that must remain
    guarantee      the charge of the guarantee that lifts the headroom if it fits
    pool           of a guarantee whose units are refunded, the charge of its pool
    returned       the whole units that a refund has returned
    k              the index of its key
    units          those that are planned, and what decide() returned for them
]]
-- uses: prelude call state keys states failures usual
-- The functions that change a state, by their numbers.
local CHANGES = { 'refund', 'renew', 'ban' }

local run = {}

-- Reads the run at this place.
local function open_run(at)
  local change, charges, least, decisions, width, records, is_shared, after = read_run(at)
  run = {
    at = at, change = CHANGES[change], charges = charges == 1, least = least >= 0 and least or nil, width = width, records = records,
    is_take = change == 0 and charges == 1 and least < 0 and records == width,
    indices = is_shared == 1 and after - decisions * width - 1 or nil, counts = false, counts_earlier = false, ordinary = width,
  }
  for i = 1, width do
    local rule, cost, holder, made, mark = unpack(numbers, at + 5 + 5 * i, at + 9 + 5 * i)
    run[i] = {
      rule = rules[rule], holder = ARGV[holder], reset_mark = -holder, cost = cost, made = made, made_mark = mark, shadow = made == SHADOW,
      main = made <= BAN and mark, denied = made == DENIED, headroom = (made == 0 or made == SHADOW) and mark or 0,
      guarantee = false, pool = false, returned = 0, k = 0, units = 0, retry = 0, remaining = 0, reset = 0, delay = 0, mark = 0, lifetime = 0, time = 0, count = 0, text = 0,
    }
    if rules[rule].name == 'guarantee' then
      run[i].pool = change == 1 and run[i - 1]
    elseif made > STAMP and i > 1 and run[i - 1].rule.name == 'guarantee' then
      run[i].guarantee = run[i - 1]
    end
    if made <= BAN then
      run.counts, run.counts_earlier = run.charges and made ~= COUNTED_LATER, run.counts_earlier or made == DENIED
    elseif made == STAMP then
      run.stamp, run.ordinary = run[i], i - 1
    end
  end
  if records > width then
    local wanted, name, units, spent, made = unpack(numbers, at + 10 + 5 * width, at + 14 + 5 * width)
    run.lease = { wanted = wanted, name = name, units = units, spent = spent, made = made }
  end
end

-- Evaluates `units` units of a charge, at least one, beside the units that must remain. A denial is of both.
local function evaluate_beside(charge, units, time, count, text)
  local rule = charge.rule
  local retry, remaining, reset, delay, mark, lifetime, new_time, new_count, new_text =
    rule.decide(rule.policy, units + charge.headroom, time, count, text, charge.holder)
  if retry == 0 then
    return rule.decide(rule.policy, units, time, count, text, charge.holder)
  end
  return retry, remaining, reset, delay, mark, lifetime, new_time, new_count, new_text
end

-- Plans `units` units of a charge. Returns whether they are admitted.
local function plan(charge, units)
  local rule = charge.rule
  local time, count, text = state_of(charge.k, rule)
  local retry, remaining, reset, delay, mark, lifetime
  local guarantee = charge.guarantee
  local is_guaranteed = guarantee and guarantee.retry == 0 and guarantee.units >= units
  if units > 0 and charge.headroom > 0 and not is_guaranteed then
    retry, remaining, reset, delay, mark, lifetime, time, count, text = evaluate_beside(charge, units, time, count, text)
  else
    retry, remaining, reset, delay, mark, lifetime, time, count, text =
      rule.decide(rule.policy, units, time, count, text, charge.holder)
  end
  charge.units, charge.retry, charge.remaining, charge.reset = units, retry, remaining, reset
  charge.delay, charge.mark, charge.lifetime = delay, mark, lifetime
  charge.time, charge.count, charge.text = time, count, text
  return retry == 0
end

-- Reports a planned charge.
local function report(record, charge, remaining, reset)
  if charge.retry ~= 0 then
    reply[record] = pack('<ddddd', 0, remaining, reset, charge.retry, 0)
  else
    reply[record] = pack('<ddddd', 1 + charge.units, remaining, reset, charge.mark, charge.delay)
  end
end

-- Returns a function of the rule's algorithm that few calls need.
local function function_of(rule, wanted)
  if not rule.algorithm.is_complete then
    rule.algorithm = make(rule.name)
    rule.algorithm.is_complete, rule.decide = true, rule.algorithm.decide
  end
  local name = rule.name
  return rule.algorithm[wanted] or error('RATELIMIT-ALGORITHM the algorithm ' .. name .. ' has no ' .. wanted, 0)
end

-- Whether the key was reset since `made`. In the same microsecond too: no other units are ever returned.
local function is_reset_since(charge, made)
  local reset = tonumber(values[charge.reset_mark])
  return reset and made <= reset
end

-- Refunds or renews a charge, or bans its key.
local function change(record, charge)
  local rule, cost, made, k = charge.rule, charge.cost, charge.made, charge.k
  -- The pool has as much for its guarantees as they may take, so a guarantee gets no more than the pool.
  cost = charge.pool and math.min(cost, charge.pool.returned) or cost
  if cost == 0 and run.change == 'refund' or is_reset_since(charge, made) then
    return
  end
  local changed = function_of(rule, run.change)
  -- An operator's refund names no charge.
  if made == 0 then
    made = nil
  end
  if rule.algorithm.load then
    -- It changes the key itself, so what was decided before is written first.
    flush(k)
    if failures[k] then
      error(failures[k], 0)
    end
    return changed(KEYS[k], rule.policy, cost, charge.holder, made)
  end
  local time, count, text = state_of(k, rule)
  local lifetime
  if run.change == 'refund' then
    lifetime, time, count, text, charge.returned =
      changed(rule.policy, cost, made, charge.made_mark, time, count, text, charge.holder)
  else
    lifetime, time, count, text = changed(rule.policy, cost, time, count, text, charge.holder)
  end
  if lifetime then
    set_state(record, k, rule, lifetime, time, count, text)
  end
end

-- Counts the denials of charges with a penalty, unless one of the keys is banned. A denial only for the sake of the units that must
-- remain does not count.
local function strike(record)
  for i = 1, run.width do
    if run[i].main and run[i].retry ~= 0 then
      return
    end
  end
  for i = 1, run.width do
    local charge = run[i]
    local main = charge.main and run[charge.main]
    local is_shed = main and main.headroom > 0 and main.remaining >= main.cost
    if main and (charge.denied or main.retry ~= 0 and not is_shed) then
      local rule = charge.rule
      local lifetime, time, count, text = function_of(rule, 'strike')(rule.policy, state_of(charge.k, rule))
      if lifetime then
        set_state(record, charge.k, rule, lifetime, time, count, text)
        -- It may be banned now.
        plan(charge, 1)
      end
    end
  end
end

-- The first phase: refunds, renews or bans.
local function change_all(record)
  for i = 1, run.ordinary do
    local charge = run[i]
    charge.returned = 0
    if run.change == 'ban' and charge.main or run.change ~= 'ban' and charge.cost > 0 then
      change(record, charge)
    end
  end
end

-- The second phase: plans each charge. Returns whether all are admitted.
local function plan_all()
  local least, admitted = run.least, true
  for i = 1, run.ordinary do
    local charge = run[i]
    local units = charge.cost
    if run.change then
      units = run.change == 'ban' and charge.main and 1 or 0
    end
    local fits = plan(charge, units)
    if least and not fits then
      -- All that remains, or what is charged at least, for its retry time.
      fits = plan(charge, math.max(least, math.min(units, charge.remaining)))
    end
    admitted = admitted and (fits or charge.shadow)
  end
  return admitted
end

-- The third phase: charges all of them, or reports each as it is.
local function charge_all(record, charged)
  for i = 1, run.ordinary do
    local charge = run[i]
    local rule, units, remaining, reset = charge.rule, charge.units, charge.remaining, charge.reset
    local lifetime, time, count, text = charge.lifetime, charge.time, charge.count, charge.text
    if charge.retry == 0 and units > 0 and not charged then
      local _
      time, count, text = state_of(charge.k, rule)
      _, remaining, reset, _, _, lifetime, time, count, text =
        rule.decide(rule.policy, 0, time, count, text, charge.holder)
    end
    if lifetime and units > 0 and run.charges then
      set_state(record, charge.k, rule, lifetime, time, count, text)
    end
    report(record + i - 1, charge, remaining, reset)
  end
end

-- Settles a token: refunds or debits its charges, unless the stamp shows that it was settled before, or it has expired.
--
-- The stamp is written first. Once a script has written a key, Redis also takes its other writes, so a server without memory
-- takes the stamp and the change, or none of them.
local function settle(record)
  local stamp = run.stamp
  -- Writes the stamp, or removes it. The decisions that follow find it in `states`.
  local function write(lifetime, time, count)
    write_state(KEYS[stamp.k], nil, lifetime, time, count)
    states[stamp.k] = { rule = stamp.rule, time = time, count = count }
  end
  local fits = plan(stamp, 1)
  if fits and now >= stamp.made_mark then
    plan(stamp, 0)
    stamp.retry, fits = NEVER, false
  end
  -- A key that cannot be read raises its error here, before the stamp is written.
  local admitted = plan_all()
  if fits then
    write(stamp.lifetime, stamp.time, stamp.count)
    if run.change then
      local changed, raised = pcall(change_all, record)
      if not changed then
        write(REMOVE, false)
        error(raised, 0)
      end
      plan_all()
    end
  end
  charge_all(record, fits and admitted and run.charges)
  report(record + run.ordinary, stamp, stamp.remaining, stamp.reset)
end

-- Returns a lease, charges the cost, and leases units: at most a quarter of what remains, so that leases shrink to 0
-- near the limit and other instances find units too.
local function charge_and_lease(record)
  local charge, asked = run[1], run.lease
  local rule, k = charge.rule, charge.k
  local return_lease, lease = function_of(rule, 'return_lease'), function_of(rule, 'lease')
  local lifetime, time, count, text
  if asked.units > 0 and not is_reset_since(charge, asked.made) then
    lifetime, time, count, text =
      return_lease(rule.policy, asked.units, asked.spent, asked.name, state_of(k, rule))
    if lifetime then
      set_state(record, k, rule, lifetime, time, count, text)
    end
  end
  local admitted, units, lasts, name, mark = plan(charge, charge.cost), 0, 0, 0, 0
  local remaining, reset, _ = charge.remaining, charge.reset, nil
  if charge.lifetime and charge.units > 0 then
    set_state(record, k, rule, charge.lifetime, charge.time, charge.count, charge.text)
  end
  if admitted then
    units = math.min(asked.wanted, math.floor(remaining / 4))
    lasts, name, mark, lifetime, time, count, text = lease(rule.policy, units, state_of(k, rule))
    if units > 0 then
      set_state(record, k, rule, lifetime, time, count, text)
      _, remaining, reset = rule.decide(rule.policy, 0, time, count, text)
    end
  end
  report(record, charge, remaining, reset)
  reply[record + 1] = pack('<ddddd', units, lasts, name, mark, 0)
end

-- Makes the decisions of a run that take one charge each: the most frequent ones of keys that other decisions use too.
local function take_each(last, first, record)
  local charge = run[1]
  local rule, cost, holder, indices = charge.rule, charge.cost, charge.holder, run.indices
  local has_headroom = cost > 0 and charge.headroom > 0
  while done < last do
    done = done + 1
    local k = indices and numbers[indices + done] or first + done
    local time, count, text = state_of(k, rule)
    local retry, remaining, reset, delay, mark, lifetime
    if has_headroom then
      retry, remaining, reset, delay, mark, lifetime, time, count, text = evaluate_beside(charge, cost, time, count, text)
    else
      retry, remaining, reset, delay, mark, lifetime, time, count, text =
        rule.decide(rule.policy, cost, time, count, text, holder)
    end
    if lifetime and cost > 0 then
      set_state(record + done, k, rule, lifetime, time, count, text)
    end
    if retry ~= 0 then
      reply[record + done] = pack('<ddddd', 0, remaining, reset, retry, 0)
    else
      reply[record + done] = pack('<ddddd', 1 + cost, remaining, reset, mark, delay)
    end
  end
end

-- Makes decisions of the run at this place, up to the `last`. `first` and `record` are the first key and the first record of the
-- run, less one.
local function decide(at, last, first, record)
  if run.at ~= at then
    open_run(at)
  end
  if run.is_take and run.width == 1 and not run[1].shadow then
    return take_each(last, first, record)
  end
  while done < last do
    local before, place = done * run.width, record + done * run.records + 1
    done = done + 1
    for i = 1, run.width do
      run[i].k = run.indices and numbers[run.indices + before + i] or first + before + i
    end
    if run.lease then
      charge_and_lease(place)
    elseif run.stamp then
      settle(place)
    else
      if run.change then
        change_all(place)
      end
      local admitted = plan_all()
      if run.counts and (not admitted or run.counts_earlier) then
        strike(place)
      end
      charge_all(place, admitted and run.charges)
    end
  end
end

-- Writes what changed.
local function finish()
  for k = 1, #KEYS do
    flush(k)
  end
  if next(failures) then
    fail_unwritten()
  end
end

return decide, finish
