--[[
  Token bucket: tokens come at the quota's rate until the bucket is full, and a request takes as many as
  it costs (J. Turner, "New directions in communications", 1986; RFC 2697 for the metering form).

  The tokens in the bucket are the burst less the level of include/bucket.lua.

  State     one number.
  Arguments ARGV[arg] and ARGV[arg + 1], so many microseconds bring so many tokens; ARGV[arg + 2], what
            the bucket holds; ARGV[arg + 3], 1 where tokens come all at once at the end of that time, 0
            where they trickle in; ARGV[arg + 4], what a new bucket has in it.
  Cost      GET; and SET with PX where something is charged.
]]
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
