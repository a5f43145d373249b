//! Encodes script calls and decodes their replies.
//!
//! Pure functions without connections, caches or leases. An [`Observer`] learns what becomes of a job.

mod decode;
mod encode;
mod job;
mod reply;

pub(super) use self::{
    decode::{decode, is_read_only, unexpected},
    encode::{Encoded, encode, write_key},
    job::{Job, LeaseRequest, LeaseReturn, Observer},
    reply::{Leased, Reply},
};
