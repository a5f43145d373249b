--[[
  GCRA: the generic cell rate algorithm, in the form of virtual scheduling (ITU-T I.371, ATM Forum TM 4.1 annex C).

  The textbook form stores the theoretical arrival time. This one stores an equivalent time and level, see
  include/bucket.lua.

  State     a time and a count.
  Arguments the period in microseconds and the units that drain in it, in lowest terms; the burst in units.
  Commands  GET; SET where units are charged.
]]
-- uses: bucket
return bucket_algorithm(function(arg)
  return {
    capacity = 0,
    period = tonumber(ARGV[arg]),
    units = tonumber(ARGV[arg + 1]),
    burst = tonumber(ARGV[arg + 2]),
    wait = 0,
  }
end, leasing)
