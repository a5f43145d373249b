//! Counts in the memory of this process.

mod clock;
mod counting;
mod penalties;
mod phases;
mod shard;
mod store;

pub use self::store::MemoryStore;
