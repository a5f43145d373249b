//! Encodes script calls and decodes their replies: functions that know no connection. What a reply changes in a cache or in a
//! lease, the observers of its jobs do.

mod decode;
mod encode;

#[cfg(feature = "cluster")]
pub(super) use self::encode::encode_in_migration;
pub(super) use self::{
    decode::{answer, decision, decode, ended, has_fault, is_of_another_window, unexpected},
    encode::{Call, encode},
};
