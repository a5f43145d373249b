use serde::Serialize;
use tower_ratelimit::{FailureMode, Policy, Quota};

/// The settings of a policy as a table, for pages and logs. It cannot be read as a policy again, because it lacks the
/// options of the algorithm and the numbers of the penalty.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Policy, Quota};
/// use tower_ratelimit_extra::config::PolicySummary;
///
/// # fn main() -> Result<(), serde_json::Error> {
/// let summary = PolicySummary::of(&Policy::new("login", Quota::per_minute(5)));
/// assert_eq!(
///     serde_json::to_value(summary)?,
///     serde_json::json!({
///         "name": "login", "quota": "5/min", "algorithm": "gcra", "capacity": 5, "debt": 0, "lease": 0,
///         "has_penalty": false, "content_bytes": false, "enforced": 1.0, "on_store_failure": "local",
///     })
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Serialize)]
pub struct PolicySummary {
    name: String,
    quota: Quota,
    algorithm: String,
    capacity: u64,
    debt: u64,
    lease: u64,
    has_penalty: bool,
    content_bytes: bool,
    enforced: f64,
    on_store_failure: FailureMode,
}

impl PolicySummary {
    /// The settings of `policy`.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let settings = policy.settings();
        Self {
            name: policy.name().to_owned(),
            quota: settings.quota,
            algorithm: settings.algorithm.name().to_owned(),
            capacity: policy.capacity(),
            debt: settings.debt,
            lease: settings.lease.unwrap_or_default(),
            has_penalty: settings.penalty.is_some(),
            content_bytes: settings.content_bytes,
            enforced: settings.enforced,
            on_store_failure: settings.failure_mode,
        }
    }
}
