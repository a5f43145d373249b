//! A decision for Redis to make: its charges, the names of their keys, and the reply.

mod job;
mod names;
#[cfg(feature = "cluster")]
mod shards;

#[cfg(feature = "cluster")]
pub(super) use self::shards::Shards;
pub(super) use self::{
    job::{Decides, Fate, Job, LeaseRequest, LeaseReturn, Leased, Observer, Records, Reply},
    names::KeyNames,
};
