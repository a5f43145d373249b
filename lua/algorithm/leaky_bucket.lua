--[[
  Leaky bucket: admitted units fill a bucket that drains at the quota's rate.

  A meter denies a request that would overflow the bucket (ITU-T I.371). A queue delays requests so that they leave at
  the quota's rate, and denies a request that would wait longer than the longest wait (nginx's limit_req). A meter is a
  queue with a longest wait of 0.

  State     the time of the level; the level.
  Arguments the period in microseconds and the units that drain in it, in lowest terms; the units that are admitted
            without a delay; the longest wait in microseconds; the debt, if the policy has one; for its debits, 1.
]]
-- uses: muldiv bucket bucket_in_full
local function policy(period, units, burst, wait, debt, is_debit)
  local bucket = { period = period, units = units, burst = burst, capacity = burst, wait = wait, debt = debt }
  if is_debit then
    bucket.room, bucket.is_special = debt, true
  end
  if wait > 0 then
    bucket.capacity, bucket.is_special = bucket.capacity + muldiv(wait, units, period), true
  end
  return bucket
end

if brief then
  return { policy = policy, decide = bucket_decide }
end

local decide, refund, return_lease, lease = bucket_in_full()
return { policy = policy, decide = decide, refund = refund, return_lease = return_lease, lease = lease }
