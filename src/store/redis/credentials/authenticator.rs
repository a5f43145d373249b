//! Gets credentials from a provider, for all connections of a store.

use std::{
    fmt, io,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use futures_util::FutureExt as _;
use redis::{RedisConnectionInfo, RedisError, RedisResult};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::credentials::{Credentials, CredentialsProvider};
use crate::{
    base::{Fault, sync::lock},
    store::redis::safe_text::{ENDED, FAILED, NOT_ACCEPTED, SILENT, explain},
};

/// The longest time for one call of the provider.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the opening of a connection waits for a call. This is less than a pool or a Cluster client waits for
/// the connection, so the cause of the failure is known.
const PATIENCE: Duration = Duration::from_millis(200);

/// The shortest time between two calls that succeed.
const SHORTEST_REFRESH: Duration = Duration::from_millis(100);

/// The shortest time between two calls after a server has not accepted the credentials.
const CALL_AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// A provider with its latest credentials.
pub(crate) struct Authenticator {
    provider: Box<dyn CredentialsProvider>,
    latest: watch::Sender<Latest>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    is_under_way: bool,
    /// When the last one was begun.
    last: Option<Instant>,
}

/// What the provider returned last.
#[derive(Clone, Default)]
struct Latest {
    login: Option<Arc<Login>>,
    /// Why the last call failed.
    problem: Option<Arc<str>>,
}

/// Credentials, and when they are due by the monotonic clock.
pub(crate) struct Login {
    pub(super) credentials: Credentials,
    pub(super) end: Option<Instant>,
    pub(super) refresh: Option<Instant>,
    /// Whether a server did not accept them.
    is_unaccepted: AtomicBool,
}

impl Login {
    fn new(credentials: Credentials) -> Self {
        let now = Instant::now();
        let left = credentials.end.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
        let refresh = credentials.refresh.or_else(|| Some(left? / 4 * 3));
        let refresh = refresh.map(|refresh| refresh.max(SHORTEST_REFRESH));
        // A time beyond what a clock can count is never.
        let after = |time: Option<Duration>| time.and_then(|time| now.checked_add(time));
        Self { end: after(left), refresh: after(refresh), credentials, is_unaccepted: AtomicBool::new(false) }
    }

    /// `settings` with these credentials.
    pub(crate) fn settings(&self, settings: &RedisConnectionInfo) -> RedisConnectionInfo {
        let Credentials { user, password, .. } = &self.credentials;
        settings.clone().set_username(user).set_password(password)
    }

    /// Call it if a server does not accept them.
    pub(super) fn not_accepted(&self) {
        self.is_unaccepted.store(true, Relaxed);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.refresh.is_some_and(|refresh| refresh <= now)
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.end.is_none_or(|end| now < end)
    }
}

impl Authenticator {
    pub(crate) fn new(provider: impl CredentialsProvider) -> Self {
        let (latest, calls) = Default::default();
        Self { provider: Box::new(provider), latest, calls }
    }

    /// The credentials for a new connection: the latest ones until they end or a server does not accept them, then
    /// newer ones, if there are any.
    ///
    /// # Errors
    ///
    /// There are no valid credentials, and the provider fails or does not answer.
    pub(crate) async fn login(self: &Arc<Self>) -> RedisResult<Arc<Login>> {
        self.login_within(PATIENCE).await
    }

    /// Waits for the first credentials, for as long as a provider may take.
    pub(crate) async fn prepare(self: &Arc<Self>) -> RedisResult<()> {
        self.login_within(CALL_TIMEOUT + PATIENCE).await.map(drop)
    }

    async fn login_within(self: &Arc<Self>, patience: Duration) -> RedisResult<Arc<Login>> {
        let mut latest = self.latest.subscribe();
        let known = latest.borrow_and_update().login.clone();
        let known = known.filter(|login| login.is_valid(Instant::now()));
        let is_called = match known {
            Some(login) if !login.is_unaccepted.load(Relaxed) => {
                if login.is_due(Instant::now()) {
                    self.call();
                }
                return Ok(login);
            }
            Some(_) => self.call_again(),
            None => self.call(),
        };
        let is_answered = is_called && timeout(patience, latest.changed()).await.is_ok();
        let Latest { login, problem } = latest.borrow().clone();
        if let Some(login) = login.filter(|login| login.is_valid(Instant::now())) {
            return Ok(login);
        }
        Err(match problem {
            // The problem is of an earlier call if this one has not returned yet.
            Some(problem) => failure(format!("{FAILED}: {problem}")),
            None if is_answered => failure(ENDED.to_owned()),
            None => failure(SILENT.to_owned()),
        })
    }

    /// Credentials that are newer than `known`, if there are any or the provider returns some.
    pub(super) async fn newer(self: &Arc<Self>, known: &Arc<Login>) -> Option<Arc<Login>> {
        let mut latest = self.latest.subscribe();
        let is_newer = |login: &Arc<Login>| !Arc::ptr_eq(login, known) && login.is_valid(Instant::now());
        let shared = latest.borrow_and_update().login.clone().filter(is_newer);
        let is_called = match &shared {
            Some(login) if !login.is_unaccepted.load(Relaxed) => return shared,
            Some(_) => self.call_again(),
            None => self.call(),
        };
        if is_called {
            let _ = timeout(CALL_TIMEOUT, latest.changed()).await;
        }
        latest.borrow().login.clone().filter(is_newer)
    }

    /// Call it if a server does not accept `login`: its password has probably changed. Returns others, if there are
    /// any or the provider returns some soon.
    pub(crate) async fn instead_of(self: &Arc<Self>, login: &Arc<Login>) -> Option<Arc<Login>> {
        login.not_accepted();
        let others = self.login().await.ok();
        others.filter(|others| !others.credentials.are_same(&login.credentials))
    }

    /// Calls the provider because a server does not accept its credentials, once a second at most. Returns whether a
    /// call is under way.
    fn call_again(self: &Arc<Self>) -> bool {
        let is_too_soon = {
            let calls = lock(&self.calls);
            !calls.is_under_way && calls.last.is_some_and(|last| last.elapsed() < CALL_AGAIN_PAUSE)
        };
        !is_too_soon && self.call()
    }

    /// Calls the provider in a task, unless a call is under way. The call outlives a connection that is given
    /// up, so a slow provider is not called in vain. Returns true: a call is under way.
    fn call(self: &Arc<Self>) -> bool {
        {
            let mut calls = lock(&self.calls);
            // A task may belong to a runtime that is not driven any more.
            if calls.is_under_way && calls.last.is_some_and(|begun| begun.elapsed() < CALL_TIMEOUT) {
                return true;
            }
            *calls = Calls { is_under_way: true, last: Some(Instant::now()) };
        }
        let authenticator = self.clone();
        tokio::spawn(async move {
            // The code of the program, which may panic before it returns a future, and when that is polled.
            let call = AssertUnwindSafe(async { authenticator.provider.credentials().await }).catch_unwind();
            let problem = match timeout(CALL_TIMEOUT, call).await {
                Ok(Ok(Ok(credentials))) => {
                    authenticator.report(None);
                    let login = Some(Arc::new(Login::new(credentials)));
                    lock(&authenticator.calls).is_under_way = false;
                    authenticator.latest.send_replace(Latest { login, problem: None });
                    return;
                }
                Ok(Ok(Err(error))) => error.to_string(),
                Ok(Err(_)) => "it panicked".to_owned(),
                Err(_) => format!("no answer within {CALL_TIMEOUT:?}"),
            };
            authenticator.report(Some(&problem));
            lock(&authenticator.calls).is_under_way = false;
            authenticator.latest.send_modify(|latest| latest.problem = Some(problem.into()));
        });
        true
    }

    /// Logs a problem that is new, and its end.
    fn report(&self, problem: Option<&str>) {
        let before = self.latest.borrow().problem.clone();
        match (before.as_deref(), problem) {
            (before, Some(problem)) if before != Some(problem) => {
                log!(warn, problem = %problem, "the credentials provider failed; it is called again");
            }
            (Some(_), None) => log!(info, "the credentials provider answers again"),
            _ => {}
        }
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

/// The error if a server does not accept the credentials of a provider.
pub(crate) fn not_accepted() -> RedisError {
    failure(NOT_ACCEPTED.to_owned())
}

/// Whether `error` is the reply of a server that does not accept the credentials of a login.
pub(crate) fn is_login_error(error: &RedisError) -> bool {
    matches!(explain(error).0, Some(Fault::WrongPass | Fault::NoAuth))
}

fn failure(text: String) -> RedisError {
    io::Error::other(text).into()
}
