//! The charges that a store decides, and its decision.

pub(crate) mod charge;
pub(crate) mod decision;
mod denials;
mod local;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
mod outcome;
mod span;
pub(crate) mod threshold;
mod unit;

pub(crate) use self::{
    charge::{Charge, Charges, MOST_RULES, OneOrMany},
    decision::{Decision, Permit, Report},
    local::{LocalCharge, Reconciliation},
    outcome::Claim,
    span::DecisionSpan,
    unit::RuleUnit,
};
pub use self::{
    decision::DecisionSource,
    denials::{DenialLog, FrequentDenials, RecentDenials},
    outcome::{Outcome, Verdict},
    threshold::ThresholdEvent,
};
