--[[
  Fixed window: at most `limit` units in each window of `period` microseconds.

  An anchored window starts with a key's first charge; the next one starts with the first charge after it ended. Aligned
  windows start at `offset` plus each multiple of `period`.

  State     when the first of its units was charged, by which a window of another period knows whether they are its own; the
            units charged in it.
  Arguments the limit; the period; 0 for anchored windows, 1 for aligned ones, 2 for calendar windows; the offset in
            microseconds, below the period, or the number of the calendar. For a calendar, when the window before the one of the
            call starts, when that one starts and ends, and when the one after it ends: the script knows no dates.
  Mark      when the first unit of the charge's window was charged. In any other window the charge no longer counts.

  A time in the future means that the clock stepped back. The units count in the current window. A denial writes this down, so
  that the retry time it names stays true.
]]
-- uses: prelude state
local function policy(limit, period, kind, offset, ...)
  return { limit = limit, period = period, offset = kind == 1 and offset or nil, starts = kind == 2 and { ... } or nil }
end

-- Returns when the current window of a calendar starts and ends.
local function calendar_window(starts)
  for i = 1, #starts - 1 do
    if starts[i] <= now and now < starts[i + 1] then
      return starts[i], starts[i + 1]
    end
  end
  -- The clock of the instance is wrong by more than a window. It repeats the call with the time of this reply.
  error('RATELIMIT-WINDOW', 0)
end

-- Returns the current window: when its first unit was charged, its used units, the microseconds left, and whether a denial
-- must write this state.
local function open(window, started, used, text)
  if text then
    error('RATELIMIT-FOREIGN', 0)
  end
  local stale = false
  if not started then
    started, used = now, 0
  elseif started > now then
    started, stale = now, used > 0
  end
  local starts, ends
  if window.starts then
    starts, ends = calendar_window(window.starts)
  elseif window.offset then
    -- The first window of 1970 may start before 0.
    starts = math.max(0, now - (now - window.offset) % window.period)
    ends = starts + window.period
  else
    starts = started + window.period > now and started or now
    ends = starts + window.period
  end
  if started < starts then
    started, used = now, 0
  end
  return started, used, ends - now, stale
end

local function decide(window, cost, started, used, text)
  local left, stale
  started, used, left, stale = open(window, started, used, text)
  local free, retry = math.max(0, window.limit - used), 0
  if cost > free then
    retry = cost > window.limit and NEVER or left
  elseif cost > 0 then
    used, free, stale = used + cost, free - cost, true
  end
  return retry, free, used > 0 and left or 0, 0, started, stale and left or nil, started, used
end

if brief then
  return { policy = policy, decide = decide }
end

local function refund(window, units, made, mark, started, used, text)
  local lifetime = KEEP_TTL
  if not started then
    return nil
  elseif not made then
    started, used, lifetime = open(window, started, used, text)
  elseif mark ~= started then
    -- Compare the window as it is stored: the decision may be of an older quota, which must not end this window.
    return nil
  end
  if used <= units then
    return REMOVE
  end
  return lifetime, started, used - units
end

-- Leased units are charged when the lease starts. The lease ends with its window, and its name is that end.
local function return_lease(window, units, spent, name, started, used, text)
  local _, _, left = open(window, started, used, text)
  if units == spent or name ~= now + left then
    return nil
  end
  return refund(window, units - spent, nil, nil, started, used, text)
end

local function lease(window, units, started, used, text)
  local left
  started, used, left = open(window, started, used, text)
  return left, now + left, started, left, started, used + units
end

return { policy = policy, decide = decide, refund = refund, return_lease = return_lease, lease = lease }
