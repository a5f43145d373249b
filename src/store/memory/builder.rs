use super::shard::DEFAULT_CAPACITY;
use crate::store::ManualClock;

/// The settings of a [`MemoryStore`](crate::MemoryStore), from [`MemoryStore::builder`](crate::MemoryStore::builder).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{ManualClock, MemoryStore};
///
/// let store = MemoryStore::builder().capacity(10_000).manual_clock(ManualClock::new()).build();
/// assert!(store.is_empty());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until `build` is called"]
pub struct MemoryStoreBuilder {
    pub(super) capacity: usize,
    pub(super) clock: Option<ManualClock>,
}

impl MemoryStoreBuilder {
    pub(super) const fn new() -> Self {
        Self { capacity: DEFAULT_CAPACITY, clock: None }
    }

    /// The most keys that the store holds, approximately. A key is one identity under one policy. Defaults to 200 000.
    ///
    /// The store divides the capacity among 16 to 1024 shards of at least 16 keys each and rounds it up, so the
    /// smallest store holds 256 keys. Shards fill unevenly, so the store may hold about 1 % less.
    pub const fn capacity(mut self, keys: usize) -> Self {
        self.capacity = keys;
        self
    }

    /// Takes the time from `clock`. Defaults to a monotonic clock.
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }
}
