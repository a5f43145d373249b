//! Encodes script calls and decodes their replies: pure functions without connections, caches or leases.

mod decode;
mod encode;

#[cfg(feature = "cluster")]
pub(super) use self::encode::encode_in_migration;
pub(super) use self::{
    decode::{answer, decision, decode, ended, has_fault, is_of_another_window, unexpected},
    encode::{Call, encode},
};
