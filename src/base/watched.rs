//! Whether something in this process looks at decisions once they are made, in one number that costs other
//! processes nothing.

use std::sync::atomic::{AtomicU8, Ordering};

/// A policy reports shares of its quota that are used.
pub(crate) const THRESHOLDS: u8 = 1;
/// A store records who is denied.
pub(crate) const DENIALS: u8 = 2;

static WATCHED: AtomicU8 = AtomicU8::new(0);

/// Notes for the lifetime of the process that decisions are looked at for `reason`.
pub(crate) fn watch(reason: u8) {
    WATCHED.fetch_or(reason, Ordering::Relaxed);
}

/// All reasons to look at decisions.
#[inline]
pub(crate) fn reasons() -> u8 {
    WATCHED.load(Ordering::Relaxed)
}
