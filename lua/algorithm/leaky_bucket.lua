--[[
  Leaky bucket: admitted units fill a bucket that drains at the quota's rate.

  A meter denies a request that would overflow the bucket (ITU-T I.371). A queue delays requests so that they leave at
  the quota's rate, and denies a request that would wait longer than the longest wait (nginx' limit_req). A meter is a
  queue with a longest wait of 0.

  State     a time and a count.
  Arguments the period in microseconds and the units that drain in it, in lowest terms; the units that are admitted
            without a delay; the longest wait in microseconds.
  Commands  GET; SET where units are charged.
]]
-- uses: bucket
return bucket_algorithm(function(arg)
  return {
    capacity = 0,
    period = tonumber(ARGV[arg]),
    units = tonumber(ARGV[arg + 1]),
    burst = tonumber(ARGV[arg + 2]),
    wait = tonumber(ARGV[arg + 3]),
  }
end, leasing)
