//! Tests for your own [`Algorithm`](tower_ratelimit::algorithm::Algorithm).
//!
//! [`TwinTest`] drives the Lua file of an algorithm, on a Redis server, and its twin in Rust with the same
//! random steps. It compares every decision to the microsecond, and checks the rules of all algorithms on
//! both.
//!
//! # Example
//!
//! ```no_run
//! use tower_ratelimit::{Policy, Quota};
//! use tower_ratelimit_extra::testing::TwinTest;
//! # use tower_ratelimit::algorithm::Gcra as Hourly;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::new("reports", Quota::per_hour(5)).algorithm(Hourly::new());
//! TwinTest::new(&policy).steps(10_000).run("redis://127.0.0.1:6379").await?;
//! # Ok(())
//! # }
//! ```
//!
//! A failure reports which step failed, what was requested, what each store decided, and how to repeat it:
//!
//! ```text
//! the twins of the algorithm hourly disagree at step 9 with the seed 17
//!   at 1767225723000000, charge 3 units of key-0
//!     Redis:  denied for 3477000000 µs; 2 units remain, reset in 3477000000 µs
//!     memory: admitted with 3 units; 0 units remain, reset in 3477000000 µs
//!   the steps before it:
//!     7: step back by 12 µs
//!     8: charge 3 units of key-0: admitted with 3 units; 2 units remain, reset in 3477000000 µs
//!   to repeat it, add `.seed(17)`
//! ```

mod contest;
mod failure;
mod random;
mod rules;
mod said;
mod step;
mod twin_test;

pub use self::{failure::TwinTestError, twin_test::TwinTest};
