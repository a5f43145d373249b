//! What is limited and how: [`Policy`], and which policy a request falls under: [`PolicySource`].
#![doc = include_str!("options.md")]
#![doc = include_str!("counts.md")]

pub(crate) mod criticality;
mod enforcement;
pub(crate) mod failure_mode;
mod options;
mod parameters;
mod penalty;
pub(crate) mod policy;
mod quota_unit;
mod settings;
pub(crate) mod source;
mod warnings;

pub(crate) use self::{
    criticality::Criticality,
    failure_mode::FailureMode,
    penalty::MAX_BAN,
    policy::{Policy, push_quoted},
    source::PolicySource,
};
pub use self::{
    criticality::Headroom,
    enforcement::{Enforcement, EnforcementSwitch},
    penalty::Penalty,
    quota_unit::QuotaUnit,
    settings::PolicySettings,
    source::IntoPolicy,
};
