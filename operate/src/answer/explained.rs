//! [`Explained`]: an explanation of a key or of a request.

use serde::{Deserialize, Serialize};

use crate::config::PolicySummary;

/// What would be decided now. A request to which several apply gets the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerdictWord {
    /// The layer does not limit the request.
    NotLimited = 0,
    /// It is admitted.
    Admitted = 1,
    /// It is admitted after a wait.
    Delayed = 2,
    /// It is denied.
    Denied = 4,
    /// It is rejected before it is decided, such as by a blocklist.
    Rejected = 5,
    /// Something that may limit the client cannot be read. Also a verdict that this version does not know.
    #[serde(other)]
    Unknown = 3,
}

/// An explanation, as `explain::Explanation` is serialized.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Explained {
    /// What would be decided under all policies together.
    pub verdict: VerdictWord,
    /// When a denied request would be admitted. `None` for an admission, and if waiting does not help.
    pub retry_after: Option<f64>,
    /// What would decide: `store`, or what takes its place.
    pub source: String,
    /// Why the store has not answered.
    pub failure: Option<String>,
    /// What is charged.
    pub charges: Vec<ExplainedKey>,
}

/// One charge of an [`Explained`]: a policy, a key, and the state of the key.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct ExplainedKey {
    /// The settings of the policy.
    pub policy: PolicySummary,
    /// The key, in its stored form.
    pub key: String,
    /// The identity, if it is known.
    pub identity: Option<String>,
    /// By it, logs name the key.
    pub key_hash: String,
    /// The key in Redis.
    pub stored_as: Option<String>,
    /// The cost in units.
    pub cost: u64,
    /// Whether the policy denies nothing for this key.
    pub is_shadow: bool,
    /// Whether a request that is denied goes on without this charge.
    #[serde(default, skip_serializing_if = "is_false")]
    pub degrades: bool,
    /// The verdict of this policy alone. `None`, as each of the following, if the store failed and nothing else counts the
    /// policy.
    pub verdict: Option<VerdictWord>,
    /// How long an admission is delayed.
    pub delay: Option<f64>,
    /// When it would be admitted.
    pub retry_after: Option<f64>,
    /// The rest of a ban.
    pub banned_for: Option<f64>,
    /// The units that remain for the request.
    pub remaining: Option<u64>,
    /// The units that it leaves to more critical requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub headroom: u64,
    /// Whether it is denied only because these units are kept.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_shed: bool,
    /// When all units are back.
    pub reset_after: Option<f64>,
    /// The units of debt that are not paid off.
    pub owed: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(units: &u64) -> bool {
    *units == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_false(value: &bool) -> bool {
    !*value
}
