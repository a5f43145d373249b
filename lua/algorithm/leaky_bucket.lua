--[[
  Leaky bucket: what is admitted fills a bucket that leaks at the quota's rate.

  As a meter, a request that would make it overflow is refused (ITU-T I.371; the "funnel" of chat
  services). As a queue, requests leave at the rate at which it leaks: each is told how long to wait for
  its turn, and one whose turn is too far off is refused (traffic shaping; the burst, delay and nodelay of
  a web server's request limit).

  The level is that of include/bucket.lua. A meter is a queue in which nobody waits.

  State     one number.
  Arguments ARGV[arg] and ARGV[arg + 1], in so many microseconds so many units leak out; ARGV[arg + 2],
            what passes at once; ARGV[arg + 3], the longest wait in microseconds.
  Cost      GET; and SET with PX where something is charged.
]]
return bucket_algorithm(function(arg)
  return {
    capacity = 0,
    period = tonumber(ARGV[arg]),
    units = tonumber(ARGV[arg + 1]),
    burst = tonumber(ARGV[arg + 2]),
    wait = tonumber(ARGV[arg + 3]),
  }
end, leasing)
