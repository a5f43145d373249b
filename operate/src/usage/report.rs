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
    unit: &'a str,
    capacity: u64,
    used: u64,
    remaining: u64,
    owed: u64,
    reset_after: f64,
    banned_for: Option<f64>,
}

/// The outcomes, each with the units that the client owes.
pub(super) fn report(outcomes: &[(Outcome, u64)]) -> Report<'_> {
    Report { limits: outcomes.iter().map(|(outcome, owed)| limit(outcome, *owed)).collect() }
}

fn limit(outcome: &Outcome, owed: u64) -> Limit<'_> {
    let policy = outcome.policy();
    let (capacity, remaining) = (policy.capacity(), outcome.remaining());
    // The period of permits is how long one is kept if its process is gone.
    let quota =
        if policy.has_permits() { format!("{capacity} at a time") } else { policy.quota().to_string() };
    Limit {
        policy: policy.name(),
        quota,
        unit: outcome.charge().unit(),
        capacity,
        used: outcome.used(),
        remaining,
        owed,
        reset_after: outcome.reset_after().as_secs_f64(),
        banned_for: outcome.banned_for().map(|rest| rest.as_secs_f64()),
    }
}
