--[[
  The call: its rules, its runs and its reply. lua/README.md specifies KEYS, ARGV and the reply.

  A rule is a policy and the functions of its algorithm, a table of

    policy         the policy's numbers, as the algorithm wants them
    algorithm      its functions; and `decide`, one of them

  and `run`, the place of the last run that charged it, and of what decide.lua charged last under it: `cost`, `time`,
  `count`, `text`, `lifetime`; what is made of these: the `record`, the `value` and its `expiry`; and `absent`, the cost
  if the key had no state. A new table takes as long as a decision in memory, so there is one for all of this.

  A run is a sequence of decisions that differ in their keys. It is read where it is needed, from its place in `numbers`.
]]
-- uses: prelude text_of_error
-- In place of the time of a charge.
local SHADOW, PENALTY, COUNTED_LATER, DENIED = -1, -2, -3, -4

local numbers = { struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1]) }
-- The place of the first run. The first number is the time. struct.unpack() added where it stopped.
local first_run, last_number = 3, #numbers - 1

local rules, reads_strings = {}, false
for i = 1, numbers[2] do
  local count = numbers[first_run]
  local algorithm = make(ARGV[i + 1], true)
  local made, policy = pcall(algorithm.policy, unpack(numbers, first_run + 1, first_run + count))
  if not made then
    -- It fails the decisions of this rule, and no others.
    local problem = text_of_error(policy)
    local function fail()
      error(problem, 0)
    end
    algorithm = { decide = fail, refund = fail, renew = fail, is_complete = true }
  end
  -- All fields have a place: a table that grows takes much longer.
  rules[i] = {
    policy = policy, algorithm = algorithm, decide = algorithm.decide,
    run = 0, cost = false, time = 0, count = 0, text = 0, lifetime = 0, record = 0, value = 0, expiry = 0, absent = false,
  }
  reads_strings = reads_strings or not algorithm.load
  first_run = first_run + 1 + count
end

-- The decisions of the current run that are made.
local done = 0

-- Returns what a run does, at its place, and the place after it: the number of the function that changes its states, 0 for
-- none; 1 where it charges; the units that it charges at least where not all remain, -1 where it charges none then; the
-- decisions; the charges of each, the records of each, and 1 where the indices of their keys follow.
local function read_run(at)
  local change, charges, least, leases, decisions, width, is_shared = unpack(numbers, at, at + 6)
  local after = at + 7 + 5 * width + 4 * leases + decisions * width * is_shared
  -- A lease has a second record.
  return change, charges, least, decisions, width, width + leases, is_shared, after
end

-- The records of the reply, and its errors: the number of a decision's first record, then the text. A copy of KEYS has room
-- for most records.
local reply, errors = { unpack(KEYS) }, {}

-- Puts an error in the place of a decision with this first record.
local function fail(record, records, text)
  for i = record, record + records - 1 do
    reply[i] = pack('<ddddd', 0, 0, 0, 0, 0)
  end
  errors[#errors + 1] = record - 1
  errors[#errors + 1] = text
end
