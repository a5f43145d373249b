--[[
  Sliding window: at most `limit` units in a window that slides over cells of `width` microseconds each.

  The latest `cells` cells count in full. The one before them, the sliding cell, counts by the share of it that is still
  inside the window, as if its units had come evenly, rounded down. With one cell this is the sliding window counter.

  Rounded up, the share would deny units that come evenly below the limit: at 4 per second, one of four. Exact fractions
  would deny the same ones.

  State     when the latest cell started; the sum of all cells; a text: 6 bytes of the width, then 5 bytes of units per
            cell, the latest first, the most significant byte first.
  Arguments the limit; the number of cells; their width in microseconds.
  Mark      the last microsecond of the cell that the charge counts in.

  Cells are read one by one only where they leave the window, and where a denial looks for its retry time.

  A latest cell that starts in the future means that the clock stepped back: all cells move back with it. A denial
  writes this down, so that the retry time it names stays true. Cells of another width are of an older quota: each
  counts at the time at which it ended.
]]
-- uses: prelude muldiv state
local CELL = 5
local EMPTY = string.rep('\0', CELL)
-- The most that 5 bytes hold, which is above every limit.
local MAX_UNITS = 1099511627775

local function policy(limit, cells, width)
  return { limit = limit, cells = cells, width = width }
end

local function cell_at(body, index)
  local first = index * CELL
  if first >= #body then
    return 0
  end
  return (struct.unpack('>I5', body, first + 1))
end

local function sum_of(body, first, last)
  local sum = 0
  for i = first, last do
    sum = sum + cell_at(body, i)
  end
  return sum
end

-- Converts cells of another width: each counts in the cell in which it ended. Returns the cells and their sum.
local function convert(old, old_width, latest, cells, width, started)
  local counts, oldest = {}, -1
  for i = 0, #old / CELL - 1 do
    local ended = math.min(latest - i * old_width + old_width - 1, now)
    local age = math.max(0, math.floor((started - ended + width - 1) / width))
    if age > cells then
      break
    end
    counts[age] = math.min((counts[age] or 0) + cell_at(old, i), MAX_UNITS)
    oldest = age
  end
  local body, sum = {}, 0
  for i = 0, oldest do
    local units = counts[i] or 0
    body[i + 1] = pack('>I5', units)
    sum = sum + units
  end
  return table.concat(body), sum
end

-- Returns the width and the cells of a state.
local function read_cells(latest, text)
  -- With the most cells of a window, 1000, and the sliding one.
  local size = text and #text or 0
  if size < 6 + CELL or size > 5011 or (size - 6) % CELL ~= 0 then
    error('RATELIMIT-FOREIGN', 0)
  end
  local width = struct.unpack('>I6', text)
  if width == 0 or latest % width ~= 0 then
    error('RATELIMIT-FOREIGN', 0)
  end
  return width, string.sub(text, 7)
end

local function state_of_cells(window, body, sum, started)
  return started, sum, pack('>I6', window.width) .. body
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
    body, sum = convert(body, old_width, latest, cells, width, started)
    return started, elapsed, body, sum, stale
  end
  local age, stored = (started - latest) / width, #body / CELL
  local kept = math.min(stored, cells + 1 - age)
  if kept <= 0 then
    return started, elapsed, '', 0, stale
  end
  if kept < stored then
    -- Add up the cells that leave or the cells that stay, the smaller group.
    if stored - kept < kept then
      sum = sum - sum_of(body, kept, stored - 1)
    else
      sum = sum_of(body, 0, kept - 1)
    end
    body = string.sub(body, 1, kept * CELL)
  end
  if age > 0 then
    body = string.rep(EMPTY, age) .. body
  end
  return started, elapsed, body, sum, stale
end

-- Returns the index of the latest cell with units; nil where all are empty.
local function newest_of(body)
  local byte = string.find(body, '[^%z]')
  return byte and math.floor((byte - 1) / CELL)
end

-- Returns the microseconds until all cells have left the window.
local function reset_of(window, body, elapsed)
  local newest = newest_of(body)
  return newest and (window.cells + 1 - newest) * window.width - elapsed or 0
end

-- Returns the microseconds until at most `room` units count; nil where the cells do not have that many. `full` units are in
-- the cells that count in full.
local function wait_for(window, body, elapsed, full, room)
  local cells, width = window.cells, window.width
  for passed = 0, cells do
    if full <= room then
      -- During this cell the share of the sliding cell shrinks to what fits beside the full cells.
      local sliding, inside = cell_at(body, cells - passed), 0
      if sliding > room - full then
        local kept, rest = muldiv(room - full + 1, width, sliding)
        inside = width - kept + (rest > 0 and 0 or 1)
      end
      return math.max(0, passed * width + inside - elapsed)
    end
    if passed < cells then
      full = full - cell_at(body, cells - 1 - passed)
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
  if full < 0 then
    error('RATELIMIT-FOREIGN', 0)
  end
  -- The units of the sliding cell that count, rounded down.
  local counted = muldiv(sliding, width - elapsed, width)
  local free = math.max(0, limit - full - counted)
  if cost > free then
    local retry = NEVER
    if cost <= limit then
      retry = wait_for(window, body, elapsed, full, limit - cost) or error('RATELIMIT-FOREIGN', 0)
    end
    local reset = reset_of(window, body, elapsed)
    return retry, free, reset, 0, mark, stale and reset > 0 and reset or nil, state_of_cells(window, body, sum, started)
  end
  if cost == 0 then
    local reset = reset_of(window, body, elapsed)
    return 0, free, reset, 0, mark, stale and reset > 0 and reset or nil, state_of_cells(window, body, sum, started)
  end
  local reset = (cells + 1) * width - elapsed
  body = pack('>I5', cell_at(body, 0) + cost) .. string.sub(body, CELL + 1)
  return 0, free - cost, reset, 0, mark, reset, state_of_cells(window, body, sum + cost, started)
end

if brief then
  return { policy = policy, decide = decide }
end

-- Returns the cells after `units` units were removed from the cell `index` and the older ones.
local function remove_units(body, index, cells, units)
  local first = index
  -- Stop at the last cell: the sum is read from the state and may be wrong.
  while cell_at(body, index) < units and index < cells do
    units = units - cell_at(body, index)
    index = index + 1
  end
  local cell = pack('>I5', math.max(0, cell_at(body, index) - units))
  return string.sub(body, 1, first * CELL) .. string.rep(EMPTY, index - first) .. cell
    .. string.sub(body, (index + 1) * CELL + 1)
end

-- Raises an error if the stored sum is not the sum of the cells.
local function check_sum(body, sum)
  if sum_of(body, 0, #body / CELL - 1) ~= sum then
    error('RATELIMIT-FOREIGN', 0)
  end
end

local function refund_charge(window, units, mark, latest, sum, text)
  local width, body = read_cells(latest, text)
  local cell = mark - mark % width
  -- Cells of another width are of another quota, and a latest cell in the future is of a clock that stepped back.
  if width ~= window.width or latest > now or now - cell >= (window.cells + 1) * width then
    return nil
  end
  local index = (latest - cell) / width
  units = index >= 0 and math.min(units, cell_at(body, index)) or 0
  if units == 0 then
    return nil
  end
  check_sum(body, sum)
  if units >= sum then
    return REMOVE
  end
  -- Keep all stored cells and the TTL: the decision may be of an older quota, which must not drop a cell.
  return KEEP_TTL, state_of_cells(window, remove_units(body, index, index, units), sum - units, latest)
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
  units = math.min(units, sum)
  if units == sum then
    return REMOVE
  end
  check_sum(body, sum)
  body = remove_units(body, newest_of(body), window.cells, units)
  return reset_of(window, body, elapsed), state_of_cells(window, body, sum - units, started)
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

return { policy = policy, decide = decide, refund = refund, return_lease = return_lease, lease = lease }
