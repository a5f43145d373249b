//! Gets credentials from a provider, for all connections of a store.

use std::{
    fmt, io,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use redis::{RedisConnectionInfo, RedisError, RedisResult};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::credentials::{Credentials, CredentialsProvider};
use crate::{
    base::sync::lock,
    store::redis::safe_text::{ENDED, FAILED, SILENT},
};

/// The longest time for one call of the provider.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the opening of a connection waits for a call. This is less than a pool or a Cluster client waits for
/// the connection, so the cause of the failure is known.
const PATIENCE: Duration = Duration::from_millis(200);

/// The shortest time between two calls that succeed.
const SHORTEST_REFRESH: Duration = Duration::from_millis(100);

/// A provider with its latest credentials.
pub(crate) struct Authenticator {
    provider: Box<dyn CredentialsProvider>,
    latest: watch::Sender<Latest>,
    /// When the call that is under way was begun.
    calling: Mutex<Option<Instant>>,
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
}

impl Login {
    fn new(credentials: Credentials) -> Self {
        let now = Instant::now();
        let left = credentials.end.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
        let refresh = credentials.refresh.or_else(|| Some(left? / 4 * 3));
        let refresh = refresh.map(|refresh| refresh.max(SHORTEST_REFRESH));
        // A time beyond what a clock can count is never.
        let after = |time: Option<Duration>| time.and_then(|time| now.checked_add(time));
        Self { end: after(left), refresh: after(refresh), credentials }
    }

    /// `settings` with these credentials.
    pub(crate) fn settings(&self, settings: &RedisConnectionInfo) -> RedisConnectionInfo {
        let Credentials { user, password, .. } = &self.credentials;
        settings.clone().set_username(user).set_password(password)
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
        let (latest, calling) = Default::default();
        Self { provider: Box::new(provider), latest, calling }
    }

    /// The credentials for a new connection: the latest ones until they end, then newer ones.
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
        if let Some(login) = known.filter(|login| login.is_valid(Instant::now())) {
            if login.is_due(Instant::now()) {
                self.call();
            }
            return Ok(login);
        }
        self.call();
        let is_answered = timeout(patience, latest.changed()).await.is_ok();
        let Latest { login, problem } = latest.borrow().clone();
        if let Some(login) = login.filter(|login| login.is_valid(Instant::now())) {
            return Ok(login);
        }
        Err(match problem {
            // A provider that takes longer to fail has failed before.
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
        if shared.is_some() {
            return shared;
        }
        self.call();
        let _ = timeout(CALL_TIMEOUT, latest.changed()).await;
        latest.borrow().login.clone().filter(is_newer)
    }

    /// Calls the provider in a task, unless a call is under way. The call outlives a connection that is given
    /// up, so a slow provider is not called in vain.
    fn call(self: &Arc<Self>) {
        {
            let mut calling = lock(&self.calling);
            // A task may belong to a runtime that is not driven any more.
            if calling.is_some_and(|begun| begun.elapsed() < CALL_TIMEOUT) {
                return;
            }
            *calling = Some(Instant::now());
        }
        let authenticator = self.clone();
        tokio::spawn(async move {
            let answer = timeout(CALL_TIMEOUT, authenticator.provider.credentials()).await;
            let problem = match answer {
                Ok(Ok(credentials)) => {
                    authenticator.report(None);
                    let login = Some(Arc::new(Login::new(credentials)));
                    *lock(&authenticator.calling) = None;
                    authenticator.latest.send_replace(Latest { login, problem: None });
                    return;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {CALL_TIMEOUT:?}"),
            };
            authenticator.report(Some(&problem));
            *lock(&authenticator.calling) = None;
            authenticator.latest.send_modify(|latest| latest.problem = Some(problem.into()));
        });
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

fn failure(text: String) -> RedisError {
    io::Error::other(text).into()
}
