//! Counts in Redis, shared by every instance.
//!
//! [`RedisStore`] asks what can be answered without Redis (`shortcut`), turns what is left into a job, which `wire`
//! encodes and `transport` carries. `wire` knows neither of the others; `shortcut` observes jobs through a trait of
//! `wire`.

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
