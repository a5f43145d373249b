--[[
  Token bucket: tokens are added at the quota's rate until the bucket is full, and each unit charged removes one
  (J. Turner, "New directions in communications", 1986; RFC 2697 for the metering form).

  The number of tokens is the burst minus the level of include/bucket.lua.

  State     the time of the level; the level.
  Arguments the period in microseconds and the tokens that are added in it; the bucket's size; 1 where the tokens of a
            period are added at its end, 0 where they are added evenly; the tokens in a new bucket; the debt, if the
            policy has one; for its debits, 1.
]]
-- uses: bucket bucket_in_full
local function policy(period, units, burst, stepped, initial, debt, is_debit)
  local room = is_debit and debt
  return {
    period = period,
    units = units,
    burst = burst,
    capacity = burst,
    wait = 0,
    stepped = stepped == 1 or nil,
    initial = initial < burst and initial or nil,
    debt = debt,
    room = room,
    is_special = stepped == 1 or initial < burst or room,
  }
end

if brief then
  return { policy = policy, decide = bucket_decide }
end

local decide, refund, return_lease, lease = bucket_in_full()
return { policy = policy, decide = decide, refund = refund, return_lease = return_lease, lease = lease }
