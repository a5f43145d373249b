//! The text of a key: what is stored for it in Redis.
//!
//! The functions here know texts only. What can follow `%` in an encoded identity is two upper-case hex digits, so a
//! `%` before any other character is a [mark](marks), and no identity contains one.

mod encoding;
mod join;
mod marks;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod text;

pub(crate) use self::encoding::decode;
pub(super) use self::{
    encoding::{encode, encode_around_percent, is_plain},
    join::{hashed_join, identity_of, identity_of_parts, is_join, join, parts},
    marks::{EMPTY, FIRST, KEYED, OPEN, PREFLIGHT, SECOND, is_hash, split_marks},
    text::{MAX, Text, bounded, push_hex},
};
