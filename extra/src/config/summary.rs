//! [`PolicySummary`]: the settings of a policy that serde writes, for pages and logs.

use serde::Serialize;
use tower_ratelimit::policy::QuotaUnit;
use tower_ratelimit::{FailureMode, Policy, Quota};

/// The settings of a policy as a table, for pages and logs. It cannot be read as a policy again, because it
/// lacks the options of the algorithm and the numbers of the penalty.
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
///         "name": "login", "quota": "5/min", "algorithm": "gcra", "capacity": 5, "max_debt": 0, "max_lease": 0,
///         "has_penalty": false, "quota_unit": "requests", "enforced": 1.0, "failure_mode": "local",
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
    max_debt: u64,
    max_lease: u64,
    has_penalty: bool,
    quota_unit: QuotaUnit,
    enforced: f64,
    failure_mode: FailureMode,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notify_at: Vec<u8>,
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
            max_debt: settings.max_debt,
            max_lease: settings.max_lease.unwrap_or_default(),
            has_penalty: settings.penalty.is_some(),
            quota_unit: settings.quota_unit,
            enforced: settings.enforced,
            failure_mode: settings.failure_mode,
            notify_at: settings.notify_at.clone(),
        }
    }
}
