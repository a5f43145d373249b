//! The charges that a store decides, and its decision.

mod charge;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod decision;
mod local;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
mod outcome;

pub use self::{
    charge::Charge,
    decision::{Decision, DecisionSource},
    outcome::{Outcome, Verdict},
};
pub(crate) use self::{
    charge::{Charges, MOST_RULES, OneOrMany},
    decision::{Permit, Report},
    local::{LocalCharge, Reconciliation},
    outcome::Claim,
};
