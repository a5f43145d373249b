//! What a client sees of its limits.

use serde::Serialize;
use tower_ratelimit::decision::Outcome;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    limits: Vec<Limit<'a>>,
}

/// It has no key, which may be a secret, and no setting that only concerns operators.
#[derive(Serialize)]
struct Limit<'a> {
    policy: &'a str,
    quota: String,
    unit: String,
    capacity: u64,
    used: u64,
    remaining: u64,
    reset_after: f64,
    banned_for: Option<f64>,
}

pub(super) fn report(outcomes: &[Outcome]) -> Report<'_> {
    let limit = |outcome| {
        let outcome: &Outcome = outcome;
        let policy = outcome.policy();
        let (capacity, remaining) = (policy.capacity(), outcome.remaining());
        Limit {
            policy: policy.name(),
            quota: policy.quota().to_string(),
            unit: policy.settings().quota_unit.to_string(),
            capacity,
            used: capacity.saturating_sub(remaining),
            remaining,
            reset_after: outcome.reset_after().as_secs_f64(),
            banned_for: outcome.banned_for().map(|rest| rest.as_secs_f64()),
        }
    };
    Report { limits: outcomes.iter().map(limit).collect() }
}
