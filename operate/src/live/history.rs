//! [`PolicyChange`]: what has changed, and when.

use std::time::SystemTime;

/// A change of live policies that was applied, from
/// [`LivePolicies::recent_changes`](super::LivePolicies::recent_changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyChange {
    /// When this process applied it, by the clock of this machine.
    pub time: SystemTime,
    /// The [version](super::LivePolicies::version) that begins with it.
    pub version: u64,
    /// The old and the new values, as in the log: `api: enforced 1 -> 0.1`. A move of the switch is `enforcement:
    /// on -> off`.
    pub text: String,
}
