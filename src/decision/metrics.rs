//! Counts decisions, and failures of the store to make them.

use super::{Decision, DecisionSource, Verdict};
use crate::{
    base::Error,
    metrics::{PolicyCounters, Source, Verdict as Counted, record},
    policy::{FailureMode, Policy},
};

/// Counts an action that has ended, and its failure. Only charges count as decisions.
pub(crate) fn decided(is_charge: bool, decided: &Result<Decision, Error>) {
    if let Some(error) = decided.as_ref().map_or_else(Some, Decision::failure) {
        record::store_failed(error.kind());
    }
    if let (true, Ok(decision)) = (is_charge, decided) {
        count(decision);
    }
}

/// Shows the counters that decisions of `policy` can have, at 0: a rate does not see the first value of a
/// counter.
pub(crate) fn count_policy_from_zero(policy: &Policy, is_in_redis: bool) {
    let mode = policy.settings().failure_mode;
    let show = |source, verdict| policy.counters().add(policy.name(), verdict, label(source), 0);
    let verdicts = [
        (Counted::Admitted, true),
        (Counted::Delayed, policy.queues()),
        (Counted::Denied, policy.settings().enforced > 0.0),
        (Counted::ShadowDenied, policy.settings().enforced < 1.0),
        (Counted::Banned, policy.bans().is_some()),
    ];
    for (verdict, _) in verdicts.into_iter().filter(|(_, is_possible)| *is_possible) {
        show(DecisionSource::Store, verdict);
        if is_in_redis && !matches!(verdict, Counted::Admitted | Counted::Delayed) {
            show(DecisionSource::DenyCache, verdict);
        }
        if is_in_redis && matches!(mode, FailureMode::Local { .. }) {
            show(DecisionSource::Local, verdict);
        }
    }
    if is_in_redis && policy.settings().max_lease.is_some() {
        show(DecisionSource::Lease, Counted::Admitted);
    }
    if is_in_redis && mode == FailureMode::Open {
        WITHOUT_POLICY.add("", Counted::Admitted, label(DecisionSource::FailureMode), 0);
    }
}

/// The counters of decisions that the failure mode makes.
static WITHOUT_POLICY: PolicyCounters = PolicyCounters::new();

const fn label(source: DecisionSource) -> Source {
    Source { name: source.as_str(), number: source as usize }
}

/// Counts `decision` for each policy that was charged or that denied.
fn count(decision: &Decision) {
    let source = label(decision.source());
    for outcome in decision.all_outcomes() {
        let verdict = match outcome.verdict() {
            Verdict::Deny { .. } if outcome.is_shadow() => Counted::ShadowDenied,
            Verdict::Deny { .. } if outcome.is_banned() => Counted::Banned,
            Verdict::Deny { .. } => Counted::Denied,
            // Another policy denied, so this one was not charged.
            _ if decision.is_denied() => continue,
            Verdict::Delay(_) => Counted::Delayed,
            Verdict::Admit => Counted::Admitted,
        };
        outcome.policy().counters().add(outcome.policy().name(), verdict, source, 1);
    }
    if decision.outcomes().is_empty() && decision.failure().is_some() {
        WITHOUT_POLICY.add("", Counted::Admitted, source, 1);
    }
}
