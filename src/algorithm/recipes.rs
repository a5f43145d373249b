//! The classic Redis recipes, what takes their place here, and what each of them gets wrong.
//!
//! Whoever has written a rate limit on Redis has written one of these. They are good ideas; the trouble is in
//! what the short form leaves out.
//!
//! # `INCR`, with an `EXPIRE` on the first hit
//!
//! Here: [`FixedWindow`](crate::algorithm::FixedWindow).
//!
//! * `INCR` and `EXPIRE` are two commands. A client that dies between them, or a refund that brings the
//!   counter back to 1, leaves a key without a TTL: that client is refused for ever, or never again. Here one
//!   script writes both, and the window's start is in the state, so that even a lost TTL changes nothing.
//! * The refused are counted too, so the counter says nothing about what was admitted. Here a refusal
//!   changes nothing.
//! * At the window's edge twice the limit passes within a moment. That is the window's nature; where it
//!   hurts, take [`Gcra`](crate::algorithm::Gcra) or [`SlidingLog`](crate::algorithm::SlidingLog).
//! * A TTL computed as seconds rounds half a second down to none. Here TTLs are milliseconds, rounded up.
//!
//! # A key per minute: `INCR user:42:2026-01-01T00:00`
//!
//! Here: [`FixedWindow::aligned`](crate::algorithm::FixedWindow::aligned).
//!
//! * The minute is the client's. Instances whose clocks differ count in different keys. Here the clock is the
//!   server's.
//! * The previous key and the current one lie in different slots of a Cluster. Here there is one key.
//!
//! # A sorted set of time stamps
//!
//! Here: [`SlidingLog`](crate::algorithm::SlidingLog).
//!
//! * The member is often the time stamp: five requests in one millisecond are one. A random member instead
//!   collides rarely, and takes room. Here each request is an entry of its own in a list.
//! * 145 bytes a request. Here 15.
//! * `ZADD` comes before `ZCARD`, so that refused requests are logged, and a client that keeps trying stays
//!   refused for ever.
//! * `ZREMRANGEBYSCORE` over a great backlog stops the server for that time. Here the list is cut in one step,
//!   and what to cut is found by bisection.
//!
//! # A list of time stamps
//!
//! Here: [`SlidingLog`](crate::algorithm::SlidingLog).
//!
//! * `LLEN` and `RPUSH` as two commands admit a hundred of a hundred concurrent requests. Here it is one step.
//! * A request that costs ten is ten entries. Here it is one, with its cost.
//!
//! # A cell per second, summed up
//!
//! Here: [`SlidingWindow`](crate::algorithm::SlidingWindow) with [`segments`](crate::algorithm::SlidingWindow::segments); with one,
//! the weighted pair of counters.
//!
//! * The cell that slides out is either counted in full or not at all, so the limit jumps once a cell.
//!   Here it counts by its share.
//! * The wait a refusal names is the end of the window. Quota comes back sooner; here the wait is exact.
//!
//! # A hash of tokens and a time
//!
//! Here: [`TokenBucket`](crate::algorithm::TokenBucket).
//!
//! * Time and tokens are fractions, kept as text of 14 digits. After a day of microseconds the last digits are
//!   gone. Here everything is an integer.
//! * The time is the client's. One instance whose clock is five seconds ahead makes all others wait five
//!   seconds more.
//! * A refused cost is taken all the same, and drives the bucket into debt.
//! * When the clock steps back, the difference is negative, and tokens are taken away; or, squared away with
//!   an `abs`, given. Here it changes nothing: the level stays as it was, and leaks on from the new time.
//!
//! # A hash of a funnel: capacity, leak rate, level
//!
//! Here: [`LeakyBucket::meter`](crate::algorithm::LeakyBucket::meter).
//!
//! * The level is read by `HMGET`, computed by the client, and written by `HMSET`: two clients read the same
//!   level. Here it is one step.
//! * The funnel's size is in the hash, so a changed limit waits until the key expires. Here it binds at once.
//!
//! # The redis-cell module, `CL.THROTTLE key 15 30 60 1`
//!
//! Here: [`Gcra`](crate::algorithm::Gcra), as `Quota::per_minute(30).burst(16)`: that command's burst comes on top of the
//! one request that always passes.
//!
//! * Its `retry_after` is in whole seconds, rounded down, so that a client which obeys is refused again.
//!   Here it is exact, and `Retry-After` is rounded up.
//! * It keeps a time, not units, so a raised rate may go on refusing what it would admit. Here the units are
//!   kept.
//! * It is a module, which managed servers do not load. Here it is a script.
//!
//! # A semaphore: `INCR` to enter, `DECR` to leave
//!
//! Here: [`Concurrency`](crate::algorithm::Concurrency).
//!
//! * Who dies inside never leaves. Here each holder has a lease.
//! * With an expiry for all, who comes back late leaves in somebody else's name. Here each holder leaves for
//!   itself alone.
