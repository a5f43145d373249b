//! What a call of the script says, and what its reply means.
//!
//! Pure functions: they know no connection, no cache and no lease table. Whoever wants to learn what becomes of a job
//! [observes](Observer) it.

mod decode;
mod encode;
mod job;
mod reply;

pub(super) use self::{
    decode::{decode, is_read_only, unexpected},
    encode::{encode, write_key},
    job::{Job, LeaseRequest, LeaseReturn, Observer},
    reply::{Leased, Reply},
};
