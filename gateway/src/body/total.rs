//! The bound on the memory of all buffers of a layer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The bytes that all buffers of a layer, its clones and their services have together.
#[derive(Clone, Debug)]
pub(super) struct Total {
    used: Arc<AtomicUsize>,
    pub(super) max: usize,
}

impl Total {
    pub(super) fn new(max: usize) -> Self {
        Self { used: Arc::default(), max }
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A share of nothing, which can grow.
    pub(super) fn share(&self) -> Share {
        Share { total: self.clone(), bytes: 0 }
    }
}

/// A part of the total, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    total: Total,
    bytes: usize,
}

impl Share {
    /// Makes the share at least `bytes` large. False if the total has no room for it.
    pub(super) fn grow_to(&mut self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else { return true };
        let max = self.total.max;
        let add = |used: usize| used.checked_add(more).filter(|used| *used <= max);
        // Only the sum matters: the buffers themselves are not shared between threads by it.
        let is_added = self.total.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if is_added {
            self.bytes = bytes;
        }
        is_added
    }

    /// Splits the share into one of at most `bytes`, and the rest.
    pub(super) fn split(mut self, bytes: usize) -> (Self, Self) {
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        let rest = Self { total: self.total.clone(), bytes: rest };
        (self, rest)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.total.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
