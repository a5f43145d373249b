use std::fmt;

/// What made a [`Decision`](super::Decision), from [`Decision::source`](super::Decision::source).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{decision::DecisionSource, Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let decision = limiter.check(&Policy::new("api", Quota::per_hour(2)), &Key::new("alice"), 1).await?;
/// assert_eq!(decision.source(), DecisionSource::Store);
/// assert_eq!(decision.source().as_str(), "store");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store: Redis, a [`MemoryStore`](crate::MemoryStore), or your own.
    Store,
    /// The deny cache of a [`RedisStore`](crate::store::RedisStore): Redis denied the key before, and its wait is not over.
    DenyCache,
    /// Units that a [`RedisStore`](crate::store::RedisStore) has on [lease](crate::Policy::leased).
    Lease,
    /// This process, under [`FailureMode::Local`](crate::FailureMode::Local), because the store
    /// [failed](super::Decision::failure).
    Local,
    /// Nothing: [`FailureMode::Open`](crate::FailureMode::Open) admitted, because the store
    /// [failed](super::Decision::failure).
    FailureMode,
}

impl DecisionSource {
    /// The name in lower case with underscores, for labels and logs: `store`, `deny_cache`, `lease`, `local` or
    /// `failure_mode`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenyCache => "deny_cache",
            Self::Lease => "lease",
            Self::Local => "local",
            Self::FailureMode => "failure_mode",
        }
    }
}

/// [`as_str`](Self::as_str).
impl fmt::Display for DecisionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
