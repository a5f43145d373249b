//! Counts in Redis, shared by all instances.
//!
//! [`RedisStore`] first tries to decide without Redis (`shortcut`). For all other decisions it makes a job, which
//! `wire` encodes and `transport` sends. `wire` depends on neither `shortcut` nor `transport`; `shortcut` observes jobs
//! through a trait of `wire`.

mod builder;
mod connect;
mod error;
mod eviction;
mod script;
mod shortcut;
mod store;
mod transport;
mod wire;

pub use self::{builder::RedisStoreBuilder, shortcut::LeaseStatus, store::RedisStore};
