//! Encodes script calls and decodes their replies: pure functions without connections, caches or leases.

mod decode;
mod encode;

pub(super) use self::{
    decode::{answer, decision, decode, has_fault, unexpected},
    encode::{Call, encode},
};
