//! What is limited and how: [`Policy`], and which policy a request falls under: [`PolicySource`].
#![cfg_attr(feature = "serde", doc = include_str!("configuration.md"))]

#[cfg(feature = "serde")]
mod configuration;
mod enforced;
mod failure_mode;
mod into_policy;
mod lease_bound;
#[cfg(feature = "lookup")]
mod lookup;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod policy;
mod quoted;
mod source;

#[cfg(feature = "lookup")]
#[cfg_attr(docsrs, doc(cfg(feature = "lookup")))]
pub use self::lookup::Lookup;
pub(crate) use self::quoted::push_quoted;
pub use self::{
    failure_mode::FailureMode, into_policy::IntoPolicy, lease_bound::LeaseBound, policy::Policy,
    source::PolicySource,
};
