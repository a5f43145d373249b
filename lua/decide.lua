--[[
  The driver of the decisions that usual.lua did not make. It reads every distinct key once, makes one decision after another
  in memory, each all or nothing, and writes every changed key once.

  It makes the most frequent decisions itself: those that admit all of their charges, or deny the only one, with keys that no
  other decision uses. All others are made by the function that decide_in_full() creates when it is first needed.

  KEYS, ARGV, the reply and the functions of an algorithm are specified in lua/README.md. src/store/redis/script.rs
  adds `decide_in_full`, and `make(name, brief)`, which returns the functions of the algorithm `name`; only the most frequent
  ones if `brief`.
]]
-- uses: prelude text_of_error state usual call keys decide_in_full

-- What the charges of a decision under way would write: for each, the lifetime, the time, the count and the text.
local planned = {}

-- Makes the next decision of the run at this place. Returns false if it is not one of the most frequent ones. `k` and `record`
-- are the first key and the first record of the decision, less one.
local function admit(at, width, least, k, record)
  for i = 1, width do
    local rule, cost = rules[numbers[at + 5 + 5 * i]], numbers[at + 6 + 5 * i]
    local time, count, text = read_state(values[k + i])
    local retry, remaining, reset, delay, mark, lifetime
    retry, remaining, reset, delay, mark, lifetime, time, count, text = rule.decide(rule.policy, cost, time, count, text)
    if retry ~= 0 and (width > 1 or least >= 0) then
      return false
    end
    if retry ~= 0 then
      reply[record + i] = pack('<ddddd', 0, remaining, reset, retry, 0)
    else
      reply[record + i] = pack('<ddddd', 1 + cost, remaining, reset, mark, delay)
    end
    local p = 4 * i
    planned[p], planned[p + 1], planned[p + 2], planned[p + 3] = cost > 0 and lifetime, time, count, text
  end
  for i = 1, width do
    local p = 4 * i
    if planned[p] then
      write_state(KEYS[k + i], values[k + i], planned[p], planned[p + 1], planned[p + 2], planned[p + 3])
    end
  end
  return true
end

local decide, finish
local at = first_run
while at <= last_number do
  local change, charges, least, decisions, width, records, is_shared, after, only_left, k, record = read_run(at)
  -- Whether admit() may make them: it writes strings immediately.
  local is_plain = change == 0 and charges == 1 and records == width and is_shared == 0 and not some_exist
  for i = 1, is_plain and width or 0 do
    local rule, holder, made = rules[numbers[at + 5 + 5 * i]], numbers[at + 7 + 5 * i], numbers[at + 8 + 5 * i]
    local has_headroom = made >= SHADOW and numbers[at + 9 + 5 * i] > 0
    if rule.algorithm.store or holder > 0 or made == DENIED or made == STAMP or has_headroom then
      is_plain = false
    end
  end
  done = 0
  while done < decisions do
    local first, place = k + done * width, record + done * records
    if only_left and not left[place + 1] then
      done = done + 1
    else
      local made, raised = true, false
      if is_plain then
        made, raised = pcall(admit, at, width, least, first, place)
        done = (not made or raised) and done + 1 or done
      end
      if made and not raised then
        if not decide then
          decide, finish = decide_in_full()
        end
        made, raised = pcall(decide, at, (is_plain or only_left) and done + 1 or decisions, k, record)
      end
      if not made then
        fail(record + (done - 1) * records + 1, records, text_of_error(raised))
      end
    end
  end
  at, count_of_records = after, math.max(count_of_records, record + decisions * records)
end
if finish then
  finish()
end
