--[[
  GCRA: the generic cell rate algorithm, as virtual scheduling (ITU-T I.371, ATM Forum TM 4.1 annex C).

  The textbook keeps one number, the theoretical arrival time (TAT): the moment at which everything
  admitted so far would be paid off at the quota's rate. Here it is kept as `at` + `level` emission
  intervals: a whole microsecond not after the last charge, and the units charged since. That is the
  same TAT, and it stays exact where an interval is no whole number of microseconds (3 per second), and
  it keeps its meaning when the quota changes, because units do not depend on a rate.

  State     one number: `at` and `level`.
  Arguments ARGV[arg] and ARGV[arg + 1], the emission interval as a fraction in lowest terms: so many
            microseconds pay for so many units; ARGV[arg + 2], the burst.
  Cost      GET; and SET with PX where something is charged.

  A level above the burst comes from a lowered quota, and a time before `at` from a clock that stepped
  back. Either way the state starts again at `now`, the first with a full level and the second with the
  level it had, and a refusal writes that down, so that the wait it names holds.
]]
algorithms['gcra'] = function(key, cost, arg)
  local period, units, burst = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local at, level = read_count(key)
  local elapsed, paid, moved = 0, 0, false

  if not at then
    at, level = now, 0
  elseif at > now then
    at, moved = now, true
  else
    elapsed = now - at
    local spans = floor(elapsed / period)
    at = at + spans * period
    elapsed = elapsed - spans * period
    level = level - spans * units
    paid = muldiv(elapsed, units, period)
    if level <= paid then
      at, level, elapsed, paid = now, 0, 0, 0
    end
  end
  if level - paid > burst then
    at, level, elapsed, paid, moved = now, burst, 0, 0, true
  end

  local free = burst - level + paid
  local retry = 0
  if cost > burst then
    retry = -1
  elseif cost > free then
    retry = muldiv_up(level + cost - burst, period, units) - elapsed
  end
  local reset = muldiv_up(level, period, units) - elapsed
  local reset_after = muldiv_up(level + cost, period, units) - elapsed

  return {
    retry = retry,
    remaining = free,
    reset = reset,
    remaining_after = free - cost,
    reset_after = reset_after,
    charge = function()
      write_count(key, at, level + cost, reset_after)
    end,
    repair = moved and level > 0 and function()
      write_count(key, at, level, reset)
    end,
  }
end
