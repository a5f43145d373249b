//! The charges that a store decides, and its decision.

mod ban;
mod charge;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod decision;
mod local;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
mod outcome;
mod permit;
mod source;
mod verdict;

pub use self::{
    ban::BanList, charge::Charge, decision::Decision, outcome::Outcome, source::DecisionSource,
    verdict::Verdict,
};
pub(crate) use self::{
    charge::Charges,
    decision::Report,
    local::{LocalCharge, Reconciliation},
    outcome::Claim,
    permit::{Permit, WeakPermit},
};
