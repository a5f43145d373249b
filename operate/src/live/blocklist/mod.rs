//! Networks that operators block while the service runs: [`Blocklist`], which has an example.

mod blocklist;
mod network;
#[cfg(feature = "redis")]
mod redis;
mod table;

pub use self::{blocklist::Blocklist, network::BlockedNetwork};
