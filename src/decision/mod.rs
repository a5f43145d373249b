//! The charges that a store decides, and its decision.

mod charge;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod decision;
mod outcome;
mod permit;
mod verdict;

pub use self::{charge::Charge, decision::Decision, outcome::Outcome, verdict::Verdict};
pub(crate) use self::{
    decision::Report,
    outcome::Claim,
    permit::{Permit, WeakPermit},
};
