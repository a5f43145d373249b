--[[
  Fixed window: at most `limit` units in each window of `period` microseconds.

  An anchored window starts with a key's first charge; the next one starts with the first charge after it ended. Aligned
  windows start at `offset` plus each multiple of `period`.

  State     when the first of its units was charged, by which a window of another period knows whether they are its own; the
            units charged in it. With a debt, the text `<owed>,<carried>,<from>`: see "The debt of a window" in lua/README.md.
  Arguments the limit; the period; the kind, 0 for anchored windows, 1 for aligned ones, 2 for calendar windows, and 3 more with
            a debt; the offset in microseconds, below the period, or the number of the calendar; with a debt, the debt, and 1 for
            its debits, otherwise 0. For a calendar, whose period is not used, when the windows around the time of the call
            start: the one before it, its own, and the one after it; and when that one ends. With a debt, as many more on each
            side as it reaches. The script knows no dates.
  Mark      when the first unit of the charge's window was charged. In any other window the charge no longer counts, except for
            what its window has left to the next one that was written.

  A time in the future means that the clock stepped back. The units count in the current window. A denial writes this down, so
  that the retry time it names stays true.
]]
-- uses: prelude state
local function policy(limit, period, kind, offset, ...)
  local window = { limit = limit, period = period, offset = kind % 3 == 1 and offset or nil, debt = 0, room = 0 }
  if kind % 3 == 2 then
    -- The arguments with the starts, and the place of the first one: the debt and whether it is a debit may be before it.
    window.starts, window.first = { ... }, kind > 2 and 3 or 1
  end
  if kind > 2 then
    local debt, is_debit = ...
    window.debt, window.room = debt, debt * is_debit
  end
  return window
end

-- Returns when the current window of a calendar starts and ends, and the place of its start.
local function calendar_window(window)
  local starts, first = window.starts, window.first
  -- The place of the window before that of the call. Without a debt, there are four times; with one, as many more on each side.
  local before = first + (#starts - first - 3) / 2
  for i = before, before + 2 do
    if starts[i] <= now and now < starts[i + 1] then
      return starts[i], starts[i + 1], i
    end
  end
  -- The clock of the instance is wrong by more than a window. It repeats the call with the time of this reply.
  error('RATELIMIT-WINDOW', 0)
end

-- Returns what a text holds: the units beyond the limit, which the next windows pay for; the units that earlier windows charged;
-- and the mark of the charges in the last of those.
local function read_debt(text, used)
  if not text then
    return 0, 0, 0
  end
  local owed, carried, from = string.match(text, '^(%d+),(%d+),(%d+)$')
  if not owed or #text > 50 or math.max(owed, carried) > used or from + 0 >= 2^53 then
    error('RATELIMIT-FOREIGN', 0)
  end
  return owed + 0, carried + 0, from + 0
end

local function write_debt(owed, carried, from)
  return (owed > 0 or carried > 0) and string.format('%d,%d,%d', owed, carried, from) or nil
end

-- Returns a / b, rounded up.
local function divide_up(a, b)
  a = a + b - 1
  return (a - a % b) / b
end

-- Returns how many windows after the one of `started` the one that starts at `starts` is; for a calendar, whose start has
-- this place, at most one more than are known before it.
local function windows_since(window, started, starts, place)
  local period, offset = window.period, window.offset
  if place then
    local at = place
    while at > window.first and window.starts[at] > started do
      at = at - 1
    end
    return place - at + (window.starts[at] > started and 1 or 0)
  elseif offset then
    return (now - (now - offset) % period - started + (started - offset) % period) / period
  end
  return (now - started - (now - started) % period) / period
end

-- Returns the current window: when its first unit was charged, its used units, when it ends, whether a denial must write this
-- state, the place of its start in a calendar, and its debt.
local function open(window, started, used, text)
  local owed, carried, from = read_debt(text, used)
  local stale = false
  if not started then
    started, used = now, 0
  elseif started > now then
    started, stale = now, used > 0
  end
  -- What a larger limit admits is not owed, nor what is above the debt of this policy.
  owed = math.max(0, math.min(owed, window.debt, used - window.limit))
  local starts, ends, place
  if window.starts then
    starts, ends, place = calendar_window(window)
  elseif window.offset then
    -- The first window of 1970 may start before 0.
    starts = math.max(0, now - (now - window.offset) % window.period)
    ends = starts + window.period
  else
    starts = started + window.period > now and started or now
    ends = starts + window.period
  end
  if started < starts then
    local passed = owed > 0 and windows_since(window, started, starts, place) or 1
    local rest = owed - (passed - 1) * window.limit
    if rest > 0 then
      if not window.starts and not window.offset then
        starts = started + passed * window.period
        ends = starts + window.period
      end
      started, used, owed, carried, from = starts, rest, math.max(0, rest - window.limit), rest, started
    else
      started, used, owed, carried, from = now, 0, 0, 0, 0
    end
  end
  return started, used, ends, stale, place, owed, carried, from
end

-- Returns the microseconds until the window starts that is `windows` after the one that ends at `ends`.
local function wait(window, ends, place, windows)
  if place then
    return window.starts[place + windows] - now
  end
  return ends + (windows - 1) * window.period - now
end

local function decide(window, cost, started, used, text)
  local ends, stale, place, owed, carried, from
  started, used, ends, stale, place, owed, carried, from = open(window, started, used, text)
  local limit, room, retry = window.limit, window.room, 0
  local free = math.max(0, limit - used) + math.max(0, room - owed)
  if cost > limit + room then
    retry = NEVER
  elseif cost > free then
    -- A debit charges what remains, so it does not wait.
    retry = wait(window, ends, place, room > 0 and 1 or divide_up(owed + cost, limit))
  elseif cost > 0 then
    owed = owed + math.max(0, used + cost - math.max(used, limit))
    used, free, stale = used + cost, free - cost, true
  end
  local reset = used > 0 and wait(window, ends, place, 1 + divide_up(owed, limit)) or 0
  return retry, free, reset, 0, started, stale and reset or nil, started, used, write_debt(owed, carried, from)
end

if brief then
  return { policy = policy, decide = decide }
end

local function refund(window, units, made, mark, started, used, text)
  if not started then
    return nil
  end
  local lifetime, owed, carried, from, _ = KEEP_TTL, 0, 0, 0, nil
  if not made then
    started, used, _, _, _, owed, carried, from = open(window, started, used, text)
  else
    -- The window as it is stored: the decision may be of an older quota, which must not end this window.
    owed, carried, from = read_debt(text, used)
    if mark == started then
      units = math.min(units, used - carried)
    elseif carried > 0 and mark == from then
      units = math.min(units, carried)
      carried = carried - units
    else
      return nil
    end
  end
  if used <= units then
    return REMOVE
  end
  used = used - units
  return lifetime, started, used, write_debt(math.max(0, owed - units), math.min(carried, used), from)
end

-- Leased units are charged when the lease starts. The lease ends with its window, and its name is that end.
local function return_lease(window, units, spent, name, started, used, text)
  local _, _, ends = open(window, started, used, text)
  if units == spent or name ~= ends then
    return nil
  end
  return refund(window, units - spent, nil, nil, started, used, text)
end

local function lease(window, units, started, used, text)
  local ends, owed, carried, from, _
  started, used, ends, _, _, owed, carried, from = open(window, started, used, text)
  return ends - now, ends, started, ends - now, started, used + units, write_debt(owed, carried, from)
end

return { policy = policy, decide = decide, refund = refund, return_lease = return_lease, lease = lease }
