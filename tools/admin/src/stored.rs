//! Under which names Redis has a key.

use std::time::Duration;

use tower_ratelimit::{
    Error, ErrorKind, Key, Limiter, Policy, Quota,
    algorithm::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};
use tower_ratelimit_operate::explain::Explanation;

/// A period so long that every charge under a name still counts.
const PERIOD: Duration = Duration::from_secs(30 * 86_400);

/// Whether anything was charged to the key that `explanation` is about. A key that is fully replenished is as
/// one that does not exist.
pub(crate) fn is_charged(explanation: &Explanation) -> bool {
    let outcome = explanation.charges().first().and_then(|charge| charge.outcome());
    outcome.is_none_or(|outcome| {
        outcome.banned_for().is_some()
            || outcome.remaining() < outcome.policy().capacity()
            || !outcome.reset_after().is_zero()
    })
}

/// The names in Redis under which `key` is charged for `policy` by other algorithms than its own. The service
/// may count by one of them if the file of policies is wrong. Charges nothing, and needs no permission to
/// list keys.
pub(crate) async fn other_names(limiter: &Limiter, policy: &Policy, key: &Key) -> Vec<String> {
    let mut names = Vec::new();
    for other in by_each_algorithm(policy).into_iter().flatten() {
        if other.settings().algorithm.name() == policy.settings().algorithm.name() {
            continue;
        }
        let exists = match Explanation::of(limiter, &other, key, 1).await {
            Ok(explanation) => explanation.decision().failure().is_none() && is_charged(&explanation),
            Err(error) => error.kind() == ErrorKind::ForeignValue,
        };
        names.extend(exists.then(|| limiter.operator().stored_name(&other, key)).flatten());
    }
    names
}

fn by_each_algorithm(policy: &Policy) -> [Result<Policy, Error>; 7] {
    let base = || Policy::try_new(policy.name(), Quota::try_new(policy.capacity(), PERIOD)?);
    [
        base().and_then(|policy| policy.try_algorithm(Gcra::new())),
        base().and_then(|policy| policy.try_algorithm(TokenBucket::new())),
        base().and_then(|policy| policy.try_algorithm(LeakyBucket::meter())),
        base().and_then(|policy| policy.try_algorithm(FixedWindow::anchored())),
        base().and_then(|policy| policy.try_algorithm(SlidingWindow::new())),
        base().and_then(|policy| policy.try_algorithm(SlidingLog::new())),
        base().and_then(|policy| policy.try_algorithm(Concurrency::new())),
    ]
}

/// A line of text for the operator about a key without a charge.
pub(crate) fn note(name: &str, others: &[String]) -> String {
    match others {
        [] => format!("nothing is charged to {name}, nor to the key under another built-in algorithm\n"),
        others => format!(
            "nothing is charged to {name}, but there is {}: does the service use another algorithm than the policy \
             file?\n",
            others.join(", ")
        ),
    }
}
