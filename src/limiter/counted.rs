//! Counts decisions and failures of the store, with the feature `metrics`.

#[cfg(feature = "metrics")]
use crate::base::Error;
use crate::{base::Answer, decision::Decision, store::Action};

/// The same answer, counted when it is ready.
#[cfg(not(feature = "metrics"))]
pub(super) const fn counted(_: Action, answer: Answer<Decision>) -> Answer<Decision> {
    answer
}

/// The same answer, counted when it is ready.
#[cfg(feature = "metrics")]
pub(super) fn counted(action: Action, answer: Answer<Decision>) -> Answer<Decision> {
    answer.inspect(match action {
        Action::Charge | Action::ChargeUpTo => |decided| {
            count_failure(decided);
            if let Ok(decision) = decided {
                count(decision);
            }
        },
        _ => count_failure,
    })
}

/// Shows the counters that decisions of `policy` can have, at 0: a rate does not see the first value of a counter.
#[cfg(feature = "metrics")]
pub(super) fn count_policy_from_zero(policy: &crate::policy::Policy, is_in_redis: bool) {
    use crate::{
        decision::DecisionSource,
        metrics::Verdict::{Admitted, Banned, Delayed, Denied, ShadowDenied},
        policy::FailureMode,
    };

    let settings = policy.summary();
    let (is_local, is_open) = match settings.on_store_failure() {
        FailureMode::Local { .. } => (is_in_redis, false),
        FailureMode::Open => (false, is_in_redis),
        FailureMode::Closed => (false, false),
    };
    let sources = [
        (DecisionSource::Store, true),
        (DecisionSource::DenyCache, is_in_redis),
        (DecisionSource::Local, is_local),
    ];
    let verdicts = [
        (Admitted, true),
        (Delayed, settings.algorithm() == "leaky-bucket"),
        (Denied, settings.enforced() > 0.0),
        (ShadowDenied, settings.enforced() < 1.0),
        (Banned, settings.has_penalty()),
    ];
    for source in sources.into_iter().filter_map(|(source, is_possible)| is_possible.then_some(source)) {
        let only_denies = source == DecisionSource::DenyCache;
        for (verdict, is_possible) in verdicts {
            if is_possible && !(only_denies && matches!(verdict, Admitted | Delayed)) {
                policy.counters().add(policy.name(), verdict, label(source), 0);
            }
        }
    }
    if settings.lease() > 0 && is_in_redis {
        policy.counters().add(policy.name(), Admitted, label(DecisionSource::Lease), 0);
    }
    if is_open {
        WITHOUT_POLICY.add("", Admitted, label(DecisionSource::FailureMode), 0);
    }
}

/// Of decisions that the failure mode makes.
#[cfg(feature = "metrics")]
static WITHOUT_POLICY: crate::metrics::PolicyCounters = crate::metrics::PolicyCounters::new();

#[cfg(feature = "metrics")]
const fn label(source: crate::decision::DecisionSource) -> crate::metrics::Source {
    crate::metrics::Source { name: source.as_str(), number: source as usize }
}

#[cfg(feature = "metrics")]
fn count_failure(decided: &Result<Decision, Error>) {
    if let Some(error) = decided.as_ref().map_or_else(Some, Decision::failure) {
        crate::metrics::record::store_failed(error.kind());
    }
}

/// Counts `decision` for each policy that was charged or that denied.
#[cfg(feature = "metrics")]
fn count(decision: &Decision) {
    use crate::{decision::Verdict, metrics::Verdict as Counted};

    let source = label(decision.source());
    for outcome in decision.all_outcomes() {
        let verdict = match outcome.verdict() {
            Verdict::Deny { .. } if outcome.is_shadow() => Counted::ShadowDenied,
            Verdict::Deny { .. } if outcome.is_banned() => Counted::Banned,
            Verdict::Deny { .. } => Counted::Denied,
            // Another policy denied, so this one was not charged.
            _ if decision.is_denied() => continue,
            Verdict::Delay(_) => Counted::Delayed,
            Verdict::Allow => Counted::Admitted,
        };
        outcome.policy().counters().count(outcome.policy().name(), verdict, source);
    }
    if decision.outcomes().is_empty() && decision.failure().is_some() {
        WITHOUT_POLICY.count("", Counted::Admitted, source);
    }
}
