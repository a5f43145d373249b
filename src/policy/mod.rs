//! What is limited and how: [`Policy`], and which policy a request falls under: [`PolicySource`].
#![cfg_attr(feature = "serde", doc = include_str!("configuration.md"))]
#![doc = include_str!("counts.md")]

#[cfg(feature = "serde")]
mod configuration;
mod enforced;
mod enforcement;
mod failure_mode;
mod into_policy;
mod lease_bound;
#[cfg(feature = "reload")]
mod live;
#[cfg(feature = "lookup")]
mod lookup;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod policy;
mod quoted;
mod source;
mod warnings;

#[cfg(feature = "reload")]
#[cfg_attr(docsrs, doc(cfg(feature = "reload")))]
pub use self::live::LivePolicies;
#[cfg(all(feature = "redis", feature = "reload"))]
pub(crate) use self::live::{Fields, Origin, PolicyHash, Update};
#[cfg(feature = "lookup")]
#[cfg_attr(docsrs, doc(cfg(feature = "lookup")))]
pub use self::lookup::Lookup;
pub(crate) use self::quoted::push_quoted;
pub use self::{
    enforcement::{Enforcement, EnforcementSwitch},
    failure_mode::FailureMode,
    into_policy::IntoPolicy,
    lease_bound::LeaseBound,
    policy::Policy,
    source::PolicySource,
};
