--[[
  Sliding window: at most `limit` units in a window that slides over cells of `width` microseconds each.

  The latest `cells` cells count in full. The one before them, the sliding cell, counts by the share of it that is still
  inside the window, as if its units had come evenly. With one cell this is the sliding window counter.

  State     a string: `SW`, 7 bytes of the time at which the latest cell started, 6 bytes of the width, 7 bytes of the
            sum of all cells, then 5 bytes of units per cell, the latest first.
  Arguments the limit; the number of cells; their width in microseconds.
  Mark      the last microsecond of the cell that the charge counts in.
  Commands  GET; SET where units are charged; DEL where a refund leaves none. Cells are read one by one only where they
            leave the window, and where a denial looks for its retry time.

  A latest cell that starts in the future means that the clock stepped back: all cells move back with it. A denial
  writes this down, so that the retry time it names stays true. Cells of another width are of an older quota: each
  counts at the time at which it ended.
]]
-- uses: prelude muldiv bytes
local HEAD, CELL = 22, 5
local EMPTY = string.rep('\0', CELL)
-- The most that 5 bytes hold, which is above every limit.
local MAX_UNITS = 1099511627775

local function cell_at(body, index)
  local a, b, c, d, e = string.byte(body, index * CELL + 1, index * CELL + CELL)
  if not a then
    return 0
  end
  return (((a * 256 + b) * 256 + c) * 256 + d) * 256 + e
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
    local age = math.max(0, floor((started - ended + width - 1) / width))
    if age > cells then
      break
    end
    counts[age] = math.min((counts[age] or 0) + cell_at(old, i), MAX_UNITS)
    oldest = age
  end
  local body, sum = {}, 0
  for i = 0, oldest do
    local units = counts[i] or 0
    body[i + 1] = units == 0 and EMPTY or pack(units, CELL)
    sum = sum + units
  end
  return table.concat(body), sum
end

-- Returns when the latest cell started, the width, the sum and the cells; nil where there is no key.
local function read(key)
  local state = redis.call('GET', key)
  if not state then
    return nil
  end
  if #state < HEAD + CELL or (#state - HEAD) % CELL ~= 0 or string.sub(state, 1, 2) ~= 'SW' then
    foreign()
  end
  local latest, width, sum = unpack_at(state, 3, 7), unpack_at(state, 10, 6), unpack_at(state, 16, 7)
  if latest >= TOO_LARGE or width == 0 or latest % width ~= 0 or sum >= TOO_LARGE then
    foreign()
  end
  return latest, width, sum, string.sub(state, HEAD + 1)
end

-- Returns the cells of `key` as of `now`, their sum, and whether a denial must write this state.
local function open(key, cells, width, started)
  local latest, old_width, sum, body = read(key)
  if not latest then
    return '', 0, false
  end
  local stale = latest > now
  if stale then
    latest = started
  end
  if old_width ~= width then
    body, sum = convert(body, old_width, latest, cells, width, started)
    return body, sum, stale
  end
  local age, stored = (started - latest) / width, #body / CELL
  local kept = math.min(stored, cells + 1 - age)
  if kept <= 0 then
    return '', 0, stale
  end
  if kept < stored then
    -- Add up the cells that leave or those that stay, whichever are fewer.
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
  return body, sum, stale
end

-- Returns the index of the latest cell with units; nil where all are empty.
local function newest_of(body)
  local byte = string.find(body, '[^%z]')
  return byte and floor((byte - 1) / CELL)
end

-- Returns the microseconds until all cells have left the window.
local function reset_of(body, cells, width, elapsed)
  local newest = newest_of(body)
  return newest and (cells + 1 - newest) * width - elapsed or 0
end

local function state_of(body, sum, width, started)
  return 'SW' .. pack(started, 7) .. pack(width, 6) .. pack(sum, 7) .. body
end

local function write(key, body, sum, cells, width, started)
  local state = state_of(body, sum, width, started)
  redis.call('SET', key, state, 'PX', ttl(reset_of(body, cells, width, now - started)))
end

-- Returns the microseconds until at most `room` units count. `elapsed` microseconds of the latest cell have passed;
-- `full` units are in the cells that count in full.
local function wait_for(body, cells, width, elapsed, full, room)
  for passed = 0, cells do
    if full <= room then
      -- During this cell the share of the sliding cell shrinks to what fits beside the full cells.
      local sliding, inside = cell_at(body, cells - passed), 0
      if sliding > room - full then
        inside = width - muldiv(room - full, width, sliding)
      end
      return math.max(0, passed * width + inside - elapsed)
    end
    if passed < cells then
      full = full - cell_at(body, cells - 1 - passed)
    end
  end
end

local function plan(key, cost, arg)
  local limit, cells, width = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local started = now - now % width
  local elapsed = now - started
  local body, sum, stale = open(key, cells, width, started)
  local sliding = cell_at(body, cells)
  local full = sum - sliding
  local used = full + muldiv_up(sliding, width - elapsed, width)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    retry = wait_for(body, cells, width, elapsed, full, limit - cost)
  end
  local reset = reset_of(body, cells, width, elapsed)
  return {
    retry = retry,
    remaining = free,
    reset = reset,
    remaining_after = free - cost,
    reset_after = cost > 0 and (cells + 1) * width - elapsed or reset,
    mark = started + width - 1,
    charge = function()
      local cell = pack(cell_at(body, 0) + cost, CELL)
      write(key, cell .. string.sub(body, CELL + 1), sum + cost, cells, width, started)
    end,
    repair = stale and reset > 0 and function()
      write(key, body, sum, cells, width, started)
    end,
  }
end

-- Returns the cells after `units` units were removed from the cell `index` and the older ones.
local function remove_units(body, index, cells, units)
  local first = index
  -- Stop at the last cell: the sum is read from the state and may be wrong.
  while cell_at(body, index) < units and index < cells do
    units = units - cell_at(body, index)
    index = index + 1
  end
  local cell = pack(math.max(0, cell_at(body, index) - units), CELL)
  body = string.sub(body, 1, first * CELL)
    .. string.rep(EMPTY, index - first)
    .. cell
    .. string.sub(body, (index + 1) * CELL + 1)
  return body
end

local function refund_charge(key, units, cells, width, mark)
  local latest, old_width, sum, body = read(key)
  local cell = mark - mark % width
  -- Cells of another width are of another quota, and a latest cell in the future is of a clock that stepped back.
  if not latest or old_width ~= width or latest > now or now - cell >= (cells + 1) * width then
    return
  end
  local index = (latest - cell) / width
  units = index >= 0 and math.min(units, cell_at(body, index)) or 0
  if units == 0 then
    return
  end
  if units >= sum then
    redis.call('DEL', key)
    return
  end
  -- Keep all stored cells and the TTL: the decision may be of an older quota, which must not drop a cell.
  redis.call('SET', key, state_of(remove_units(body, index, index, units), sum - units, width, latest), 'KEEPTTL')
end

local function refund(key, units, arg, made, mark)
  local cells, width = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  if made then
    return refund_charge(key, units, cells, width, mark)
  end
  local started = now - now % width
  local body, sum = open(key, cells, width, started)
  units = math.min(units, sum)
  if units == sum then
    redis.call('DEL', key)
    return
  end
  body = remove_units(body, newest_of(body), cells, units)
  write(key, body, sum - units, cells, width, started)
end

if not leasing then
  return plan, refund
end

local function charge(key, cost, arg)
  local planned = plan(key, cost, arg)
  if planned.retry ~= 0 then
    if planned.repair then
      planned.repair()
    end
    return planned.retry, planned.remaining, planned.reset
  end
  if cost > 0 then
    planned.charge()
  end
  return 0, planned.remaining_after, planned.reset_after
end

-- Leased units are charged to the latest cell when the lease starts. The lease ends with that cell, because within a
-- cell every unit counts the same, and its name is that end.
local function lease(key, cost, arg, wanted, name, units, spent)
  local cells, width = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local started = now - now % width
  if units > spent and name == started + width then
    -- At most what is in the cell: the key may have been reset since.
    refund(key, units - spent, arg, now, started + width - 1)
  end
  local retry, remaining, reset = charge(key, cost, arg)
  local leased = retry == 0 and math.min(wanted, floor(remaining / 4)) or 0
  if leased > 0 then
    retry, remaining, reset = charge(key, leased, arg)
  end
  return retry, remaining, reset, leased, started + width - now, started + width, started + width - 1
end

return plan, refund, nil, nil, lease
