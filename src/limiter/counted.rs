//! Counts decisions and failures of the store, with the feature `metrics`.

use crate::{answer::Answer, decision::Decision, store::Action};

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

#[cfg(feature = "metrics")]
fn count_failure(decided: &Result<Decision, crate::error::Error>) {
    if let Some(error) = decided.as_ref().map_or_else(Some, Decision::failure) {
        crate::metrics::record::store_failed(error.kind());
    }
}

/// Counts `decision` for each policy that was charged or that denied.
#[cfg(feature = "metrics")]
fn count(decision: &Decision) {
    use crate::{
        decision::Verdict,
        metrics::{PolicyCounters, Source, Verdict as Counted},
    };

    let source = decision.source();
    let source = Source { name: source.as_str(), number: source as usize };
    for outcome in decision.all_outcomes() {
        let verdict = match outcome.verdict() {
            Verdict::Deny { .. } if outcome.is_shadow() => Counted::ShadowDenied,
            Verdict::Deny { .. } if outcome.is_banned() => Counted::Banned,
            Verdict::Deny { .. } => Counted::Denied,
            // Another policy denied, so this one was not charged.
            _ if !decision.is_allowed() => continue,
            Verdict::Delay(_) => Counted::Delayed,
            Verdict::Allow => Counted::Admitted,
        };
        outcome.policy().counters().count(outcome.policy().name(), verdict, source);
    }
    if decision.outcomes().is_empty() && decision.failure().is_some() {
        static WITHOUT_POLICY: PolicyCounters = PolicyCounters::new();
        WITHOUT_POLICY.count("", Counted::Admitted, source);
    }
}
