//! Why a request is rejected.

use std::{error::Error as StdError, fmt, time::Duration};

use http::StatusCode;

use super::words::push_wait;
use crate::{
    base::{Error, ErrorKind, time::seconds_up},
    decision::Decision,
};

/// Why a request is rejected.
///
/// `Display` is a text for the client. The cause, for logs, is the [`source`](StdError::source).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Error, ErrorKind, Rejection};
///
/// let theirs = Rejection::Unidentified(Error::new(ErrorKind::MissingIdentity, "no api key"));
/// assert_eq!(theirs.status(), 400);
/// assert_eq!(theirs.to_string(), "no api key");
/// let ours = Rejection::Unidentified(Error::new(ErrorKind::MissingSetup, "no connect info"));
/// assert_eq!(ours.status(), 500);
/// assert_eq!(ours.to_string(), "the rate limit is misconfigured");
/// assert_eq!(std::error::Error::source(&ours).unwrap().to_string(), "no connect info");
/// // Only denials have a decision. Only they and a 503 have a wait.
/// assert!(ours.decision().is_none() && ours.retry_after_seconds().is_none());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A policy denied the request: because of its quota, or because it [bans](crate::Policy::penalty) the
    /// key.
    Denied(Decision),
    /// The client could not be identified, either for a charge or for a blocklist, or a
    /// [`PolicySource`](crate::PolicySource) or a [cost](crate::Rule::cost) failed. This is the client's fault for
    /// [`MissingIdentity`](ErrorKind::MissingIdentity), [`InvalidIdentity`](ErrorKind::InvalidIdentity) and
    /// [`UnknownIdentity`](ErrorKind::UnknownIdentity), and the server's for every other kind.
    Unidentified(Error),
    /// The layer [blocks](crate::RateLimitLayer::block_if) the request.
    Blocked,
    /// The store made no decision, and the policy's failure mode is [`Closed`](crate::FailureMode::Closed):
    /// 503. If the error is [`InvalidConfig`](ErrorKind::InvalidConfig) or
    /// [`MissingSetup`](ErrorKind::MissingSetup), the service is not set up: 500. A settlement token that cannot
    /// be settled is a 500 too.
    Unavailable(Error),
}

impl Rejection {
    /// The status of the default response: 429 for a denial and a blocked request, 400, 401 or 500 without an
    /// identity, 503 if the store is unavailable, and 500 if a setting is wrong.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.described().0
    }

    /// The HTTP status, the gRPC code, and what the client may read if no wait helps. `None` if that is the
    /// message of the error.
    pub(super) fn described(&self) -> (StatusCode, u8, Option<&'static str>) {
        let (error, is_identity) = match self {
            Self::Denied(decision) => {
                let says = if decision.is_shed() { KEPT } else { TOO_MUCH };
                return (StatusCode::TOO_MANY_REQUESTS, 8, Some(says));
            }
            Self::Blocked => return (StatusCode::TOO_MANY_REQUESTS, 7, Some(BLOCKED)),
            Self::Unidentified(error) => (error, true),
            Self::Unavailable(error) => (error, false),
        };
        match (error.kind(), is_identity) {
            (ErrorKind::MissingIdentity | ErrorKind::InvalidIdentity, true) => {
                (StatusCode::BAD_REQUEST, 3, None)
            }
            (ErrorKind::UnknownIdentity, true) => (StatusCode::UNAUTHORIZED, 16, None),
            (
                ErrorKind::InvalidConfig
                | ErrorKind::MissingSetup
                | ErrorKind::InvalidToken
                | ErrorKind::ExpiredToken,
                _,
            ) => (StatusCode::INTERNAL_SERVER_ERROR, 13, Some("the rate limit is misconfigured")),
            (_, true) => (StatusCode::INTERNAL_SERVER_ERROR, 13, Some("the client could not be identified")),
            (_, false) => {
                (StatusCode::SERVICE_UNAVAILABLE, 14, Some("the rate limit is temporarily unavailable"))
            }
        }
    }

    /// The decision, if a policy denied the request.
    #[must_use]
    pub const fn decision(&self) -> Option<&Decision> {
        match self {
            Self::Denied(decision) => Some(decision),
            _ => None,
        }
    }

    /// The wait before a retry in whole seconds, at least 1: the value of `Retry-After`.
    ///
    /// For a denial, the wait until the request is admitted, or 1 if it lacks a permit, which may be released
    /// at any moment. For a 503, a random time of at most 5 seconds, which stays the same for this rejection.
    /// `None` if waiting cannot help, because the request costs more than the capacity, and for every other
    /// rejection.
    #[inline]
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.wait().map(whole_seconds)
    }

    /// The wait that the client sees.
    pub(super) fn wait(&self) -> Option<Duration> {
        match self {
            Self::Denied(decision) => decision.advised_wait(),
            Self::Unavailable(error) if self.status() == StatusCode::SERVICE_UNAVAILABLE => {
                Some(Duration::from_secs(error.pause()))
            }
            Self::Unavailable(_) | Self::Unidentified(_) | Self::Blocked => None,
        }
    }
}

const TOO_MUCH: &str = "the cost of the request exceeds the quota; waiting does not help";
const KEPT: &str = "the quota is kept for more critical requests; waiting does not help";
const BLOCKED: &str = "the client is blocked; waiting does not help";

/// A failure of a [`Limiter`](crate::Limiter) or of a [`KeyExtractor`](crate::KeyExtractor).
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::MissingIdentity
            | ErrorKind::NotApplicable
            | ErrorKind::InvalidIdentity
            | ErrorKind::UnknownIdentity
            | ErrorKind::MissingSetup
            | ErrorKind::IdentityUnavailable => Self::Unidentified(error),
            _ => Self::Unavailable(error),
        }
    }
}

/// The text for the client: what happened, and the wait of a denial in its two largest units, rounded up:
/// `3 days 21 hours`. It reveals nothing about the store, and of an [`Error`] only the message meant for the
/// client, such as the message of [`MissingIdentity`](ErrorKind::MissingIdentity). The cause is the
/// [`source`](StdError::source).
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.retry_after_seconds(), self.described().2) {
            (Self::Denied(decision), Some(seconds), _) => {
                let reason =
                    if decision.is_banned() { "the client is banned" } else { "over the rate limit" };
                let mut text = format!("{reason}; try again in ");
                push_wait(&mut text, seconds);
                f.write_str(&text)
            }
            (Self::Unidentified(error) | Self::Unavailable(error), _, None) => f.write_str(error.message()),
            (_, _, text) => f.write_str(text.unwrap_or_default()),
        }
    }
}

impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Unidentified(error) | Self::Unavailable(error) => Some(error),
            Self::Denied(_) | Self::Blocked => None,
        }
    }
}

/// The largest `Retry-After`: clients hold it in 32 bits, with a sign.
pub(super) const MAX_RETRY_AFTER: u64 = i32::MAX as u64;

/// The seconds that `Retry-After` states: never too short, never 0.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    seconds_up(wait).clamp(1, MAX_RETRY_AFTER)
}
