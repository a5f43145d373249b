//! Encodes script calls and decodes their replies: pure functions without connections, caches or leases.

mod decode;
mod encode;

pub(super) use self::{
    decode::{decode, has_fault, unexpected},
    encode::{Call, encode},
};
