//! Decisions as response headers: the settings, the names, and one file per dialect.

mod block;
mod dialect;
mod exceeded;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod headers;
mod ietf_list;
mod insert;
mod names;
mod one_policy;
mod window;
mod write;

pub use self::{dialect::Dialect, headers::Headers};
pub(crate) use self::{
    exceeded::mark_request,
    write::{HeaderWriter, is_read},
};
pub(super) use self::{
    insert::{insert, insert_new},
    write::{add_retry_after, add_retry_after_of_store},
};
