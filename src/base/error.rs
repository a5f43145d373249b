//! The error type of the crate, and why a store failed.

use std::{
    borrow::Cow,
    error::Error as StdError,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use super::{hidden::is_hidden, random::random_time, time::seconds_up};

/// The error of this crate: an invalid setting, a request without a usable identity, or a failure of the
/// store.
///
/// Match on [`kind`](Self::kind), read the message, and follow [`source`](StdError::source) to the cause. The
/// message is lower case, states the remedy if there is one, and never shows a password or an identity.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{ErrorKind, Quota};
///
/// let error = Quota::try_new(0, Duration::from_secs(1)).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidConfig);
/// assert_eq!(error.to_string(), "a quota's limit must be at least 1");
/// assert!(Quota::try_new(1, Duration::from_secs(1)).is_ok());
/// ```
#[derive(Clone)]
// Boxed, because every request moves results that may have one.
pub struct Error(Box<Details>);

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    #[cfg(feature = "redis")]
    fault: Option<Fault>,
    pause: Pause,
    /// The place of the rule in its layer that met the error. Only logs have it.
    rule: Option<u16>,
    message: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The seconds after which a client may ask a store again that failed; 0 until they are chosen. Clones keep
/// the choice.
#[derive(Debug)]
struct Pause(AtomicU8);

impl Clone for Pause {
    fn clone(&self) -> Self {
        Self(self.0.load(Ordering::Relaxed).into())
    }
}

/// The kind of an [`Error`].
///
/// The status is the one with which a layer rejects the request. A failure of the store, from `StoreTimeout`
/// on, rejects requests only under [`FailureMode::Closed`](crate::FailureMode::Closed).
///
/// | kind | status | charged? | cause | remedy |
/// |---|---|---|---|---|
/// | `InvalidConfig` | 500 | no | a setting is invalid | the message states it |
/// | `MissingIdentity` | 400 | [see below](#charged) | the client sent no identity | the client sends it, or you add a fallback with [`or`](crate::KeyExtractor::or) |
/// | `NotApplicable` | none | no | the rule has nothing to limit in this request: its route lacks the parameter that is the identity | none: the other rules apply |
/// | `InvalidIdentity` | 400 | [see below](#charged) | the client sent an identity that cannot be used | the client corrects it |
/// | `UnknownIdentity` | 401 | [see below](#charged) | the server does not know the identity | the client uses a valid one |
/// | `MissingSetup` | 500 | no | the server lacks what an extractor or the store needs | add what the message names |
/// | `IdentityUnavailable` | 500 | no | the identity cannot be looked up now | check the database behind it |
/// | `InvalidToken` | 500 | no | a [settlement token](crate::Limiter#method.settle_token) cannot be read | the message states it |
/// | `ExpiredToken` | 500 | no | a settlement token has expired | the estimate stays charged; longer lifetimes |
/// | `StoreTimeout` | 503 | maybe | no answer within the deadline | check the store's load and network |
/// | `StoreBusy` | 503 | no | too many decisions wait for the store | more capacity, or [leases](crate::Policy::max_lease) |
/// | `StoreSuspended` | 503 | no | the circuit breaker is open | see the [`source`](StdError::source) |
/// | `StoreUnreachable` | 503 | no | no connection | check address, TLS, password and network |
/// | `StoreDisconnected` | 503 | maybe | the connection broke | check the store |
/// | `StoreFailed` | 503 | no | the store answered with an error | the message states it |
/// | `ForeignValue` | 503 | no | another program or version uses the key | another prefix, or remove the value |
/// | `StoreReply` | 503 | maybe | the answer is not a decision | check proxies; report a bug |
///
/// [Troubleshooting](crate::guide::troubleshooting) has more about each.
///
/// # Charged?
///
/// A request that one rule cannot identify (400 or 401) is [charged under the
/// others](crate::RateLimitLayer#guesses-are-charged). "Maybe" is
/// [`may_have_charged`](Self::may_have_charged).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Error, ErrorKind, Quota, Rejection};
///
/// assert_eq!("5 mails".parse::<Quota>().unwrap_err().kind(), ErrorKind::InvalidConfig);
///
/// // What your extractor returns for an API key without an account.
/// let unknown = Error::new(ErrorKind::UnknownIdentity, "no account has this API key");
/// assert_eq!(Rejection::Unidentified(unknown).status(), 401);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is invalid: a limit of zero, a name that no header can have, a malformed Redis URL.
    InvalidConfig,
    /// The request carries no identity, and the client should have sent one: a header is missing.
    MissingIdentity,
    /// The rule has nothing to limit in this request, so it does not apply: the request matches no route, or one
    /// without the parameter that is the identity. A custom extractor can return it for requests that its rule does
    /// not limit. A cost or a policy source cannot: from these, it is a failure, answered with 500.
    NotApplicable,
    /// The request carries an identity that cannot be used: a header that is empty, sent twice, not UTF-8, or
    /// too long.
    InvalidIdentity,
    /// The request carries a well-formed identity that the server does not know: an API key that no account
    /// has.
    ///
    /// The client sees the message. HTTP requires a `WWW-Authenticate` header on a 401, and only you know the
    /// scheme: [`ResponseMapper`](crate::response::ResponseMapper#your-own-401) shows how to add it.
    UnknownIdentity,
    /// The server lacks something that the limiter needs, such as connect info. The message is logged for the
    /// operator; clients do not see it.
    MissingSetup,
    /// The server cannot identify the client now, for example because its session store is unavailable.
    /// Clients do not see the message.
    IdentityUnavailable,
    /// The text is not a settlement token, or is truncated, changed, sealed with another secret, or of another
    /// store.
    InvalidToken,
    /// The settlement token was not settled in its lifetime, so the estimate stays charged.
    ExpiredToken,
    /// The store did not answer within the deadline.
    StoreTimeout,
    /// The decision could not be sent within the deadline, because too many are waiting for the store.
    StoreBusy,
    /// The store has failed to answer several times, so a circuit breaker is open: decisions do not wait for
    /// the store until it answers again. [`source`](StdError::source) is the failure of the last call.
    StoreSuspended,
    /// No connection to the store could be made.
    StoreUnreachable,
    /// The connection to the store broke before it answered, or some nodes of a Redis Cluster failed after
    /// others had answered.
    StoreDisconnected,
    /// The store answered with an error: out of memory, read only, no permission.
    StoreFailed,
    /// A key holds a value that the limiter did not write, for example because another program uses the same
    /// keys, or another version of this crate with another format. The value is kept. Give the store a
    /// [prefix](crate::store::RedisStoreBuilder::prefix) that no other program uses, or remove the value with
    /// [`Operator::reset`](crate::Operator::reset).
    ForeignValue,
    /// The store answered with something that is not a decision.
    StoreReply,
}

impl ErrorKind {
    /// Whether the client sent a request that cannot be identified.
    pub(crate) const fn is_clients(self) -> bool {
        matches!(self, Self::MissingIdentity | Self::InvalidIdentity | Self::UnknownIdentity)
    }

    /// Whether the charge may have been made although the decision failed, so that another attempt could
    /// charge twice.
    ///
    /// True if the decision was sent and its answer did not arrive or could not be read.
    ///
    /// ```
    /// use tower_ratelimit::ErrorKind;
    ///
    /// assert!(ErrorKind::StoreTimeout.may_have_charged());
    /// assert!(!ErrorKind::StoreUnreachable.may_have_charged());
    /// ```
    #[must_use]
    pub const fn may_have_charged(self) -> bool {
        matches!(self, Self::StoreTimeout | Self::StoreDisconnected | Self::StoreReply)
    }

    /// The name in metrics and spans, of a failure of the store.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::StoreTimeout => "timeout",
            Self::StoreBusy => "busy",
            Self::StoreUnreachable => "unreachable",
            Self::StoreDisconnected => "disconnected",
            Self::StoreFailed | Self::ForeignValue => "failed",
            Self::StoreReply => "reply",
            Self::StoreSuspended => "suspended",
            _ => "other",
        }
    }
}

impl Error {
    /// An error of kind `kind` with `message`.
    ///
    /// For your own extractors and stores. Write the message in lower case, without a full stop, and without
    /// the identity.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self::of(kind, message.into())
    }

    pub(crate) fn invalid(message: &'static str) -> Self {
        Self::of(ErrorKind::InvalidConfig, Cow::Borrowed(message))
    }

    fn of(kind: ErrorKind, message: Cow<'static, str>) -> Self {
        Self(Box::new(Details {
            kind,
            #[cfg(feature = "redis")]
            fault: None,
            pause: Pause(AtomicU8::new(0)),
            rule: None,
            message,
            source: None,
        }))
    }

    /// Sets why the store failed.
    #[cfg(feature = "redis")]
    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.0.fault = Some(fault);
        self
    }

    /// Why the store failed. `None` if it is not known.
    #[cfg(feature = "redis")]
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.0.fault
    }

    /// Whether it is what a server said or what was measured, and not a guess about a server that is silent.
    #[cfg(feature = "redis")]
    pub(crate) fn is_evidence(&self) -> bool {
        self.0.fault.is_some()
    }

    /// Sets the place of the rule that met the error, unless it is known.
    pub(crate) fn of_rule(mut self, at: usize) -> Self {
        self.0.rule = self.0.rule.or_else(|| u16::try_from(at).ok());
        self
    }

    /// The place of the rule that met the error.
    pub(crate) fn rule(&self) -> Option<usize> {
        self.0.rule.map(usize::from)
    }

    /// Sets the cause of the error, which [`source`](StdError::source) returns.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// The seconds after which a client may ask a store again that failed: random, within the time in which a
    /// store that is back is used, so that not all clients return in the same second. Always the same for
    /// this error and its clones.
    pub(crate) fn pause(&self) -> u64 {
        const LONGEST: Duration = Duration::from_secs(5);
        let choose = |chosen| match chosen {
            0 => Some(u8::try_from(seconds_up(random_time(LONGEST)).max(1)).unwrap_or(1)),
            _ => None,
        };
        let _ = self.0.pause.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, choose);
        self.0.pause.0.load(Ordering::Relaxed).into()
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

/// The value of a setting in a program's source, where an invalid one is a mistake of the programmer.
///
/// # Panics
///
/// With the error if it is invalid.
#[track_caller]
pub(crate) fn valid<T>(value: Result<T, Error>) -> T {
    match value {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

impl Error {
    /// The message as it was written, for clients. [`Display`](fmt::Display) writes it on one line.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }
}

/// The message on one line. Characters that do not show as themselves are escaped, because a message may repeat a
/// text from a configuration or from a server.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.message.split_inclusive(is_hidden) {
            let mut rest = part.chars();
            match rest.next_back().filter(|last| is_hidden(*last)) {
                Some(hidden) => write!(f, "{}{}", rest.as_str(), hidden.escape_debug())?,
                None => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { kind, rule, message, source, .. } = &*self.0;
        let mut text = f.debug_struct("Error");
        text.field("kind", kind).field("message", message);
        if let Some(rule) = rule {
            text.field("rule", rule);
        }
        if let Some(source) = source {
            text.field("source", source);
        }
        text.finish_non_exhaustive()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(feature = "redis")]
/// Why a store failed, if the reason is known from the server's answer or from a measurement. Code decides by
/// this value, never by the text, which is in `store::redis::codes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The key's slot is on another node, or migrates to it.
    Moved,
    Ask,
    ClusterDown,
    NoReplicas,
    /// A temporary failure other than those above.
    Temporary,
    NoAuth,
    WrongPass,
    /// The Redis user may not run a command or access a key.
    NoPermission,
    NoScript,
    ReadOnly,
    UnknownCommand,
    /// A key holds a value that the limiter did not write.
    ForeignValue,
    /// An algorithm failed or raised an error, or cannot be compiled.
    Algorithm,
    /// The server's time is in none of the calendar's windows that the call has.
    OtherWindow,
    /// No program listens at the address.
    NotListening,
    /// The credentials provider has none.
    NoCredentials,
    /// A round trip takes longer than the deadline.
    Slow,
    /// A reason that is none of these, or is unknown.
    Other,
}

#[cfg(feature = "redis")]
impl Fault {
    /// Whether the failure ends without a change of the configuration.
    pub(crate) const fn is_temporary(self) -> bool {
        matches!(self, Self::Ask | Self::ClusterDown | Self::NoReplicas | Self::Temporary)
    }

    /// Whether the failure is of a single key or algorithm, while the server decides about others.
    pub(crate) const fn is_of_one_decision(self) -> bool {
        matches!(self, Self::ForeignValue | Self::Algorithm | Self::OtherWindow)
    }
}
