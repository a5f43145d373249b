--[[
  The driver of a call with any decisions. It reads every distinct key once, makes one decision after another in
  memory, each all or nothing, and writes every changed key once.

  It makes the most frequent decisions itself: those that admit all of their charges, with keys that no other decision uses. All
  others are made by the function that decide_in_full() creates when it is first needed.

  KEYS, ARGV, the reply and the functions of an algorithm are specified in lua/README.md. src/store/redis/script.rs
  adds `decide_in_full`, and `make(name, brief)`, which returns the functions of the algorithm `name`; only the most frequent
  ones if `brief`.
]]
-- uses: prelude text_of_error state call keys decide_in_full

-- Makes the next decisions of the run at this place, up to one that does not admit all of its charges. `k` and `record` are the
-- first key and the first record of the run, less one.
local function admit(at, decisions, width, k, record)
  local keys, charged = KEYS, {}
  for i = 1, width do
    charged[i] = rules[numbers[at + 2 + 5 * i]]
  end
  k, record = k + done * width, record + done * width
  while done < decisions do
    done = done + 1
    for i = 1, width do
      local rule, cost, value = charged[i], numbers[at + 3 + 5 * i], values[k + i]
      -- The same charge to another key without a state has the same result: most keys of a penalty have none.
      if value or rule.absent ~= cost then
        local retry, remaining, reset, delay, mark, lifetime, time, count, text =
          rule.decide(rule.policy, cost, read_state(value))
        if retry ~= 0 then
          done = done - 1
          return
        end
        -- Keys that were idle have the same state and record after the same charge: format and pack them once.
        if
          time ~= rule.time or count ~= rule.count or cost ~= rule.cost
          or lifetime ~= rule.lifetime or text ~= rule.text
        then
          -- The text of a state that was not charged is as it was stored, and says less.
          rule.cost = (lifetime or not text) and not rule.algorithm.is_checked and cost
          rule.time, rule.count, rule.text, rule.lifetime = time, count, text, lifetime
          rule.record = pack('<ddddd', 1 + cost, remaining, reset, mark, delay)
          rule.value = lifetime and cost > 0 and value_of(time, count, text)
          rule.expiry = rule.value and ttl(lifetime)
        end
        rule.absent = not value and rule.cost
      end
    end
    for i = 1, width do
      local rule, key = charged[i], keys[k + i]
      if rule.value then
        call('SET', key, rule.value, 'PX', rule.expiry)
      end
      reply[record + i] = rule.record
    end
    k, record = k + width, record + width
  end
end

local decide, finish
local at, k, record = first_run, 0, 0
while at <= last_number do
  local change, charges, _, decisions, width, records, is_shared, after = read_run(at)
  -- Whether admit() may make them: it writes strings immediately, and keeps one state for each rule.
  local is_plain = change == 0 and charges == 1 and records == width and is_shared == 0 and not some_exist
  for i = 1, is_plain and width or 0 do
    local rule, holder, made = rules[numbers[at + 2 + 5 * i]], numbers[at + 4 + 5 * i], numbers[at + 5 + 5 * i]
    if rule.run == at or rule.algorithm.store or holder > 0 or made == DENIED then
      is_plain = false
    end
    rule.run = at
  end
  done = 0
  while done < decisions do
    local made, raised = true, nil
    if is_plain then
      made, raised = pcall(admit, at, decisions, width, k, record)
    end
    if made and done < decisions then
      if not decide then
        decide, finish = decide_in_full()
      end
      made, raised = pcall(decide, at, is_plain and done + 1 or decisions, k, record)
    end
    if not made then
      fail(record + (done - 1) * records + 1, records, text_of_error(raised))
    end
  end
  at, record = after, record + decisions * records
  if is_shared == 0 then
    k = k + decisions * width
  end
end
if finish then
  finish()
end

local records = table.concat(reply)
records = pack('<d', now) .. records
if #errors == 0 then
  return records
end
return { records, unpack(errors) }
