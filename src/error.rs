//! The one error type of the crate.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

/// Why a value could not be built, an identity not be found, or a store not answer.
///
/// One opaque type for the whole crate: match on [`kind`](Self::kind), read the message, and follow
/// [`source`](StdError::source) to the cause. The message is lower case, says what to do where
/// something can be done, and never holds a password or an identity.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{ErrorKind, Quota};
///
/// let error = Quota::new(0, Duration::from_secs(1)).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidConfig);
/// assert_eq!(error.to_string(), "a quota's limit must be at least 1");
/// assert!(Quota::new(1, Duration::from_secs(1)).is_ok());
/// ```
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What sort of failure an [`Error`] is. See [`Error`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value or a setting that cannot work: a limit of zero, a name no header can carry, a
    /// malformed Redis URL.
    InvalidConfig,
    /// The request shows no identity, and it was the client's to show: a header is missing.
    MissingIdentity,
    /// The request shows an identity that cannot be used: a header that is not UTF-8, or too long.
    InvalidIdentity,
    /// The server lacks something the limiter needs, whatever the client sends: no connect info. The
    /// message is for the operator, and [`ProblemDetails`](crate::response::ProblemDetails) shows it in the response.
    MissingSetup,
    /// The server could not find the identity out just now, and it is not the client's fault: a session store is
    /// away. The request is answered 500, without the message.
    IdentityUnavailable,
    /// The store did not answer within the deadline. The charge may or may not have happened.
    StoreTimeout,
    /// The decision's turn did not come within the deadline: more is asked of the store than it can do.
    /// Nothing was charged.
    StoreBusy,
    /// The store could not be reached, or the connection to it broke.
    StoreUnreachable,
    /// The store answered with an error: out of memory, read only, no permission, wrong type.
    StoreFailed,
    /// The store answered with something that is not a decision.
    StoreReply,
}

impl Error {
    /// An error of the kind `kind` that says `message`.
    ///
    /// For extractors and stores of your own. Write the message in lower case, without a full
    /// stop, and without the identity.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) const fn invalid(message: &'static str) -> Self {
        Self { kind: ErrorKind::InvalidConfig, message: Cow::Borrowed(message), source: None }
    }

    /// The same error with `source` as its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// What sort of failure this is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
