--[[
  The call: its policies and its runs. "The call" in lua/README.md specifies KEYS and ARGV.

  A rule is a table of

    name           the name of the algorithm
    algorithm      the functions of the algorithm
    policy         the policy's numbers, as the algorithm wants them

  A run is a table of

    mode           TAKE, UP_TO, PEEK, REFUND, RENEW, LEASE, DEBIT or BAN
    decisions      the number of decisions
    charges        the charges of each decision: tables of `rule`, `cost`, `holder`, `made`, `mark`; `shadow`, which is
                   true where a denial of the charge denies nothing; and `main`, of a charge against the penalty of
                   another charge the place of that one, and `denied`, which is true where an earlier call denied that one
    has_penalties  true if there are charges against penalties, whose denials this call counts
    lease          the units to lease, and the name, the units and the spent units of the returned lease
    record         the first record of the first decision, less one
    key            the key of the first charge, less one; nil where other decisions use the keys too
    indices        in `numbers`, less one, where the keys of all charges are; nil where no other decision uses them
]]
-- uses: error
-- In place of the time of the charge.
local SHADOW, PENALTY, COUNTED_LATER, DENIED = -1, -2, -3, -4
local TAKE, UP_TO, PEEK, REFUND, RENEW, LEASE, DEBIT, BAN = 1, 2, 3, 4, 5, 6, 7, 8

local numbers = { struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1]) }
-- The place of the next number. The first number is the time; struct.unpack() added where it stopped.
local at, last = 2, #numbers - 1

local function next_number()
  at = at + 1
  return numbers[at - 1]
end

local rules, reads_strings = {}, false
for i = 1, next_number() do
  local count = next_number()
  local algorithm = make(ARGV[i + 1], true)
  local made, policy = pcall(algorithm.policy, unpack(numbers, at, at + count - 1))
  if not made then
    -- It fails the decisions of this rule, and no others.
    local problem = text_of_error(policy)
    local function fail()
      error(problem, 0)
    end
    algorithm = { decide = fail, refund = fail, renew = fail, is_complete = true }
  end
  rules[i] = { name = ARGV[i + 1], algorithm = algorithm, policy = policy }
  reads_strings = reads_strings or not algorithm.load
  at = at + count
end

local runs, records, key = {}, 0, 0
while at <= last do
  local run = { mode = next_number(), decisions = next_number(), charges = {}, record = records, next = 1 }
  local charges, is_shared = next_number(), next_number() == 1
  for i = 1, charges do
    local rule, cost, holder, made, mark = unpack(numbers, at, at + 4)
    run.charges[i] = { rule = rules[rule], cost = cost, holder = ARGV[holder], made = made, mark = mark, shadow = made == SHADOW }
    if made <= PENALTY then
      run.charges[i].main, run.charges[i].denied = mark, made == DENIED
      run.has_penalties = made ~= COUNTED_LATER
    end
    at = at + 5
  end
  if run.mode == LEASE then
    run.lease = { wanted = next_number(), name = next_number(), units = next_number(), spent = next_number() }
  end
  if is_shared then
    run.indices = at - 1
    at = at + run.decisions * charges
  else
    run.key = key
    key = key + run.decisions * charges
  end
  -- A lease has a second record.
  run.width = run.lease and 2 or charges
  records = records + run.decisions * run.width
  runs[#runs + 1] = run
end

-- Returns the index of a charge's key.
local function key_of(run, decision, charge)
  local place = (decision - 1) * #run.charges + charge
  return run.key and run.key + place or numbers[run.indices + place]
end

-- Returns a function of the rule's algorithm that few calls need.
local function function_of(rule, wanted)
  local name = rule.name
  if not rule.algorithm.is_complete then
    rule.algorithm = make(name)
    rule.algorithm.is_complete = true
  end
  return rule.algorithm[wanted] or error('RATELIMIT-ALGORITHM the algorithm ' .. name .. ' has no ' .. wanted, 0)
end
