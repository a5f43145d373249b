//! What is limited how: a [`Policy`], and where a request's comes from.

mod failure_mode;
mod lease_bound;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod policy;
mod source;

pub(crate) use self::policy::push_quoted;
pub use self::{failure_mode::FailureMode, lease_bound::LeaseBound, policy::Policy, source::PolicySource};
