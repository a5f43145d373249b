use serde::Serialize;
use tower_ratelimit::{FailureMode, Policy, Quota};

/// The settings of a policy, to show. It cannot be read as a policy again: the options of the algorithm are missing.
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
            algorithm: policy.algorithm_name().to_owned(),
            capacity: policy.capacity(),
            debt: settings.debt,
            lease: settings.lease.unwrap_or_default(),
            has_penalty: settings.penalty.is_some(),
            content_bytes: settings.content_bytes,
            enforced: settings.enforced,
            on_store_failure: settings.on_store_failure,
        }
    }
}
