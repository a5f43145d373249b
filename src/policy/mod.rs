//! What is limited and how: [`Policy`], and which policy a request falls under: [`PolicySource`].
#![cfg_attr(feature = "serde", doc = include_str!("configuration.md"))]
#![doc = include_str!("counts.md")]

#[cfg(feature = "serde")]
pub(crate) mod configuration;
mod debt;
mod enforcement;
mod failure_mode;
mod into_policy;
mod lease;
mod penalty;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod policy;
mod quoted;
mod rollout;
mod rollout_share;
mod source;
pub(crate) mod summary;
mod traits;
mod warnings;

pub use self::{
    enforcement::{Enforcement, EnforcementSwitch},
    failure_mode::FailureMode,
    into_policy::IntoPolicy,
    penalty::Penalty,
    policy::Policy,
    source::PolicySource,
};
pub(crate) use self::{penalty::MAX_BAN, quoted::push_quoted, traits::Traits};
