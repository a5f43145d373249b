//! Policies that change while the service runs.

mod file;
mod random;
mod redis;
mod watched;

use tower_ratelimit_operate::live::LivePolicies;

/// The active policies, as `name quota`.
fn quotas(live: &LivePolicies) -> Vec<String> {
    live.current().iter().map(|policy| format!("{} {}", policy.name(), policy.quota())).collect()
}

/// The text of the current error, or nothing.
fn error(live: &LivePolicies) -> String {
    live.last_error().map(|error| error.to_string()).unwrap_or_default()
}
