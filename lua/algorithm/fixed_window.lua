--[[
  Fixed window: at most `limit` units in each window of `period` microseconds.

  Anchored, a window opens with the first charge of its key and the next one with the first charge after
  it closed. Aligned, windows follow the clock: every one opens a multiple of `period` after `offset`.

  State     one number: the time the window opened, and the units charged in it.
  Arguments ARGV[arg], the limit; ARGV[arg + 1], the period; ARGV[arg + 2], 1 for aligned and 0 for
            anchored; ARGV[arg + 3], the offset, below the period, 0 where anchored.
  Mark      when the window opened that the charge counts in. In any other window it counts no more.
  Cost      GET; and SET with PX where something is charged.

  A window that opened later than the one of `now` means that the clock stepped back, or that aligned
  windows became longer. What was charged in it counts in the window of `now`, and a refusal writes
  that down, so that the wait it names holds.
]]

-- The window of `key` as of `now`: when it opened, what is used of it, how long it lasts, and whether a
-- refusal must write that down.
local function open(key, arg)
  local period = tonumber(ARGV[arg + 1])
  local opened, used, text = read_count(key)
  if text then
    foreign()
  end
  local opens, moved = now, false
  if ARGV[arg + 2] == '1' then
    -- The first window of 1970 may have opened before it; no clock shows that.
    opens = math.max(0, now - (now - tonumber(ARGV[arg + 3])) % period)
  end
  if not opened then
    opened, used = opens, 0
  elseif opened > opens then
    opened, moved = opens, true
  elseif opened + period <= now then
    opened, used = opens, 0
  end
  return opened, used, opened + period - now, moved
end

-- The window of `key` as of `now`, what is free in it, and what it says to `cost`.
local function weigh(key, cost, arg)
  local limit = tonumber(ARGV[arg])
  local opened, used, left, moved = open(key, arg)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    retry = left
  end
  return opened, used, left, moved, free, retry
end

local function plan(key, cost, arg)
  local opened, used, left, moved, free, retry = weigh(key, cost, arg)
  return {
    retry = retry,
    remaining = free,
    reset = used > 0 and left or 0,
    remaining_after = free - cost,
    reset_after = used + cost > 0 and left or 0,
    mark = opened,
    charge = function()
      write_count(key, opened, used + cost, left)
    end,
    repair = moved and used > 0 and function()
      write_count(key, opened, used, left)
    end,
  }
end

local function refund(key, units, arg, made, mark)
  local opened, used, left
  if made then
    -- As it stands: its decision may be of an older quota, by which this window must not be judged.
    opened, used = read_count(key)
    if mark ~= opened then
      return
    end
  else
    opened, used, left = open(key, arg)
  end
  if used > units then
    write_count(key, opened, used - units, left)
  else
    redis.call('DEL', key)
  end
end

local function take(key, cost, arg)
  local opened, used, left, moved, free, retry = weigh(key, cost, arg)
  local charged = retry == 0 and cost or 0
  if charged > 0 or retry ~= 0 and moved and used > 0 then
    write_count(key, opened, used + charged, left)
  end
  return retry, free - charged, used + charged > 0 and left or 0, 0, opened
end

if not leasing then
  return plan, refund, nil, take
end

-- A lease is charged when it is taken and ends with its window, by whose end it is called.
local function lease(key, cost, arg, wanted, name, units, spent)
  local _, _, left = open(key, arg)
  if units > spent and name == now + left then
    refund(key, units - spent, arg)
  end
  local retry, remaining, reset = take(key, cost, arg)
  local leased = retry == 0 and math.min(wanted, floor(remaining / 4)) or 0
  if leased > 0 then
    retry, remaining, reset = take(key, leased, arg)
  end
  local opened
  opened, _, left = open(key, arg)
  return retry, remaining, reset, leased, left, now + left, opened
end

return plan, refund, nil, take, lease
