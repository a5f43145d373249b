--[[
  Guarantee: a bucket of what a client may take of a pool even where others have borrowed all but the headroom (the committed rate
  of two-rate marking, RFC 2698 and RFC 4115).

  It is a bucket as in include/bucket.lua without credit at first, because a key without a state may be a lost one. It must never
  have more credit than the pool has units: see "Guarantees" in lua/README.md.

  State     the time of the level; the level.
  Arguments the period in microseconds and the units that drain in it, in lowest terms; the burst in units; the debt, if
            the policy has one; for its debits, 1.
]]
-- uses: bucket bucket_in_full
-- The microseconds for which a full guarantee is remembered: a day, as in src/algorithm/guarantee.rs.
local KEPT = 86400000000

local function policy(period, units, burst, debt, is_debit)
  local bucket = { period = period, units = units, burst = burst, capacity = burst, wait = 0, debt = debt }
  bucket.initial, bucket.kept, bucket.is_special = 0, KEPT, true
  if is_debit then
    bucket.room = debt
  end
  return bucket
end

if brief then
  return { policy = policy, decide = bucket_decide }
end

local decide, refund, return_lease, lease = bucket_in_full()
return { policy = policy, decide = decide, refund = refund, return_lease = return_lease, lease = lease }
