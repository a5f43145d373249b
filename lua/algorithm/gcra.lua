--[[
  GCRA: the generic cell rate algorithm, in the form of virtual scheduling (ITU-T I.371, ATM Forum TM 4.1 annex C).

  The textbook form stores the theoretical arrival time. This one stores an equivalent time and level, see
  include/bucket.lua.

  State     the time of the level; the level.
  Arguments the period in microseconds and the units that drain in it, in lowest terms; the burst in units; the debt, if
            the policy has one; for its debits, 1.
]]
-- uses: bucket bucket_in_full
local function policy(period, units, burst, debt, is_debit)
  local bucket = { period = period, units = units, burst = burst, capacity = burst, wait = 0, debt = debt }
  if is_debit then
    bucket.room, bucket.is_special = debt, true
  end
  return bucket
end

if brief then
  return { policy = policy, decide = bucket_decide }
end

local decide, refund, return_lease, lease = bucket_in_full()
return { policy = policy, decide = decide, refund = refund, return_lease = return_lease, lease = lease }
