--[[
  GCRA: the generic cell rate algorithm, as virtual scheduling (ITU-T I.371, ATM Forum TM 4.1 annex C).

  The textbook keeps one number, the theoretical arrival time: the moment at which everything admitted
  so far would be paid off at the quota's rate. Here it is kept as a time and the units since, see
  include/bucket.lua.

  State     one number.
  Arguments ARGV[arg] and ARGV[arg + 1], the emission interval as a fraction in lowest terms: so many
            microseconds pay for so many units; ARGV[arg + 2], the burst.
  Cost      GET; and SET with PX where something is charged.
]]
return bucket_algorithm(function(arg)
  return {
    capacity = 0,
    period = tonumber(ARGV[arg]),
    units = tonumber(ARGV[arg + 1]),
    burst = tonumber(ARGV[arg + 2]),
    wait = 0,
  }
end, leasing)
