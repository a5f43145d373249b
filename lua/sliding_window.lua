--[[
  Sliding window: at most `limit` units in a window that slides over cells, each `width` microseconds
  long. The `cells` latest ones count in full, and the one before them by the share of it that is still
  inside, as if its units had come evenly. One cell is the weighted pair of counters.

  State     a string: 7 bytes of the time the latest cell began, 6 of the width, then 5 for each cell's
            units, the latest first.
  Arguments ARGV[arg], the limit; ARGV[arg + 1], the number of cells; ARGV[arg + 2], their width.
  Cost      GET; and SET with PX where something is charged. Lua's part grows with the number of cells.

  A latest cell after that of `now` means that the clock stepped back: all cells move back with it, and
  a refusal writes that down, so that the wait it names holds. Cells of another width come from a changed
  quota: each counts where it ended.
]]

-- The units of each cell as of `now`, counts[0] the latest, counts[cells] the one that slides out; and
-- whether a refusal must write that down.
local function open(key, cells, width, began)
  local counts = {}
  for i = 0, cells do
    counts[i] = 0
  end
  local state = redis.call('GET', key)
  if not state then
    return counts, false
  end
  if #state < 18 or (#state - 13) % 5 ~= 0 then
    not_ours()
  end
  local latest, old_width = unpack_at(state, 1, 7), unpack_at(state, 8, 6)
  local moved = latest > now
  if moved then
    latest = began
  end
  for i = 0, (#state - 13) / 5 - 1 do
    local start = latest - i * old_width
    if old_width ~= width then
      start = math.min(start + old_width - 1, now)
    end
    local age = math.max(0, floor((began - start + width - 1) / width))
    if start >= 0 and age <= cells then
      -- No more than five bytes hold, which is more than any limit.
      counts[age] = math.min(counts[age] + unpack_at(state, 14 + i * 5, 5), 1099511627775)
    end
  end
  return counts, moved
end

local function write(key, counts, cells, width, began)
  local oldest = cells
  while oldest > 0 and counts[oldest] == 0 do
    oldest = oldest - 1
  end
  local newest = 0
  while counts[newest] == 0 and newest < oldest do
    newest = newest + 1
  end
  local state = pack(began, 7) .. pack(width, 6)
  for i = 0, oldest do
    state = state .. pack(counts[i], 5)
  end
  redis.call('SET', key, state, 'PX', ttl(began + (cells + 1 - newest) * width - now))
end

-- What the cells weigh, rounded up, `gone` microseconds into the latest one.
local function weigh(counts, cells, width, gone)
  local whole = 0
  for i = 0, cells - 1 do
    whole = whole + counts[i]
  end
  return whole + muldiv_up(counts[cells], width - gone, width), whole
end

-- Microseconds until nothing of the cells is left.
local function reset_of(counts, cells, width, gone)
  for i = 0, cells do
    if counts[i] > 0 then
      return (cells + 1 - i) * width - gone
    end
  end
  return 0
end

-- Microseconds until `room` or fewer units are left, beginning `gone` into the latest cell.
local function wait_for(counts, cells, width, gone, whole, room)
  for passed = 0, cells do
    local sliding = counts[cells - passed]
    if whole <= room then
      -- Within this cell the sliding one shrinks to what is allowed beside the whole ones.
      local inside = 0
      if sliding > room - whole then
        inside = width - muldiv(room - whole, width, sliding)
      end
      return math.max(0, passed * width + inside - gone)
    end
    if passed < cells then
      whole = whole - counts[cells - 1 - passed]
    end
  end
end

local function plan(key, cost, arg)
  local limit, cells, width = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local began = now - now % width
  local gone = now - began
  local counts, moved = open(key, cells, width, began)
  local used, whole = weigh(counts, cells, width, gone)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    retry = wait_for(counts, cells, width, gone, whole, limit - cost)
  end
  local reset = reset_of(counts, cells, width, gone)
  return {
    retry = retry,
    remaining = free,
    reset = reset,
    remaining_after = free - cost,
    reset_after = cost > 0 and (cells + 1) * width - gone or reset,
    charge = function()
      counts[0] = counts[0] + cost
      write(key, counts, cells, width, began)
    end,
    repair = moved and reset > 0 and function()
      write(key, counts, cells, width, began)
    end,
  }
end

-- Gives back the latest units first.
local function refund(key, units, arg)
  local cells, width = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local began = now - now % width
  local gone = now - began
  local counts = open(key, cells, width, began)
  for i = 0, cells do
    local given = math.min(counts[i], units)
    counts[i] = counts[i] - given
    units = units - given
  end
  if reset_of(counts, cells, width, gone) == 0 then
    redis.call('DEL', key)
  else
    write(key, counts, cells, width, began)
  end
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
    local counts = open(key, cells, width, began)
    refund(key, math.min(counts[0], units - spent), arg)
  end
  local retry, remaining, reset = take(key, cost, arg)
  local leased = retry == 0 and math.min(wanted, floor(remaining / 4)) or 0
  if leased > 0 then
    retry, remaining, reset = take(key, leased, arg)
  end
  return retry, remaining, reset, leased, began + width - now, began + width
end

return plan, refund, nil, nil, lease
