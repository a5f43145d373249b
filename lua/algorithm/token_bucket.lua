--[[
  Token bucket: tokens are added at the quota's rate until the bucket is full, and each unit charged removes one
  (J. Turner, "New directions in communications", 1986; RFC 2697 for the metering form).

  The number of tokens is the burst minus the level of include/bucket.lua.

  State     a time and a count.
  Arguments the period in microseconds and the tokens that are added in it; the bucket's size; 1 where the tokens of a
            period are added at its end, 0 where they are added evenly; the tokens in a new bucket.
  Commands  GET; SET where units are charged.
]]
-- uses: bucket
return bucket_algorithm(function(arg)
  local burst, initial = tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 4])
  return {
    capacity = 0,
    period = tonumber(ARGV[arg]),
    units = tonumber(ARGV[arg + 1]),
    burst = burst,
    wait = 0,
    stepped = ARGV[arg + 3] == '1',
    initial = initial < burst and initial or nil,
  }
end, leasing)
