//! Rate limits that are common as Redis recipes, their counterparts in this crate, and what the recipes get
//! wrong.
//!
//! # `INCR`, with an `EXPIRE` on the first hit
//!
//! Use [`FixedWindow`](crate::algorithm::FixedWindow).
//!
//! * `INCR` and `EXPIRE` are two commands. A client that crashes between them leaves a key without a TTL, and
//!   so does a refund that brings the counter back to 1. That key is denied forever. Here one script writes
//!   both, and the state has the time of its first charge, so even a lost TTL changes nothing.
//! * Denied requests are counted too, so the counter does not show what was admitted. Here a denied request
//!   is not counted.
//! * A client can use the limit twice within a moment, before and after a window's edge. That is the nature
//!   of windows; if it is a problem, use [`Gcra`](crate::algorithm::Gcra) or
//!   [`SlidingLog`](crate::algorithm::SlidingLog).
//! * A TTL in seconds rounds half a second down to 0. Here TTLs are in milliseconds, rounded up.
//!
//! # A key per minute: `INCR user:42:2026-01-01T00:00`
//!
//! Use [`FixedWindow::aligned`](crate::algorithm::FixedWindow::aligned).
//!
//! * The minute follows the instance's clock. Instances with different clocks count in different keys. Here
//!   the Redis server's clock decides.
//! * In Redis Cluster, the keys of the previous and the current minute are in different slots. Here there is
//!   one key.
//!
//! # A sorted set of timestamps
//!
//! Use [`SlidingLog`](crate::algorithm::SlidingLog).
//!
//! * The member is often the timestamp, so five requests in one millisecond count as one. A random member
//!   avoids that, but needs memory. Here each request is an entry of a list.
//! * A sorted set needs 145 bytes per request. Here it is 15.
//! * `ZADD` runs before `ZCARD`, so denied requests are logged. A client that keeps trying is denied forever.
//! * `ZREMRANGEBYSCORE` over many entries blocks the server. Here one command trims the list, at a place
//!   found by binary search.
//!
//! # A list of timestamps
//!
//! Use [`SlidingLog`](crate::algorithm::SlidingLog).
//!
//! * `LLEN` and `RPUSH` are two commands, so a hundred concurrent requests can all be admitted. Here both are
//!   one step.
//! * A request with a cost of ten is ten entries. Here it is one entry, with its cost.
//!
//! # A counter per second, added up
//!
//! Use [`SlidingWindow`](crate::algorithm::SlidingWindow) with
//! [`segments`](crate::algorithm::SlidingWindow::segments). With one segment it is the sliding window
//! counter.
//!
//! * The oldest counter counts in full or not at all, so the usage jumps once per counter. Here it counts by
//!   the share that is still inside the window.
//! * The retry time of a denial is the end of the window, although units become available sooner. Here it is
//!   exact.
//!
//! # A hash of tokens and a time
//!
//! Use [`TokenBucket`](crate::algorithm::TokenBucket).
//!
//! * Time and tokens are fractions, stored as text of 14 digits, which loses the microseconds of a timestamp.
//!   Here all numbers are integers.
//! * The time follows the instance's clock. If one clock is five seconds ahead, all other instances wait five
//!   seconds longer. Here the Redis server's clock decides.
//! * A denied request is charged too, and the bucket goes below zero. Here a denied request is not charged.
//! * When the clock steps back, the negative difference removes tokens; with `abs` it adds tokens. Here
//!   neither happens: the level stays the same and drains from the new time on.
//!
//! # A hash of a funnel: capacity, leak rate, level
//!
//! Use [`LeakyBucket::meter`](crate::algorithm::LeakyBucket::meter).
//!
//! * The instance reads the level with `HMGET`, computes the new one, and writes it with `HMSET`. Two
//!   instances can read the same level. Here it is one step.
//! * The capacity is in the hash, so a changed limit applies only after the key expires. Here it applies
//!   immediately.
//!
//! # The redis-cell module, `CL.THROTTLE key 15 30 60 1`
//!
//! Use [`Gcra`](crate::algorithm::Gcra) with `Quota::per_minute(30).burst(16)`: the command adds its burst to
//! the one request that is always admitted.
//!
//! * Its `retry_after` is in whole seconds, rounded down, so a client that waits that long is denied again.
//!   Here it is exact, and the header `Retry-After` is rounded up.
//! * It stores a time, not units, so after a raised rate it may deny what the new rate admits. Here the state
//!   has units.
//! * It is a module, which managed Redis services do not load. Here it is a script.
//!
//! # A semaphore: `INCR` to enter, `DECR` to leave
//!
//! Use [`Concurrency`](crate::algorithm::Concurrency).
//!
//! * An instance that crashes never leaves. Here permits expire unless they are renewed.
//! * With an expiry of the whole counter, a late `DECR` releases the permit of another request. Here each
//!   holder releases its own permits only.
