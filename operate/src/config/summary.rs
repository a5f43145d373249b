//! [`PolicySummary`]: the settings of a policy that serde writes and reads, for pages and logs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tower_ratelimit::policy::{Headroom, QuotaUnit};
use tower_ratelimit::{Criticality, FailureMode, Policy, Quota};

/// The settings of a policy as a table, for pages and logs. It cannot be read as a policy again, because it
/// lacks the options of the algorithm and the numbers of the penalty.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Policy, Quota};
/// use tower_ratelimit_operate::config::PolicySummary;
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
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct PolicySummary {
    /// The name.
    pub name: String,
    /// The quota.
    pub quota: Quota,
    /// The name of the algorithm.
    pub algorithm: String,
    /// The most units that are admitted in one step.
    pub capacity: u64,
    /// The bound on debt, in units. 0 without debt.
    #[serde(default)]
    pub max_debt: u64,
    /// The most units that an instance leases. 0 without leases.
    #[serde(default)]
    pub max_lease: u64,
    /// Whether the policy has a penalty.
    #[serde(default)]
    pub has_penalty: bool,
    /// What requests of each lower criticality leave unused. See [`Policy::headroom`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headroom: BTreeMap<Criticality, Headroom>,
    /// What a unit is.
    pub quota_unit: QuotaUnit,
    /// The share of the keys for which the policy is enforced.
    pub enforced: f64,
    /// What decides if the store fails.
    pub failure_mode: FailureMode,
    /// The shares of the quota, in percent, at which the service is notified.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify_at: Vec<u8>,
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
            headroom: settings.headroom.clone(),
            quota_unit: settings.quota_unit,
            enforced: settings.enforced,
            failure_mode: settings.failure_mode,
            notify_at: settings.notify_at.clone(),
        }
    }
}
