//! Helpers for all modules.

pub(crate) mod outage;
pub(crate) mod random;
pub(crate) mod sync;
#[cfg(feature = "serde")]
pub(crate) mod text;
pub(crate) mod time;
