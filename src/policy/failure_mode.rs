use std::fmt;

/// What to do with a request when the store gave no decision in time.
///
/// # Example
///
/// ```
/// # #[cfg(feature = "redis")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{FailureMode, Key, Limiter, Policy, Quota, RedisStore};
///
/// // Nobody listens there.
/// let limiter = Limiter::new(RedisStore::connect_lazy("redis://127.0.0.1:1")?);
/// let api = Policy::new("api", Quota::per_second(10)).on_store_failure(FailureMode::Open);
/// let login = Policy::new("login", Quota::per_minute(5)).on_store_failure(FailureMode::Closed);
///
/// let admitted = limiter.check(&api, &Key::new("alice"), 1).await?;
/// assert!(admitted.is_allowed() && admitted.failure().is_some());
/// assert!(limiter.check(&login, &Key::new("alice"), 1).await.is_err());
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "redis"))]
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// Let the request through, without `RateLimit` fields: for limits that protect capacity. While
    /// the store is away, nothing is limited.
    #[default]
    Open,
    /// Refuse it with 503: for limits that protect secrets, such as the one on a login.
    Closed,
}

impl fmt::Display for FailureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Closed => "closed",
        })
    }
}
