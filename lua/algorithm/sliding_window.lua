--[[
  Sliding window: at most `limit` units in a window that slides over cells of `width` microseconds each.

  The latest `cells` cells count in full. The one before them, the sliding cell, counts by the share of it that is still
  inside the window, as if its units had come evenly. With one cell this is the sliding window counter.

  State     when the latest cell started; the sum of all cells; a text: 6 bytes of the width, then 5 bytes of units for
            each cell before the latest one, the most significant byte first. The latest cell has what is left of the
            sum, so a charge changes only the sum.
  Arguments the limit; the number of cells; their width in microseconds.
  Mark      the last microsecond of the cell that the charge counts in.

  Cells are read one by one only where they leave the window, and where a denial looks for its retry time.

  A latest cell that starts in the future means that the clock stepped back: all cells move back with it. A denial
  writes this down, so that the retry time it names stays true. Cells of another width are of an older quota: each
  counts at the time at which it ended.
]]
-- uses: prelude muldiv
local CELL = 5
local EMPTY = string.rep('\0', CELL)
-- The most that 5 bytes hold, which is above every limit.
local MAX_UNITS = 1099511627775

local function policy(limit, cells, width)
  return { limit = limit, cells = cells, width = width }
end

-- Returns the units of a cell before the latest one. `age` is 1 for the cell before the latest.
local function cell_at(body, age)
  local last = age * CELL
  if last > #body then
    return 0
  end
  return (struct.unpack('>I5', body, last - CELL + 1))
end

-- Returns the sum of the cells from `first` to `last`.
local function sum_of(body, first, last)
  local sum = 0
  for age = first, last do
    sum = sum + cell_at(body, age)
  end
  return sum
end

-- Returns the units of the latest cell. The sum is read from the state and may be wrong.
local function latest_of(body, sum)
  return math.max(0, sum - sum_of(body, 1, #body / CELL))
end

-- Converts cells of another width: each counts in the cell in which it ended. Returns the cells and their sum.
local function convert(old, old_sum, old_width, latest, cells, width, started)
  local counts, oldest = {}, -1
  for i = 0, #old / CELL do
    local ended = math.min(latest - i * old_width + old_width - 1, now)
    local age = math.max(0, floor((started - ended + width - 1) / width))
    if age > cells then
      break
    end
    local units = i == 0 and latest_of(old, old_sum) or cell_at(old, i)
    counts[age] = math.min((counts[age] or 0) + units, MAX_UNITS)
    oldest = age
  end
  local body, sum = {}, counts[0] or 0
  for age = 1, oldest do
    local units = counts[age] or 0
    body[age] = pack('>I5', units)
    sum = sum + units
  end
  return table.concat(body), sum
end

-- In Redis the state is shorter than in the form of include/state.lua: `SW`, 7 bytes each of the time and the sum, and
-- the text.
local function read(value)
  if not value then
    return false
  end
  if #value < 22 or (#value - 22) % CELL ~= 0 or sub(value, 1, 2) ~= 'SW' then
    error(FOREIGN, 0)
  end
  local latest, sum = struct.unpack('>I7I7', value, 3)
  if latest >= TOO_LARGE or sum >= TOO_LARGE then
    error(FOREIGN, 0)
  end
  return latest, sum, sub(value, 17)
end

local function value_of(latest, sum, text)
  return pack('>c2I7I7', 'SW', latest, sum) .. text
end

-- Returns the width and the cells of a state.
local function read_cells(latest, text)
  local width = struct.unpack('>I6', text)
  if width == 0 or latest % width ~= 0 then
    error(FOREIGN, 0)
  end
  return width, sub(text, 7)
end

-- Returns when the current cell started, the microseconds since then, the cells as of `now`, their sum, and whether a
-- denial must write this state.
local function open(window, latest, sum, text)
  local cells, width = window.cells, window.width
  local elapsed = now % width
  local started = now - elapsed
  if not latest then
    return started, elapsed, '', 0, false
  end
  local old_width, body = read_cells(latest, text)
  local stale = latest > now
  if stale then
    latest = started
  end
  if old_width ~= width then
    body, sum = convert(body, sum, old_width, latest, cells, width, started)
    return started, elapsed, body, sum, stale
  end
  local age = (started - latest) / width
  if age > cells then
    return started, elapsed, '', 0, stale
  end
  if age > 0 then
    body = string.rep(EMPTY, age - 1) .. pack('>I5', latest_of(body, sum)) .. body
  end
  local stored = #body / CELL
  if stored > cells then
    sum = sum - sum_of(body, cells + 1, stored)
    body = sub(body, 1, cells * CELL)
  end
  return started, elapsed, body, sum, stale
end

local function state_of_cells(window, body, sum, started)
  return started, sum, pack('>I6', window.width) .. body
end

-- Returns the microseconds until all cells have left the window.
local function reset_of(window, body, sum, elapsed)
  local newest = 0
  if sum == 0 then
    return 0
  elseif latest_of(body, sum) == 0 then
    newest = floor((find(body, '[^%z]') - 1) / CELL) + 1
  end
  return (window.cells + 1 - newest) * window.width - elapsed
end

-- Returns the microseconds until at most `room` units count. `full` units are in the cells that count in full.
local function wait_for(window, body, sum, elapsed, full, room)
  local cells, width = window.cells, window.width
  for passed = 0, cells do
    if full <= room then
      -- During this cell the share of the sliding cell shrinks to what fits beside the full cells.
      local sliding = passed < cells and cell_at(body, cells - passed) or latest_of(body, sum)
      local inside = 0
      if sliding > room - full then
        inside = width - muldiv(room - full, width, sliding)
      end
      return math.max(0, passed * width + inside - elapsed)
    end
    if passed < cells - 1 then
      full = full - cell_at(body, cells - 1 - passed)
    else
      -- Only the latest cell was left.
      full = 0
    end
  end
end

local function decide(window, cost, latest, sum, text)
  local limit, cells, width = window.limit, window.cells, window.width
  local started, elapsed, body, stale
  started, elapsed, body, sum, stale = open(window, latest, sum, text)
  local mark = started + width - 1
  local sliding = cell_at(body, cells)
  local full = sum - sliding
  -- The units of the sliding cell that count, rounded up.
  local counted, rest = muldiv(sliding, width - elapsed, width)
  local free = math.max(0, limit - full - counted - (rest > 0 and 1 or 0))
  if cost > free then
    local retry = NEVER
    if cost <= limit then
      retry = wait_for(window, body, sum, elapsed, full, limit - cost)
    end
    local reset = reset_of(window, body, sum, elapsed)
    return retry, free, reset, 0, mark, stale and reset > 0 and reset or nil, state_of_cells(window, body, sum, started)
  end
  if cost == 0 then
    local reset = reset_of(window, body, sum, elapsed)
    return 0, free, reset, 0, mark, stale and reset > 0 and reset or nil, state_of_cells(window, body, sum, started)
  end
  local reset = (cells + 1) * width - elapsed
  return 0, free - cost, reset, 0, mark, reset, state_of_cells(window, body, sum + cost, started)
end

if brief then
  return { policy = policy, decide = decide, read = read, value_of = value_of }
end

-- Returns the cells after `units` units were removed from the cell `age`, which has them.
local function remove_units(body, age, units)
  if age == 0 then
    return body
  end
  local cell = pack('>I5', cell_at(body, age) - units)
  return sub(body, 1, (age - 1) * CELL) .. cell .. sub(body, age * CELL + 1)
end

local function refund_charge(window, units, mark, latest, sum, text)
  local width, body = read_cells(latest, text)
  local cell = mark - mark % width
  -- Cells of another width are of another quota, and a latest cell in the future is of a clock that stepped back.
  if width ~= window.width or latest > now or now - cell >= (window.cells + 1) * width then
    return nil
  end
  local age = (latest - cell) / width
  if age < 0 then
    return nil
  end
  units = math.min(units, age == 0 and latest_of(body, sum) or cell_at(body, age))
  if units == 0 then
    return nil
  end
  if units >= sum then
    return REMOVE
  end
  -- Keep all stored cells and the TTL: the decision may be of an older quota, which must not drop a cell.
  return KEEP_TTL, state_of_cells(window, remove_units(body, age, units), sum - units, latest)
end

local function refund(window, units, made, mark, latest, sum, text)
  if not latest then
    return nil
  end
  if made then
    return refund_charge(window, units, mark, latest, sum, text)
  end
  local started, elapsed, body
  started, elapsed, body, sum = open(window, latest, sum, text)
  if units >= sum then
    return REMOVE
  end
  -- The latest units first.
  local age, left = 0, units
  while left > 0 do
    local removed = math.min(left, age == 0 and latest_of(body, sum) or cell_at(body, age))
    body, sum, left, age = remove_units(body, age, removed), sum - removed, left - removed, age + 1
    if age > window.cells + 1 then
      -- The sum was wrong.
      break
    end
  end
  return reset_of(window, body, sum, elapsed), state_of_cells(window, body, sum, started)
end

-- Leased units are charged to the latest cell when the lease starts. The lease ends with that cell, because within a
-- cell every unit counts the same, and its name is that end.
local function return_lease(window, units, spent, name, latest, sum, text)
  if not latest or units == spent or name ~= now - now % window.width + window.width then
    return nil
  end
  -- At most what is in the cell: the key may have been reset since.
  return refund_charge(window, units - spent, name - 1, latest, sum, text)
end

local function lease(window, units, latest, sum, text)
  local ends = now - now % window.width + window.width
  local _, _, _, _, _, lifetime, started, new_sum, cells = decide(window, units, latest, sum, text)
  return ends - now, ends, ends - 1, lifetime, started, new_sum, cells
end

return {
  policy = policy,
  decide = decide,
  read = read,
  value_of = value_of,
  refund = refund,
  return_lease = return_lease,
  lease = lease,
}
