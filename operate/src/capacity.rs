//! The gauge of a policy's capacity, when a policy changes while the service runs.

use tower_ratelimit::Policy;

use crate::panics::caught;

/// `policy` replaces another one of its name. The core sets the gauge only when it first uses a policy, which does not
/// show a return to an earlier one.
pub(crate) fn changes_to(policy: &Policy) {
    let name = policy.name().to_owned();
    caught(|| metrics::gauge!("ratelimit_capacity_units", "policy" => name).set(policy.capacity() as f64));
}
