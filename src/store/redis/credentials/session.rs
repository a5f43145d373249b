//! A connection whose credentials end.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{RedisError, aio::MultiplexedConnection};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::authenticator::{Authenticator, Login, is_login_error};
use crate::{
    base::{random::random_time, time::micros},
    store::redis::error::from_redis,
};

/// How long a connection may be used.
#[derive(Clone)]
pub(crate) struct Session {
    times: Arc<Times>,
    /// Authenticates the connection again, until the last clone is dropped.
    _task: Arc<JoinSet<()>>,
}

struct Times {
    opened: Instant,
    /// The end of the credentials, in microseconds since `opened`.
    end: AtomicU64,
}

/// The pauses between attempts to get or to use newer credentials.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A server that takes longer hangs, and its connections are replaced.
const AUTH_TIMEOUT: Duration = Duration::from_secs(2);

impl Session {
    /// The session of a connection that was opened with the credentials of `login`. A task authenticates the
    /// connection again before they end.
    pub(crate) fn begin(
        authenticator: Arc<Authenticator>,
        login: Arc<Login>,
        connection: MultiplexedConnection,
    ) -> Self {
        let times = Arc::new(Times { opened: Instant::now(), end: AtomicU64::new(u64::MAX) });
        times.set_end(&login);
        let mut task = JoinSet::new();
        if login.refresh.is_some() {
            task.spawn(refresh(authenticator, login, connection, times.clone()));
        }
        Self { times, _task: Arc::new(task) }
    }

    /// The error of a closed connection, once the credentials have ended. Nothing was sent then, so the store
    /// sends the command on another connection.
    pub(crate) fn check(&self) -> Result<(), RedisError> {
        if self.is_over() { Err(io::Error::from(io::ErrorKind::BrokenPipe).into()) } else { Ok(()) }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.times.is_over()
    }
}

impl Times {
    fn set_end(&self, login: &Login) {
        let end = login.end.map_or(u64::MAX, |end| micros(end.saturating_duration_since(self.opened)));
        self.end.store(end, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        let end = self.end.load(Ordering::Relaxed);
        end != u64::MAX && micros(self.opened.elapsed()) >= end
    }
}

/// Authenticates `connection` with newer credentials whenever `login` is due, until they end.
async fn refresh(
    authenticator: Arc<Authenticator>,
    mut login: Arc<Login>,
    mut connection: MultiplexedConnection,
    times: Arc<Times>,
) {
    while let Some(due) = login.refresh {
        sleep_until(due + jitter(&login, due)).await;
        let mut pause = PAUSE;
        login = loop {
            if let Some(newer) = authenticator.newer(&login).await {
                let authenticated = authenticate(&mut connection, &login, &newer).await;
                if authenticated.as_ref().is_err_and(is_login_error) {
                    newer.not_accepted();
                }
                match authenticated {
                    Ok(()) => break newer,
                    Err(error) if error.is_io_error() => return,
                    // Logged at the first attempt only: every connection tries again.
                    Err(error) if pause == PAUSE => {
                        let _error = from_redis(&error);
                        log!(warn, error = %_error, "Redis does not accept newer credentials; they are sent again");
                    }
                    Err(_) => {}
                }
            }
            if times.is_over() {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        times.set_end(&login);
    }
}

async fn authenticate(
    connection: &mut MultiplexedConnection,
    known: &Login,
    newer: &Login,
) -> Result<(), RedisError> {
    let (known, newer) = (&known.credentials, &newer.credentials);
    if newer.are_same(known) {
        return Ok(());
    }
    let mut auth = redis::cmd("AUTH");
    let reply = auth.arg(&newer.user).arg(&newer.password).query_async(connection);
    timeout(AUTH_TIMEOUT, reply)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

/// Delays a refresh by up to a tenth of the time that is left. The first connection of a store whose
/// credentials are due calls the provider, and the others find its answer.
fn jitter(login: &Login, due: Instant) -> Duration {
    let left = login.end.map_or(LONGEST_PAUSE, |end| end.saturating_duration_since(due));
    random_time(left / 10)
}
