use std::{fmt, str::FromStr};

use crate::error::{Error, ErrorKind};

/// What happens to a request when the store gives no decision in time.
///
/// Reads from and prints as `open` or `closed`, with the feature `serde` in configuration files too.
///
/// # Example
///
/// ```
/// # #[cfg(feature = "redis")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{FailureMode, Key, Limiter, Policy, Quota, RedisStore};
///
/// // No Redis listens on this port.
/// let limiter = Limiter::new(RedisStore::connect_lazy("redis://127.0.0.1:1")?);
/// let api = Policy::new("api", Quota::per_second(10)).on_store_failure(FailureMode::Open);
/// let login = Policy::new("login", Quota::per_minute(5)).on_store_failure("closed".parse()?);
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
    /// Admit the request, without `RateLimit` headers: for limits that protect capacity. Nothing is limited while
    /// the store is unavailable.
    #[default]
    Open,
    /// Reject the request with 503: for limits that protect secrets, such as the limit on a login.
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

/// Reads `open` or `closed`, in any case.
///
/// # Errors
///
/// [`InvalidConfig`](ErrorKind::InvalidConfig) for any other text.
impl FromStr for FailureMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let modes = [Self::Open, Self::Closed];
        modes.into_iter().find(|mode| mode.to_string().eq_ignore_ascii_case(text.trim())).ok_or_else(|| {
            let message = format!("invalid failure mode `{text}`: write `open` or `closed`");
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }
}
