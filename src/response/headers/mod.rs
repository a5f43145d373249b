//! Decisions as response headers: the settings, what each dialect states, and how a response gets it.

mod dialects;
mod headers;
mod limit_cache;
mod write;

pub use self::headers::{Dialect, RateLimitHeaders};
pub(crate) use self::write::{
    HeaderWriter, is_read, mark_degraded, mark_request, mark_response, note_refund,
};
pub(super) use self::{
    headers::RETRY_AFTER_MS,
    write::{add_wait, insert_new},
};
