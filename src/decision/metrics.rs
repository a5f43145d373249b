//! Counts decisions, and failures of the store to make them.

use super::{Decision, DecisionSource, Outcome, Verdict};
use crate::{
    base::Error,
    metrics::{PolicyHandles, PolicyMetrics, Source, Verdict as Counted, record},
    policy::{FailureMode, Policy},
};

/// Counts a charge that has ended, and its failure.
pub(crate) fn charged(decided: &Result<Decision, Error>) {
    count_failure(decided);
    if let Ok(decision) = decided {
        count(decision);
    }
}

/// Records the shares that a debit has used, or its failure. A debit does not count as a decision.
pub(crate) fn debited(decided: &Result<Decision, Error>) {
    count_failure(decided);
    if let Ok(decision) = decided
        && decision.failure().is_none()
    {
        for outcome in decision.all_outcomes() {
            let policy = outcome.policy();
            policy.handles().with(policy.name(), |metrics| record_use(metrics, outcome));
        }
    }
}

/// Counts the failure of the store to make a decision.
pub(crate) fn count_failure(decided: &Result<Decision, Error>) {
    if let Some(error) = decided.as_ref().map_or_else(Some, Decision::failure) {
        record::store_failed(error.kind());
    }
}

/// Shows the capacity of `policy`, and the counters that it can have, at 0: a rate does not see the first value of
/// a counter.
pub(crate) fn count_policy_from_zero(policy: &Policy, is_in_redis: bool) {
    policy.handles().with(policy.name(), |metrics| _ = metrics.used_share(policy.capacity()));
    for percent in &policy.settings().notify_at {
        record::threshold_reached(policy.name(), *percent, 0);
    }
    let mode = policy.settings().failure_mode;
    let show = |source, verdict| {
        policy.handles().with(policy.name(), |metrics| metrics.decided(verdict, label(source), 0));
    };
    let verdicts = [
        (Counted::Admitted, true),
        (Counted::Delayed, policy.queues()),
        (Counted::Denied, policy.settings().enforced > 0.0 || policy.pool().is_some()),
        (Counted::Borrowed, policy.pool().is_some()),
        (Counted::ShadowDenied, policy.settings().enforced < 1.0 && policy.pool().is_none()),
        (Counted::Banned, policy.bans().is_some()),
        (Counted::Shed, !policy.settings().headroom.is_empty()),
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
    if is_in_redis && policy.most_leased().is_some() {
        show(DecisionSource::Lease, Counted::Admitted);
    }
    if is_in_redis && mode == FailureMode::Open {
        failure_mode_admitted(0);
    }
}

/// Counts decisions of the failure mode, which have no policy.
fn failure_mode_admitted(decisions: u64) {
    static WITHOUT_POLICY: PolicyHandles = PolicyHandles::new();
    let source = label(DecisionSource::FailureMode);
    WITHOUT_POLICY.with("", |metrics| metrics.decided(Counted::Admitted, source, decisions));
}

const fn label(source: DecisionSource) -> Source {
    Source { name: source.as_str(), number: source as usize }
}

/// Counts `decision` for each policy that was charged or that denied.
fn count(decision: &Decision) {
    let source = label(decision.source());
    // In an outage, what remains is a part of this instance's share.
    let is_of_store = decision.failure().is_none();
    for outcome in decision.all_outcomes() {
        let verdict = match outcome.verdict() {
            Verdict::Deny { .. } if outcome.charge().degrades() && decision.is_denied() => continue,
            Verdict::Deny { .. } if outcome.charge().is_guarantee() => match decision.has_lent(outcome) {
                Some(true) if decision.is_denied() => continue,
                Some(true) => Counted::Borrowed,
                _ => Counted::Denied,
            },
            Verdict::Deny { .. } if outcome.charge().degrades() => Counted::Degraded,
            Verdict::Deny { .. } if outcome.is_shadow() => Counted::ShadowDenied,
            Verdict::Deny { .. } if outcome.is_banned() => Counted::Banned,
            Verdict::Deny { .. } if outcome.is_shed() => Counted::Shed,
            Verdict::Deny { .. } => Counted::Denied,
            // Another policy denied, so this one was not charged.
            _ if decision.is_denied() => continue,
            Verdict::Delay(_) => Counted::Delayed,
            Verdict::Admit => Counted::Admitted,
        };
        let policy = outcome.policy();
        policy.handles().with(policy.name(), |metrics| {
            metrics.decided(verdict, source, 1);
            if is_of_store {
                record_use(metrics, outcome);
            }
        });
    }
    if decision.outcomes().is_empty() && decision.failure().is_some() {
        failure_mode_admitted(1);
    }
}

/// Records the share of its quota that the key of `outcome` has used.
fn record_use(metrics: &PolicyMetrics<'_>, outcome: &Outcome) {
    metrics.used(outcome.used(), outcome.policy().capacity_without_debt());
}
