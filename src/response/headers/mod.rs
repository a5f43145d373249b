//! Decisions as response headers: the settings, what each dialect states, and how a response gets it.

mod dialects;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod headers;
mod write;

pub use self::headers::{Dialect, Headers};
pub(crate) use self::write::{HeaderWriter, is_read, mark_request};
pub(super) use self::write::{add_retry_after, add_retry_after_of_store, insert_new};
