// Policies as entries of a configuration file. The docs of the module are the guide for those who write one.

#![doc = include_str!("config.md")]

mod algorithm;
mod entries;
mod penalty;
mod policy;
mod quota;
mod summary;
mod table;

#[cfg(all(feature = "live", feature = "redis"))]
pub(crate) use self::entries::PolicyChanges;
#[cfg(feature = "live")]
pub(crate) use self::table::{Table, TextOrTable};
pub use self::{policy::PolicyConfig, summary::PolicySummary};
