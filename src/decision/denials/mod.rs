//! Which keys were denied lately, and which most often.
//!
//! The log is in this crate, and not in the operator's crate behind a function that is called for each denial: a
//! record reads the store's time, the policy's tag and the words of the key's text, which are private. Without them, it
//! would read the clock and hash two texts. For other uses of denials, such as an audit log, layers have
//! [`on_decision`](crate::RateLimitLayer::on_decision).

mod log;
mod set;
mod sketch;

pub use self::log::{DenialLog, FrequentDenials, RecentDenials};
