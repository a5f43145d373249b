//! [`Credentials`] and where they come from.

use std::{
    fmt,
    future::Future,
    time::{Duration, SystemTime},
};

use crate::base::{Answer, Error};

/// A user and a password of Redis, and how long they can be used.
///
/// See [`RedisStoreBuilder::credentials`](crate::store::RedisStoreBuilder::credentials).
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
    pub(super) end: Option<SystemTime>,
    pub(super) refresh: Option<Duration>,
}

impl Credentials {
    /// Credentials without an end. An empty `user` means the user `default`.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        let user = Some(user.into()).filter(|user| !user.is_empty());
        let user = user.unwrap_or_else(|| "default".to_owned());
        Self { user, password: password.into(), end: None, refresh: None }
    }

    /// Sets when the server stops accepting them or closes their connections. Defaults to never.
    ///
    /// The store compares it with the wall clock of this machine, once, when it gets the credentials.
    #[must_use]
    pub const fn valid_until(mut self, end: SystemTime) -> Self {
        self.end = Some(end);
        self
    }

    /// Sets after which time the provider is called again. Defaults to three quarters of the time until
    /// [the end](Self::valid_until), and to never for credentials without an end.
    ///
    /// Set it for a password that changes at no announced time, such as one in a file or a secret store: open
    /// connections are then authenticated again. Without it, the provider is called again when a server does not
    /// accept the credentials of a new connection. If the provider returns the same credentials, nothing is sent.
    #[must_use]
    pub const fn refresh_after(mut self, time: Duration) -> Self {
        self.refresh = Some(time);
        self
    }

    /// Whether both log in with the same words.
    pub(super) fn are_same(&self, other: &Self) -> bool {
        (&self.user, &self.password) == (&other.user, &other.password)
    }
}

/// Shows no password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("end", &self.end)
            .field("refresh", &self.refresh)
            .finish_non_exhaustive()
    }
}

/// Provides the [`Credentials`] of new connections, and newer ones before they end: a token of ElastiCache IAM
/// or Microsoft Entra ID, a secret of Vault.
///
/// A closure that returns a future is a provider.
pub trait CredentialsProvider: Send + Sync + 'static {
    /// The current credentials.
    ///
    /// The store calls it for the first connection, again when the credentials are due to be
    /// [refreshed](Credentials::refresh_after), and when a server does not accept them (`WRONGPASS` or `NOAUTH`), at
    /// most once a second. All connections share the result. One call is made at a time, in a task of the runtime
    /// that needs them first. A call that takes ten seconds is given up.
    ///
    /// # Errors
    ///
    /// Any. Its text is logged and part of the failure of decisions, so it must not contain a secret.
    ///
    /// # Panics
    ///
    /// It should not. A panic is treated as an error.
    fn credentials(&self) -> Answer<Credentials>;
}

impl<F, A> CredentialsProvider for F
where
    F: Fn() -> A + Send + Sync + 'static,
    A: Future<Output = Result<Credentials, Error>> + Send + 'static,
{
    fn credentials(&self) -> Answer<Credentials> {
        Answer::pending(self())
    }
}
