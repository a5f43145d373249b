use crate::{Decision, Error, ErrorKind};

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
    /// A policy refused it.
    Limited(Decision),
    /// It has no identity to charge: the client's fault for
    /// [`MissingIdentity`](ErrorKind::MissingIdentity) and
    /// [`InvalidIdentity`](ErrorKind::InvalidIdentity), the server's for every other kind.
    Unidentified(Error),
    /// The store gave no decision and a policy is [`Closed`](crate::FailureMode::Closed) then.
    Unavailable(Error),
}

impl Rejection {
    /// The status of the default response: 429, 400 or 500, and 503.
    #[must_use]
    pub fn status(&self) -> http::StatusCode {
        match self {
            Self::Limited(_) => http::StatusCode::TOO_MANY_REQUESTS,
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
            Self::Limited(decision) => Some(decision),
            _ => None,
        }
    }
}
