//! What is limited and how: [`Policy`], and which policy a request falls under: [`PolicySource`].
#![doc = include_str!("options.md")]
#![doc = include_str!("counts.md")]

mod enforcement;
mod failure_mode;
mod options;
mod parameters;
mod penalty;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod policy;
mod settings;
mod source;
mod warnings;

pub use self::{
    enforcement::{Enforcement, EnforcementSwitch},
    failure_mode::FailureMode,
    penalty::Penalty,
    policy::Policy,
    settings::PolicySettings,
    source::{IntoPolicy, PolicySource},
};
pub(crate) use self::{penalty::MAX_BAN, policy::push_quoted};
