use std::{error::Error as StdError, fmt};

use super::headers::retry_after;
use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
};

/// Why a request is answered without the service being called.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Error, ErrorKind, Rejection};
///
/// let owed = Rejection::Unidentified(Error::new(ErrorKind::MissingIdentity, "no api key"));
/// assert_eq!(owed.status(), 400);
/// let ours = Rejection::Unidentified(Error::new(ErrorKind::MissingSetup, "no connect info"));
/// assert_eq!(ours.status(), 500);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A policy denied it.
    Denied(Decision),
    /// It has no identity to charge, or none by which a ban can be decided: the client's fault for
    /// [`MissingIdentity`](ErrorKind::MissingIdentity) and
    /// [`InvalidIdentity`](ErrorKind::InvalidIdentity), the server's for every other kind.
    Unidentified(Error),
    /// It is one of those that the layer [bans](crate::RateLimitLayer::ban).
    Banned,
    /// The store gave no decision and a policy is [`Closed`](crate::FailureMode::Closed) then.
    Unavailable(Error),
}

impl Rejection {
    /// The status of the default response: 429, 400 or 500, 429 for a ban too, and 503.
    #[must_use]
    pub fn status(&self) -> http::StatusCode {
        match self {
            Self::Denied(_) | Self::Banned => http::StatusCode::TOO_MANY_REQUESTS,
            Self::Unidentified(error) => match error.kind() {
                ErrorKind::MissingIdentity | ErrorKind::InvalidIdentity => http::StatusCode::BAD_REQUEST,
                _ => http::StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Unavailable(error) if error.kind() == ErrorKind::InvalidConfig => {
                http::StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Unavailable(_) => http::StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The decision, where a policy refused.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Denied(decision) => Some(decision),
            _ => None,
        }
    }

    pub(crate) fn into_decision(self) -> Option<Decision> {
        match self {
            Self::Denied(decision) => Some(decision),
            _ => None,
        }
    }

    /// The whole seconds after which the client may come back, as `Retry-After` names them: at least 1.
    /// `None` where waiting cannot help, or nobody knows how long it will take.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        retry_after(self.decision()?)
    }
}

impl Decision {
    /// The decision if the request is admitted, the [`Rejection`] that it stands for if it is denied: for handlers that
    /// ask a [`Limiter`](crate::Limiter) themselves.
    ///
    /// # Errors
    ///
    /// [`Rejection::Denied`] with the decision.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, Rejection};
    ///
    /// async fn export(limiter: &Limiter, exports: &Policy, user: &Key) -> Result<&'static str, Rejection> {
    ///     limiter.check(exports, user, 1).await?.into_result()?;
    ///     Ok("exported")
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (exports, alice) = (Policy::new("exports", Quota::per_hour(1)), Key::new("alice"));
    /// assert!(export(&limiter, &exports, &alice).await.is_ok());
    /// let rejection = export(&limiter, &exports, &alice).await.unwrap_err();
    /// assert_eq!((rejection.status().as_u16(), rejection.retry_after_seconds()), (429, Some(3600)));
    /// # }
    /// ```
    pub fn into_result(self) -> Result<Self, Rejection> {
        if self.is_allowed() { Ok(self) } else { Err(Rejection::Denied(self)) }
    }
}

/// A failure of a [`Limiter`](crate::Limiter) or of a [`KeyExtractor`](crate::KeyExtractor).
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::MissingIdentity
            | ErrorKind::InvalidIdentity
            | ErrorKind::MissingSetup
            | ErrorKind::IdentityUnavailable => Self::Unidentified(error),
            _ => Self::Unavailable(error),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(decision) => match decision.retry_after() {
                Some(wait) => write!(f, "over the rate limit; try again in {wait:?}"),
                None => f.write_str("the cost is above what the rate limit can ever hold"),
            },
            Self::Unidentified(error) | Self::Unavailable(error) => error.fmt(f),
            Self::Banned => f.write_str("banned from the service"),
        }
    }
}

impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Unidentified(error) | Self::Unavailable(error) => error.source(),
            Self::Denied(_) | Self::Banned => None,
        }
    }
}
