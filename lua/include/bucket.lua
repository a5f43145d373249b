--[[
  The decision of GCRA, the token bucket and the leaky bucket: a level that drains at a rate.

  The design, the state, leases and refunds are explained under "The bucket" in lua/README.md.

  A bucket is a table of

    period, units  the rate: `units` drain per `period` microseconds; in lowest terms unless `stepped`
    burst          the units that an idle key admits in one burst
    wait           the longest delay of an admitted request in microseconds; 0 for no delays
    debt           the units by which debits may exceed the burst; nil for none
    room           the debt where a debit is decided; otherwise nil
    capacity       the burst, and the units that drain during `wait`
    stepped        true where units drain only at the end of each period; otherwise nil
    initial        the units that a new key admits; nil for `burst`
    is_special     true if it has a `wait` or `room`, is `stepped` or has an `initial`; otherwise nil

  The state is the time of the level, the level, and a text of leases, refunds and units above the level, nil without
  these.
]]
-- uses: prelude bucket_in_full

-- Makes any decision; created when one is needed.
local decide_any

-- The decision. It makes the usual ones itself: those that admit, at a smooth rate, without delays, where the state has no text
-- and no product is too large.
local function bucket_decide(bucket, cost, at, level, text)
  if not text and not bucket.is_special and (not at or at <= now) then
    local period, units, elapsed, left, product, drained = bucket.period, bucket.units, 0, 0, 0, 0
    if at then
      -- Drain the whole periods that have passed; what is left of the time stays in `elapsed`.
      local passed = now - at
      elapsed = passed % period
      product = elapsed * units
      drained = (product - product % period) / period
      left = level - (passed - elapsed) / period * units
      if left <= drained then
        left, elapsed, drained = 0, 0, 0
      end
    end
    left = left + cost
    local free, time = bucket.burst - left + drained, left * period
    if free >= 0 and time < 2^53 and product < 2^53 then
      local rest = time % units
      local reset = (time - rest) / units + (rest > 0 and 1 or 0) - elapsed
      if reset < 0 then
        reset = 0
      end
      return 0, free, reset, 0, now + reset, cost > 0 and reset or nil, now - elapsed, left
    end
  end
  decide_any = decide_any or bucket_in_full()
  return decide_any(bucket, cost, at, level, text)
end
