//! A decision for Redis to make: its charges, the names of their keys, and the reply.

#[expect(clippy::module_inception, reason = "the module's main type")]
mod job;
mod names;
mod reply;
#[cfg(feature = "cluster")]
mod shards;
mod slot;

#[cfg(feature = "cluster")]
pub(super) use self::shards::Shards;
pub(super) use self::{
    job::{Job, LeaseRequest, LeaseReturn, Observer},
    names::KeyNames,
    reply::{Leased, Reply},
    slot::Slot,
};
