//! Counts in the memory of this process.

mod counting;
mod phases;
mod shard;
mod store;

pub use self::store::MemoryStore;
