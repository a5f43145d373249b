--[[
  What happens when keys cannot be written: a decision that changed such a key fails, and each later one that uses it.
]]
-- uses: prelude call states usual

-- Whether a decision stands although a key could not be written: the key is of a penalty, and the server has no memory, cannot
-- save or has too few replicas. Then the penalty has not counted the denial, and does not ban the key. A read-only server
-- is left by the client, so there the decision fails. The charges are at `charges` in `numbers`.
local function stands(problem, charges, width, i, record)
  local takes_no_writes = string.find(problem, 'OOM', 1, true) or string.find(problem, 'MISCONF', 1, true) or
    string.find(problem, 'NOREPLICAS', 1, true)
  if numbers[charges + 5 * i - 2] > BAN or not takes_no_writes then
    return false
  end
  local place = record + i - 1
  if struct.unpack('<d', reply[place]) ~= 0 then
    return true
  end
  for other = 1, width do
    local made = numbers[charges + 5 * other - 2]
    if made > BAN and made ~= SHADOW and struct.unpack('<d', reply[record + other - 1]) == 0 then
      -- Denied without the ban.
      reply[place] = pack('<ddddd', 2, 0, 0, 0, 0)
      return true
    end
  end
  return false
end

-- Fails the decisions.
local function fail_unwritten()
  local at = first_run
  while at <= last_number do
    local change, _, _, decisions, width, records, is_shared, after, _, first, first_record = read_run(at)
    for n = 1, decisions * width do
      local k = is_shared == 1 and numbers[after - decisions * width - 1 + n] or first + n
      local i = (n - 1) % width + 1
      local record = first_record + (n - i) / width * records + 1
      -- What was decided before the key was changed does not depend on the failed write.
      if failures[k] and record >= failed_from[k]
        and (change > 0 or not stands(failures[k], at + 10, width, i, record)) then
        fail(record, records, failures[k])
      end
    end
    at = after
  end
end
