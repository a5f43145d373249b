//! Encodes script calls and decodes their replies.
//!
//! Pure functions without connections, caches or leases. An [`Observer`] learns what becomes of a job.

mod decode;
mod encode;
mod job;
mod names;
mod reply;
#[cfg(feature = "cluster")]
mod shards;

#[cfg(feature = "cluster")]
pub(super) use self::shards::Shards;
pub(super) use self::{
    decode::{decode, has_fault, unexpected},
    encode::{Encoded, encode},
    job::{Job, LeaseRequest, LeaseReturn, Observer},
    names::KeyNames,
    reply::{Leased, Reply},
};
