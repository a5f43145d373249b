--[[
  Fixed window: at most `limit` units in each window of `period` microseconds.

  An anchored window starts with a key's first charge; the next one starts with the first charge after it ended. Aligned
  windows start at `offset` plus each multiple of `period`.

  State     a time, when the window started, and a count, the units charged in it.
  Arguments the limit; the period; 1 for aligned and 0 for anchored; the offset in microseconds, below the period.
  Mark      when the charge's window started. In any other window the charge no longer counts.
  Commands  GET; SET where units are charged; DEL where a refund leaves none.

  A window that starts in the future means that the clock stepped back, or that aligned windows became longer. Its units
  count in the current window. A denial writes this down, so that the retry time it names stays true.
]]
-- uses: prelude count

-- Returns the current window of `key`: when it started, its used units, the microseconds left, and whether a denial
-- must write this state.
local function open(key, arg)
  local period = tonumber(ARGV[arg + 1])
  local started, used, text = read_count(key)
  if text then
    foreign()
  end
  local starts, stale = now, false
  if ARGV[arg + 2] == '1' then
    -- The first window of 1970 may start before 0.
    starts = math.max(0, now - (now - tonumber(ARGV[arg + 3])) % period)
  end
  if not started then
    started, used = starts, 0
  elseif started > starts then
    started, stale = starts, true
  elseif started + period <= now then
    started, used = starts, 0
  end
  return started, used, started + period - now, stale
end

-- Returns the window as open() does, then its free units and the retry time of `cost`.
local function evaluate(key, cost, arg)
  local limit = tonumber(ARGV[arg])
  local started, used, left, stale = open(key, arg)
  local free = math.max(0, limit - used)
  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > free then
    retry = left
  end
  return started, used, left, stale, free, retry
end

local function plan(key, cost, arg)
  local started, used, left, stale, free, retry = evaluate(key, cost, arg)
  return {
    retry = retry,
    remaining = free,
    reset = used > 0 and left or 0,
    remaining_after = free - cost,
    reset_after = used + cost > 0 and left or 0,
    mark = started,
    charge = function()
      write_count(key, started, used + cost, left)
    end,
    repair = stale and used > 0 and function()
      write_count(key, started, used, left)
    end,
  }
end

local function refund(key, units, arg, made, mark)
  local started, used, left
  if made then
    -- Read the window as it is stored: the decision may be of an older quota, which must not end this window.
    started, used = read_count(key)
    if mark ~= started then
      return
    end
  else
    started, used, left = open(key, arg)
  end
  if used > units then
    write_count(key, started, used - units, left)
  else
    redis.call('DEL', key)
  end
end

local function charge(key, cost, arg)
  local started, used, left, stale, free, retry = evaluate(key, cost, arg)
  local charged = retry == 0 and cost or 0
  if charged > 0 or retry ~= 0 and stale and used > 0 then
    write_count(key, started, used + charged, left)
  end
  return retry, free - charged, used + charged > 0 and left or 0, 0, started
end

if not leasing then
  return plan, refund, nil, charge
end

-- Leased units are charged when the lease starts. The lease ends with its window, and its name is that end.
local function lease(key, cost, arg, wanted, name, units, spent)
  local _, _, left = open(key, arg)
  if units > spent and name == now + left then
    refund(key, units - spent, arg)
  end
  local retry, remaining, reset = charge(key, cost, arg)
  local leased = retry == 0 and math.min(wanted, floor(remaining / 4)) or 0
  if leased > 0 then
    retry, remaining, reset = charge(key, leased, arg)
  end
  local started
  started, _, left = open(key, arg)
  return retry, remaining, reset, leased, left, now + left, started
end

return plan, refund, nil, charge, lease
