//! What a limiter would decide about a key, and why, for people and programs.

#[expect(clippy::module_inception, reason = "what the module is for")]
mod explain;
mod explanation;
#[cfg(feature = "serde")]
mod serialize;
mod text;

pub use self::explanation::{ExplainedCharge, Explanation};
