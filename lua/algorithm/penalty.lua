--[[
  Penalty: counts the denials of a key under another policy, and bans the key for a time after too many of them.

  Denials count in windows of `within` microseconds, as in fail2ban: a window starts with a denial, and the next one with
  the first denial after it ended. The denial that reaches `after` bans the key. Each further ban lasts twice as long as
  the one before, up to `longest`, unless `remembered` microseconds have passed since the latest ban ended.

  `decide` only checks whether the key is banned. It changes no state, and reports no units. The driver calls `strike` for a
  denial, and `ban` for a ban by an operator.

  State     when the window started, or when the key was banned after it; the denials in the window; and, while bans are
            remembered, `<bans>;<end>`: how many bans denials have caused, and when the latest ban ends.
  Arguments the denials that ban a key, 0 for none; the microseconds of a window, of the first ban, and of the longest
            ban; the microseconds for which bans are remembered after their end.
  Mark      none.

  A time in the future means that the clock stepped back: the window starts, and the ban ends, earlier by as much. A
  denial writes this down.
]]
-- uses: prelude state
-- More would not change the length of a ban.
local MOST_BANS = 60
-- The longest ban, as in src/policy/penalty.rs. A ban starts when the state is written.
local MAX_BAN = 315360000000000

local function policy(after, within, first, longest, remembered)
  return { after = after, within = within, first = first, longest = longest, remembered = remembered }
end

-- Returns the state as of now: when the window started, its denials, the bans, when the latest one ends, and whether a
-- denial must write this state.
local function open(penalty, started, denials, text)
  local bans, ends, stale = 0, 0, false
  if not started then
    return now, 0, bans, ends, stale
  end
  if text then
    -- Two numbers of up to 16 digits.
    local _, _, first, second = string.find(string.sub(text, 1, 34), '^(%d+);(%d+)$')
    if not first or #text > 33 then
      error('RATELIMIT-FOREIGN', 0)
    end
    bans, ends = first + 0, second + 0
    if bans >= 2^53 or ends - started > MAX_BAN then
      error('RATELIMIT-FOREIGN', 0)
    end
    -- Bounds the loop in `strike` for any value of the key.
    bans = math.min(bans, MOST_BANS)
  end
  if started > now then
    ends = math.max(0, ends - (started - now))
    started, stale = now, true
  end
  if started + penalty.within <= now then
    denials = 0
  end
  if ends + penalty.remembered <= now then
    bans, ends = 0, 0
  end
  return started, denials, bans, ends, stale
end

-- Returns for how long the state matters, and the state.
local function kept(penalty, started, denials, bans, ends)
  local lifetime = denials > 0 and started + penalty.within - now or 0
  if ends == 0 then
    return lifetime, started, denials
  end
  return math.max(lifetime, ends + penalty.remembered - now), started, denials, string.format('%d;%d', bans, ends)
end

local function decide(penalty, cost, started, denials, text)
  if not started then
    -- The usual case, without the calls.
    return 0, 0, 0, 0, 0, nil, now, 0
  end
  local bans, ends, stale
  started, denials, bans, ends, stale = open(penalty, started, denials, text)
  local retry = ends > now and cost > 0 and ends - now or 0
  local reset
  reset, started, denials, text = kept(penalty, started, denials, bans, ends)
  return retry, 0, reset, 0, 0, stale and reset > 0 and reset or nil, started, denials, text
end

-- Counts a denial of a key that is not banned.
local function strike(penalty, started, denials, text)
  if penalty.after == 0 then
    return nil
  end
  local bans, ends
  started, denials, bans, ends = open(penalty, started, denials, text)
  if denials == 0 then
    started = now
  end
  denials = denials + 1
  if denials >= penalty.after then
    local length = penalty.first
    for _ = 1, bans do
      if length < penalty.longest then
        length = length * 2
      end
    end
    started, denials, ends = now, 0, now + math.min(length, penalty.longest)
    bans = math.min(bans + 1, MOST_BANS)
  end
  return kept(penalty, started, denials, bans, ends)
end

-- Bans a key for `length` microseconds from now. 0 ends its ban and forgets all.
local function ban(penalty, length, started, denials, text)
  local bans, _
  _, _, bans = open(penalty, started, denials, text)
  if length == 0 then
    return REMOVE, false
  end
  return kept(penalty, now, 0, bans, now + length)
end

return { policy = policy, decide = decide, strike = strike, ban = ban }
