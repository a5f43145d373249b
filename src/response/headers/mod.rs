//! Decisions as response headers.

#[expect(clippy::module_inception, reason = "the module's main type")]
mod headers;
mod write;

pub use self::headers::Headers;
pub(super) use self::write::{LIMIT_LISTS, decorate_rejection, insert, retry_after};
pub(crate) use self::write::{decorate, mark_request};
