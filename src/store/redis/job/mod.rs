//! A decision for Redis to make: its charges, the names of their keys, and the reply.

mod job;
mod names;
#[cfg(feature = "cluster")]
mod shards;

#[cfg(feature = "cluster")]
pub(super) use self::shards::Shards;
pub(super) use self::{
    job::{Job, LeaseRequest, LeaseReturn, Leased, Maker, Observer, Records, Reply},
    names::KeyNames,
};
