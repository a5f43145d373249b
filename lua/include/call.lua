--[[
  The call: its rules, its runs and its reply. lua/README.md specifies KEYS, ARGV and the reply.

  A rule is a policy and the functions of its algorithm, a table of

    policy         the policy's numbers, as the algorithm wants them
    algorithm      its functions; and `decide`, one of them
    name           the algorithm's name

  A run is a sequence of decisions that differ in their keys. It is read where it is needed, from its place in `numbers`.
]]
-- uses: prelude text_of_error usual
-- In place of the time of a charge.
local SHADOW, STAMP, BAN, COUNTED_LATER, DENIED = -1, -2, -3, -4, -5

-- The numbers of the decisions that are not usual: of their rules, then of their runs. struct.unpack() adds where it stopped.
local numbers = { struct.unpack('<' .. string.rep('d', (#request + 1 - others) / 8), request, others) }
numbers[#numbers] = nil
-- How many rules follow, and how many keys are marks of resets, which come last.
numbers[1], numbers[2] = numbers[1] or 0, numbers[2] or 0
local marks = numbers[2]

local rules, reads_strings = {}, false

-- Adds a rule: the algorithm's name, then the arguments of the policy.
local function add_rule(name, ...)
  local algorithm = make(name, true)
  local made, policy = pcall(algorithm.policy, ...)
  if not made then
    -- It fails the decisions of this rule, and no others.
    local problem = text_of_error(policy)
    local function fail()
      error(problem, 0)
    end
    algorithm = { decide = fail, refund = fail, renew = fail, is_complete = true }
  end
  rules[#rules + 1] = { policy = policy, algorithm = algorithm, decide = algorithm.decide, name = name }
  reads_strings = reads_strings or not algorithm.load
end

-- The place of the first run.
local first_run = 3
for i = 1, numbers[1] do
  local count = numbers[first_run]
  add_rule(ARGV[i + 1], unpack(numbers, first_run + 1, first_run + count))
  first_run = first_run + 1 + count
end

-- Appends `...` to the numbers.
local function add(...)
  for _, number in ipairs({ ... }) do
    numbers[#numbers + 1] = number
  end
end

-- Adds the runs with usual decisions that are left.
count_of_records = 0
place = SIZE.HEAD + 1
while place < others do
  local decisions, width, before, records = struct.unpack('<HHHH', request, place)
  local is_left, is_shared = false, 0
  if width > SIZE.SHARED then
    width, before, is_shared = width - SIZE.SHARED, 0, 1
  end
  place, count_of_records = place + SIZE.RUN, math.max(count_of_records, records + decisions * width)
  for record = records + 1, records + decisions * width, width do
    is_left = is_left or left and left[record]
  end
  if is_left then
    add(0, 1, -1, 0, decisions, width, is_shared, 1, before, records)
  end
  for _ = 1, width do
    local cost, headroom, kind, first, second, third = struct.unpack('<dHBddd', request, place)
    local fourth, fifth, sixth
    local has_headroom, main = kind > KIND.WITH_HEADROOM, 0
    kind, place = has_headroom and kind - KIND.WITH_HEADROOM or kind, place + SIZE.CHARGE
    if kind == KIND.PENALTY then
      main = headroom
      fourth, fifth, sixth = struct.unpack('<ddd', request, place)
      place = place + 24
    elseif kind == KIND.DEBT then
      fourth = struct.unpack('<d', request, place)
      place = place + 8
    elseif kind == KIND.CALENDAR then
      fourth, fifth = struct.unpack('<dd', request, place)
      place = place + 16
    end
    if has_headroom then
      headroom, place = struct.unpack('<d', request, place)
    end
    if is_left then
      if kind == KIND.PENALTY then
        add_rule('penalty', first, second, fourth, fifth, sixth)
      elseif kind == KIND.WINDOW then
        add_rule('fixed-window', first, second, third < second and 1 or 0, third)
      elseif kind == KIND.CALENDAR then
        -- The limit, no period, a calendar without its number; then the times in their order.
        add_rule('fixed-window', first, 0, 2, 0, fourth, third, second, fifth)
      elseif kind == KIND.SLIDING_WINDOW then
        add_rule('sliding-window', first, second, third)
      elseif kind == KIND.GUARANTEE then
        add_rule('guarantee', first, second, third)
      else
        -- The functions of all buckets are the same.
        add_rule('gcra', first, second, third, fourth)
      end
      -- The mark is the position of a penalty's charge, and otherwise the headroom.
      add(#rules, cost, 0, main > 0 and BAN or kind == KIND.GUARANTEE and SHADOW or 0, headroom)
    end
  end
  for _ = 1, is_shared * decisions * width do
    if is_left then
      numbers[#numbers + 1] = struct.unpack('<H', request, place)
    end
    place = place + 2
  end
end

local last_number = #numbers

-- The decisions of the current run that are made.
local done = 0

-- Returns what a run does, at its place: the number of the function that changes its states, 0 for none; 1 where it charges;
-- the units that it charges at least where not all remain, -1 where it charges none then; the decisions; the charges of each,
-- the records of each, 1 where the indices of their keys follow; the place after it; whether only decisions that usual.lua has
-- left are made; and the first key and the first record, less one.
local function read_run(at)
  local change, charges, least, leases, decisions, width, is_shared, only_left, k, record = unpack(numbers, at, at + 9)
  local after = at + 10 + 5 * width + 5 * leases + decisions * width * is_shared
  -- A lease has a second record.
  return change, charges, least, decisions, width, width + leases, is_shared, after, only_left == 1, k, record
end

-- The errors of the reply: the number of a decision's first record, then the text.
errors = {}
-- A copy of KEYS has room for most records.
reply = reply or { unpack(KEYS) }

-- Puts an error in the place of a decision with this first record.
local function fail(record, records, text)
  for i = record, record + records - 1 do
    reply[i] = pack('<ddddd', 0, 0, 0, 0, 0)
  end
  errors[#errors + 1] = record - 1
  errors[#errors + 1] = text
end
