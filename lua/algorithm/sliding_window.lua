--[[
  Sliding window: at most `limit` units in a window that slides over cells, each `width` microseconds
  long. The `cells` latest ones count in full, and the one before them by the share of it that is still
  inside, as if its units had come evenly. One cell is the weighted pair of counters.

  State     a string: the mark `SW`, 7 bytes of the time the latest cell began, 6 of the width, 7 of the sum of
            all cells, then 5 for each cell's units, the latest first.
  Arguments ARGV[arg], the limit; ARGV[arg + 1], the number of cells; ARGV[arg + 2], their width.
  Mark      the last microsecond of the cell that the charge counts in.
  Cost      GET; and SET with PX where something is charged. Cells are read one by one only where they leave the
            window, and where a denial looks for the moment at which enough of them have.

  A latest cell after that of `now` means that the clock stepped back: all cells move back with it, and
  a refusal writes that down, so that the wait it names holds. Cells of another width come from a changed
  quota: each counts where it ended.
]]
local HEAD, CELL = 22, 5
local NOTHING = string.rep('\0', CELL)
-- More than five bytes hold, which is more than any limit.
local MOST = 1099511627775

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

-- Cells of another width, counted where each of them ended.
local function convert(old, old_width, latest, cells, width, began)
  local counts, oldest = {}, -1
  for i = 0, #old / CELL - 1 do
    local ended = math.min(latest - i * old_width + old_width - 1, now)
    local age = math.max(0, floor((began - ended + width - 1) / width))
    if age > cells then
      break
    end
    counts[age] = math.min((counts[age] or 0) + cell_at(old, i), MOST)
    oldest = age
  end
  local body, sum = {}, 0
  for i = 0, oldest do
    local units = counts[i] or 0
    body[i + 1] = units == 0 and NOTHING or pack(units, CELL)
    sum = sum + units
  end
  return table.concat(body), sum
end

-- When the latest cell began, the width, the sum and the cells; nil where there are none.
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

-- The cells of `key` as of `now` and their sum; and whether a denial must write that down.
local function open(key, cells, width, began)
  local latest, old_width, sum, body = read(key)
  if not latest then
    return '', 0, false
  end
  local moved = latest > now
  if moved then
    latest = began
  end
  if old_width ~= width then
    body, sum = convert(body, old_width, latest, cells, width, began)
    return body, sum, moved
  end
  local age, stored = (began - latest) / width, #body / CELL
  local kept = math.min(stored, cells + 1 - age)
  if kept <= 0 then
    return '', 0, moved
  end
  if kept < stored then
    -- Of those that leave and those that stay, the fewer are added up.
    if stored - kept < kept then
      sum = sum - sum_of(body, kept, stored - 1)
    else
      sum = sum_of(body, 0, kept - 1)
    end
    body = string.sub(body, 1, kept * CELL)
  end
  if age > 0 then
    body = string.rep(NOTHING, age) .. body
  end
  return body, sum, moved
end

-- The latest cell with something in it; nil where there is none.
local function newest_of(body)
  local byte = string.find(body, '[^%z]')
  return byte and floor((byte - 1) / CELL)
end

-- Microseconds until nothing of the cells is left.
local function reset_of(body, cells, width, gone)
  local newest = newest_of(body)
  return newest and (cells + 1 - newest) * width - gone or 0
end

local function state_of(body, sum, width, began)
  return 'SW' .. pack(began, 7) .. pack(width, 6) .. pack(sum, 7) .. body
end

local function write(key, body, sum, cells, width, began)
  local state = state_of(body, sum, width, began)
  redis.call('SET', key, state, 'PX', ttl(reset_of(body, cells, width, now - began)))
end

-- Microseconds until `room` or fewer units are left, beginning `gone` into the latest cell. `whole` units are in
-- all cells but the one that slides out.
local function wait_for(body, cells, width, gone, whole, room)
  for passed = 0, cells do
    if whole <= room then
      -- Within this cell the sliding one shrinks to what is allowed beside the whole ones.
      local sliding, inside = cell_at(body, cells - passed), 0
      if sliding > room - whole then
        inside = width - muldiv(room - whole, width, sliding)
      end
      return math.max(0, passed * width + inside - gone)
    end
    if passed < cells then
      whole = whole - cell_at(body, cells - 1 - passed)
    end
  end
end

local function plan(key, cost, arg)
  local limit, cells, width = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local began = now - now % width
  local gone = now - began
  local body, sum, moved = open(key, cells, width, began)
  local sliding = cell_at(body, cells)
  local whole = sum - sliding
  local used = whole + muldiv_up(sliding, width - gone, width)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    retry = wait_for(body, cells, width, gone, whole, limit - cost)
  end
  local reset = reset_of(body, cells, width, gone)
  return {
    retry = retry,
    remaining = free,
    reset = reset,
    remaining_after = free - cost,
    reset_after = cost > 0 and (cells + 1) * width - gone or reset,
    mark = began + width - 1,
    charge = function()
      local cell = pack(cell_at(body, 0) + cost, CELL)
      write(key, cell .. string.sub(body, CELL + 1), sum + cost, cells, width, began)
    end,
    repair = moved and reset > 0 and function()
      write(key, body, sum, cells, width, began)
    end,
  }
end

-- Takes `units` units, of which there are as many, out of the cells from `index` on.
local function take_out(body, index, cells, units)
  local first = index
  -- No further than there are cells: the sum is only as good as the state.
  while cell_at(body, index) < units and index < cells do
    units = units - cell_at(body, index)
    index = index + 1
  end
  local cell = pack(math.max(0, cell_at(body, index) - units), CELL)
  body = string.sub(body, 1, first * CELL)
    .. string.rep(NOTHING, index - first)
    .. cell
    .. string.sub(body, (index + 1) * CELL + 1)
  return body
end

local function refund_of(key, units, cells, width, mark)
  local latest, old_width, sum, body = read(key)
  local cell = mark - mark % width
  -- Cells of another width come from another quota, and later ones from a clock that stepped back.
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
  -- As it stands, with its TTL: its decision may be of an older quota, by which no cell must be dropped.
  redis.call('SET', key, state_of(take_out(body, index, index, units), sum - units, width, latest), 'KEEPTTL')
end

-- Without a charge, the latest units first.
local function refund(key, units, arg, made, mark)
  local cells, width = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  if made then
    return refund_of(key, units, cells, width, mark)
  end
  local began = now - now % width
  local body, sum = open(key, cells, width, began)
  units = math.min(units, sum)
  if units == sum then
    redis.call('DEL', key)
    return
  end
  body = take_out(body, newest_of(body), cells, units)
  write(key, body, sum - units, cells, width, began)
end

if not leasing then
  return plan, refund
end

local function take(key, cost, arg)
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

-- A lease is charged to the latest cell when it is taken and ends with that cell, by whose end it is called:
-- within a cell units weigh the same at any moment.
local function lease(key, cost, arg, wanted, name, units, spent)
  local cells, width = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local began = now - now % width
  if units > spent and name == began + width then
    -- Not more than are in the cell: somebody else may have reset the key.
    refund(key, units - spent, arg, now, began + width - 1)
  end
  local retry, remaining, reset = take(key, cost, arg)
  local leased = retry == 0 and math.min(wanted, floor(remaining / 4)) or 0
  if leased > 0 then
    retry, remaining, reset = take(key, leased, arg)
  end
  return retry, remaining, reset, leased, began + width - now, began + width, began + width - 1
end

return plan, refund, nil, nil, lease
