//! Helpers for all modules.

pub(crate) mod outage;
pub(crate) mod per_thread;
pub(crate) mod random;
pub(crate) mod sync;
pub(crate) mod time;
