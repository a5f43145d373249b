#![doc = include_str!("config.md")]

mod algorithm;
mod entries;
mod penalty;
mod policy;
mod summary;
mod table;

#[cfg(all(feature = "live", feature = "redis"))]
pub(crate) use self::entries::PolicyChanges;
pub use self::{policy::PolicyConfig, summary::PolicySummary};
