//! [`Explanation`]: the values of an explanation, and its text for people.

use std::fmt;

use tower_ratelimit::{Charge, Decision, Key, Policy, decision::Outcome};

/// What a [`Limiter`](tower_ratelimit::Limiter) would decide about a key now, and why. [`of`](Self::of) makes
/// it, with an example.
///
/// `Display` prints it for people, with keys and identities: keep it out of logs. `Debug` hides them.
///
/// # As JSON
///
/// With the feature `serde` it is serialized. Times are in seconds.
///
/// ```json
/// {
///   "verdict": "denied",
///   "retry_after": 12.0,
///   "source": "store",
///   "failure": null,
///   "charges": [{
///     "policy": {
///       "name": "login", "quota": "5/min", "algorithm": "gcra", "capacity": 5, "max_debt": 0, "max_lease": 0, "has_penalty": false,
///       "quota_unit": "requests", "enforced": 1.0, "failure_mode": "local"
///     },
///     "key": "alice",
///     "identity": "alice",
///     "key_hash": "2bd806c97f0e00af",
///     "stored_as": "rl:login:gcra:{alice}",
///     "cost": 1,
///     "is_shadow": false,
///     "verdict": "denied",
///     "delay": null,
///     "retry_after": 12.0,
///     "banned_for": null,
///     "remaining": 0,
///     "reset_after": 60.0,
///     "owed": 0
///   }]
/// }
/// ```
///
/// `verdict` is `admitted`, `delayed` or `denied`. `banned_for` is the remaining time of a
/// [ban](Policy::penalty), during which `remaining` is 0. `retry_after` is null for an admission, and if
/// waiting does not help. Unknown values of `identity` and `stored_as` are null. If the store
/// [failed](Self::decision) and nothing else counts the policy, `verdict` and the values after it in
/// `charges` are null.
#[derive(Clone)]
pub struct Explanation {
    pub(super) decision: Decision,
    pub(super) charges: Vec<ExplainedCharge>,
}

/// One charge of an [`Explanation`]: a policy, a key, and the state of the key.
#[derive(Clone)]
pub struct ExplainedCharge {
    pub(super) charge: Charge,
    pub(super) identity: Option<String>,
    pub(super) stored_name: Option<String>,
    pub(super) outcome: Option<Outcome>,
    pub(super) owed: u64,
}

impl Explanation {
    /// What [`check_all`](tower_ratelimit::Limiter::check_all) would decide now. It has charged nothing.
    ///
    /// If the store failed, [`Decision::failure`] has the cause, and the decision follows the [failure
    /// mode](tower_ratelimit::FailureMode).
    #[must_use]
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The charges, in the order in which they were given.
    #[must_use]
    pub fn charges(&self) -> &[ExplainedCharge] {
        &self.charges
    }
}

impl ExplainedCharge {
    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        self.charge.policy()
    }

    /// The key, in its [stored form](tower_ratelimit::key#the-stored-form).
    #[must_use]
    pub const fn key(&self) -> &Key {
        self.charge.key()
    }

    /// 64 bits of the SHA-256 of the stored form, as 16 hex digits. Logs identify keys by this hash.
    #[must_use]
    pub fn key_hash(&self) -> String {
        self.key().digest()
    }

    /// The identity. `None` if the stored form is a hash and the caller has passed no key that knows its
    /// [identity](Key::identity).
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// The name under which the store keeps the count: the key in Redis. `None` for a store that has no such
    /// names.
    #[must_use]
    pub fn stored_name(&self) -> Option<&str> {
        self.stored_name.as_deref()
    }

    /// The cost in units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.charge.cost()
    }

    /// Whether the policy is a [shadow](Policy::shadow) for this key, and so never denies.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.charge.is_shadow()
    }

    /// Whether a request that is denied goes on without this charge: see
    /// [`Rule::or_degrade`](tower_ratelimit::Rule::or_degrade).
    #[must_use]
    pub fn degrades(&self) -> bool {
        self.charge.degrades()
    }

    /// Whether it is a guarantee, beyond which a request borrows from the pool: see
    /// [`Rule::guarantee`](tower_ratelimit::Rule::guarantee).
    #[must_use]
    pub fn is_guarantee(&self) -> bool {
        self.charge.is_guarantee()
    }

    /// The verdict of this policy alone, what remains, and the reset. `None` if the store failed and nothing
    /// else counts the policy.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The units of [debt](Policy::max_debt) that are not paid off.
    #[must_use]
    pub const fn owed(&self) -> u64 {
        self.owed
    }
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanation")
            .field("decision", &self.decision)
            .field("charges", &self.charges)
            .finish()
    }
}

impl fmt::Debug for ExplainedCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExplainedCharge")
            .field("charge", &self.charge)
            .field("outcome", &self.outcome)
            .field("owed", &self.owed)
            .finish_non_exhaustive()
    }
}
