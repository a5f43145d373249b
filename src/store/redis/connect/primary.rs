//! Follows the primary that the sentinels name.
//!
//! A planned failover closes no connection: for seconds, the old primary goes on to accept writes, which are
//! lost. So while there is traffic, all sentinels are queried once a second, and connections to another
//! server than the one that most of them name fail as if they had been closed, before anything is sent.

use std::{
    collections::HashMap,
    io, mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind as RedisErrorKind, RedisConnectionInfo, RedisError,
    RedisResult, Role, Value, aio::MultiplexedConnection,
};
use tokio::{
    runtime::{self, Handle},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    address::{connection_infos, is_tls},
    opener::{Opened, Opener},
    stream::or_once_more,
    tls::TlsSettings,
};
use crate::{
    base::{Error, Fault, sync::lock, time::micros},
    store::redis::{
        credentials::Authenticator,
        error::from_redis,
        transport::{CONNECT_TIMEOUT, LastUse, Silence, answered},
        wire,
    },
};

/// The time between two rounds of questions to the sentinels.
const INTERVAL: Duration = Duration::from_secs(1);
/// The shorter time after a reply that shows that the server may no longer be the primary.
const SOON: Duration = Duration::from_millis(50);
/// How long the other sentinels are awaited once one has answered.
const PATIENCE: Duration = Duration::from_millis(300);

/// The host and the port of a server.
type Address = (String, u16);

/// A primary and the sentinels that know it.
pub(super) struct Primary {
    name: String,
    /// The settings of connections to the primary, whose address is replaced.
    template: ConnectionInfo,
    sentinels: Vec<Sentinel>,
    opener: Opener,
    /// Opens connections to the sentinels.
    sentinel_opener: Opener,
    /// The address that most sentinels named last.
    named: ArcSwapOption<Address>,
    created: Instant,
    /// When to ask again, in microseconds since `created`.
    due: AtomicU64,
    silence: Silence,
}

struct Sentinel {
    info: ConnectionInfo,
    /// The connection of the last question, which only its runtime can use.
    connection: Mutex<Option<Kept>>,
}

/// A connection to a sentinel.
struct Kept {
    runtime: runtime::Id,
    opened: Opened,
    used: LastUse,
}

/// The primary that a connection leads to.
pub(super) struct Followed {
    primary: Arc<Primary>,
    address: Address,
}

/// The answers of the sentinels.
#[derive(Default)]
struct Votes {
    /// The addresses. `None` is the answer of a sentinel that knows no such primary that is up.
    answers: Vec<Option<Address>>,
    error: Option<RedisError>,
}

impl Primary {
    /// The primary that the sentinels at `urls` call `name`, and a description without passwords. The URLs
    /// have the addresses of the sentinels, and the user, the password and the database of the primary.
    pub(super) fn new(
        urls: &[String],
        name: String,
        credentials: &RedisConnectionInfo,
        tls: &TlsSettings,
        authenticator: Option<Arc<Authenticator>>,
        silence: Silence,
    ) -> Result<(Self, String), Error> {
        let differ = "the URLs of the sentinels must have the same scheme, user, password and database, which also apply \
                      to the primary";
        let (infos, addresses) = connection_infos(urls, tls, differ)?;
        let Some(first) = infos.first() else {
            return Err(Error::invalid("there must be the URL of at least one sentinel"));
        };
        ensure!(
            !name.is_empty(),
            "the name of the primary is empty: it is the first argument of `sentinel monitor` in sentinel.conf"
        );
        // The name is logged, and a URL may have a password.
        ensure!(
            !name.contains("://"),
            "the name of the primary is a URL: it must be the first argument of `sentinel monitor` in sentinel.conf, and \
                 the URLs belong to the sentinels"
        );
        ensure!(infos.iter().all(|info| is_tls(info) == is_tls(first)), differ);
        let description = format!("{name} of the sentinels at {addresses}");
        let sentinel = |info: &ConnectionInfo| {
            let info = info.clone().set_redis_settings(credentials.clone());
            Sentinel { info, connection: Mutex::default() }
        };
        let opener = Opener::new(tls, first, authenticator)?;
        let primary = Self {
            name,
            template: first.clone(),
            sentinels: infos.iter().map(sentinel).collect(),
            sentinel_opener: opener.without_authenticator(),
            opener,
            named: ArcSwapOption::default(),
            created: Instant::now(),
            due: AtomicU64::new(micros(INTERVAL)),
            silence,
        };
        Ok((primary, description))
    }

    pub(super) fn database(&self) -> i64 {
        self.template.redis_settings().db()
    }

    /// A connection to the server that most sentinels name, or else to the one that any of them names.
    pub(super) async fn connect(self: &Arc<Self>) -> RedisResult<(Opened, Followed)> {
        // If no sentinel answers soon, the server that they named last may still be the primary.
        let patience = if self.named.load().is_some() { PATIENCE } else { 2 * CONNECT_TIMEOUT };
        let mut votes = self.ask(patience).await;
        if 2 * votes.count(None) > votes.answers.len() {
            return Err(no_primary());
        }
        if let Some(address) = votes.majority(self.sentinels.len()) {
            self.follow(&address);
        }
        let named = self.named.load_full();
        let mut failed = votes.error.take().map_or_else(no_primary, of_sentinel);
        let other = votes.most().filter(|most| named.as_deref() != Some(most));
        for address in named.as_deref().into_iter().chain(other) {
            match self.connect_to(address).await {
                Ok(connection) => {
                    // The sentinels may have named another one since `named` was read.
                    if named.as_deref() != Some(address) {
                        self.follow(address);
                    }
                    return Ok(connection);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// A connection to the server at `address`, if it is a primary.
    async fn connect_to(self: &Arc<Self>, address: &Address) -> RedisResult<(Opened, Followed)> {
        let mut opened = self.opener.open(&self.info(address.clone())).await?;
        let role: Role = answered(redis::cmd("ROLE").query_async(&mut opened.connection)).await?;
        if !matches!(role, Role::Primary { .. }) {
            return Err(no_primary());
        }
        Ok((opened, Followed { primary: self.clone(), address: address.clone() }))
    }

    fn info(&self, (host, port): Address) -> ConnectionInfo {
        let address = if is_tls(&self.template) {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        self.template.clone().set_addr(address)
    }

    /// Replaces the connections to servers other than `address` from now on.
    fn follow(&self, address: &Address) {
        let old = self.named.swap(Some(Arc::new(address.clone())));
        if let Some(old) = old.filter(|old| **old != *address) {
            log!(
                warn,
                primary = %self.name,
                old = %format_args!("{}:{}", old.0, old.1),
                new = %format_args!("{}:{}", address.0, address.1),
                "the sentinels name another primary; connections to the old one are replaced"
            );
        }
    }

    /// Asks the sentinels in the background, if that is due. Call it with each command.
    fn ask_if_due(self: &Arc<Self>) {
        let now = micros(self.created.elapsed());
        let next = |due| (now >= due).then_some(now + micros(INTERVAL));
        if self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
            && let Ok(runtime) = Handle::try_current()
        {
            let primary = self.clone();
            runtime.spawn(async move {
                if let Some(address) =
                    primary.ask(2 * CONNECT_TIMEOUT).await.majority(primary.sentinels.len())
                {
                    primary.follow(&address);
                }
            });
        }
    }

    /// Lets the next command ask again, because the primary may have been replaced.
    fn is_doubtful(&self) {
        self.due.fetch_min(micros(self.created.elapsed() + SOON), Ordering::Relaxed);
    }

    /// Asks all sentinels, until most of them agree. Waits for `patience` if none answers.
    async fn ask(self: &Arc<Self>, patience: Duration) -> Votes {
        let mut questions = JoinSet::new();
        for place in 0..self.sentinels.len() {
            let primary = self.clone();
            questions.spawn(async move { primary.ask_one(place).await });
        }
        let (mut votes, mut until) = (Votes::default(), Instant::now() + patience);
        while let Ok(Some(answer)) = timeout_at(until, questions.join_next()).await {
            match answer {
                Ok(Ok(address)) => {
                    votes.answers.push(address);
                    until = until.min(Instant::now() + PATIENCE);
                }
                Ok(Err(error)) if votes.error.as_ref().is_none_or(|other| says_more(&error, other)) => {
                    votes.error = Some(error);
                }
                // The cause is not closer, or the runtime was shut down.
                _ => {}
            }
            if votes.is_decided(self.sentinels.len()) {
                break;
            }
        }
        votes
    }

    /// The address that the sentinel at `place` names, if the sentinel knows this primary and describes it as
    /// up.
    async fn ask_one(&self, place: usize) -> RedisResult<Option<Address>> {
        let Some(sentinel) = self.sentinels.get(place) else { return Ok(None) };
        let runtime = Handle::current().id();
        let kept = mem::take(&mut *lock(&sentinel.connection));
        let keep = |opened| {
            *lock(&sentinel.connection) = Some(Kept { runtime, opened, used: LastUse::now() });
        };
        // One that was silent for long may have been forgotten, and another one is opened soon.
        if let Some(mut kept) = kept.filter(|kept| !self.silence.is_long(kept.used, LastUse::now()))
            && kept.runtime == runtime
            && let Ok(address) = self.question(&mut kept.opened.connection).await
        {
            keep(kept.opened);
            return Ok(address);
        }
        let mut opened = or_once_more(|| self.sentinel_opener.open(&sentinel.info)).await?;
        let address = self.question(&mut opened.connection).await?;
        keep(opened);
        Ok(address)
    }

    async fn question(&self, sentinel: &mut MultiplexedConnection) -> RedisResult<Option<Address>> {
        // While it leads a failover, a sentinel describes the old primary, but names the new one.
        let mut name = redis::cmd("SENTINEL");
        let named = name.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).query_async(sentinel);
        let named: Option<Address> = answered(named).await?;
        let described: Vec<HashMap<String, String>> =
            answered(redis::cmd("SENTINEL").arg("MASTERS").query_async(sentinel)).await?;
        Ok(named.filter(|address| !described.iter().any(|primary| self.is_down(primary, address))))
    }

    /// Whether a sentinel describes this primary, at `address`, as down.
    fn is_down(&self, described: &HashMap<String, String>, (host, port): &Address) -> bool {
        let is = |field: &str, value: &str| described.get(field).is_some_and(|text| text == value);
        let flags = described.get("flags").map_or("", String::as_str);
        is("name", &self.name)
            && is("ip", host)
            && is("port", &port.to_string())
            && flags.split(',').any(|flag| flag == "s_down" || flag == "o_down")
    }
}

impl Votes {
    /// How many sentinels gave this answer.
    fn count(&self, answer: Option<&Address>) -> usize {
        self.answers.iter().filter(|other| other.as_ref() == answer).count()
    }

    /// The address that most sentinels name.
    fn most(&self) -> Option<&Address> {
        self.answers.iter().flatten().max_by_key(|address| self.count(Some(address)))
    }

    /// The address named by a majority of the sentinels that answered: by two or more, unless there is only
    /// one.
    fn majority(&self, sentinels: usize) -> Option<Address> {
        let most = self.most()?;
        let votes = self.count(Some(most));
        (2 * votes > self.answers.len() && votes >= sentinels.min(2)).then(|| most.clone())
    }

    /// Whether no further answer can change the majority.
    fn is_decided(&self, sentinels: usize) -> bool {
        self.answers.iter().any(|answer| 2 * self.count(answer.as_ref()) > sentinels)
    }
}

impl Followed {
    /// Whether the sentinels name another server now.
    pub(super) fn is_outdated(&self) -> bool {
        self.primary.named.load().as_ref().is_some_and(|named| **named != self.address)
    }

    /// Call it before a command.
    ///
    /// # Errors
    ///
    /// The error of a closed connection, if the sentinels name another server.
    pub(super) fn before_command(&self) -> RedisResult<()> {
        self.primary.ask_if_due();
        if self.is_outdated() { Err(io::Error::from(io::ErrorKind::BrokenPipe).into()) } else { Ok(()) }
    }

    /// Call it with each reply. A primary that lost its replicas may have been replaced.
    pub(super) fn observe(&self, reply: &RedisResult<Value>) {
        if wire::has_fault(reply, Fault::NoReplicas) {
            self.primary.is_doubtful();
        }
    }
}

fn no_primary() -> RedisError {
    (RedisErrorKind::MasterNameNotFoundBySentinel, "the sentinels name no primary that is up").into()
}

/// An error of a sentinel, whose remedy differs from a server's.
fn of_sentinel(error: RedisError) -> RedisError {
    let problem = match from_redis(&error).fault() {
        Some(Fault::UnknownCommand) => "the server is not a sentinel: use RedisStore::connect",
        Some(Fault::NoAuth) => "the sentinel requires a password: set Servers::sentinel_credentials",
        Some(Fault::WrongPass) => {
            "the sentinel does not accept this user and password: correct Servers::sentinel_credentials"
        }
        _ => return error,
    };
    io::Error::other(problem).into()
}

/// Whether `error` is nearer to the cause than `other`: a sentinel that does not answer is expected in an
/// outage.
fn says_more(error: &RedisError, other: &RedisError) -> bool {
    other.is_io_error() && !error.is_io_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_of_the_sentinels_that_answer_is_followed() {
        // The sentinels, their answers, the address that most name, and whether no other answer can change
        // it. 0 is an answer without an address.
        let rows = [
            (3, vec![1, 1], Some(1), true),
            (3, vec![1, 2], None, false),
            (3, vec![1, 2, 2], Some(2), true),
            (3, vec![1], None, false),
            (3, vec![0, 0], None, true),
            (3, vec![0, 1, 1], Some(1), true),
            (3, vec![0, 1], None, false),
            (5, vec![1, 1], Some(1), false),
            (5, vec![1, 2, 1], Some(1), false),
            (5, vec![1, 1, 2, 2], None, false),
            (2, vec![1], None, false),
            (2, vec![1, 1], Some(1), true),
            (1, vec![1], Some(1), true),
            (3, vec![], None, false),
        ];
        for (sentinels, answers, expected, decided) in rows {
            let address = |port| ("10.0.0.1".to_owned(), port);
            let addresses = answers.iter().map(|&port| (port > 0).then(|| address(port)));
            let votes = Votes { answers: addresses.collect(), error: None };
            assert_eq!(votes.majority(sentinels), expected.map(address), "{sentinels}: {answers:?}");
            assert_eq!(votes.is_decided(sentinels), decided, "{sentinels}: {answers:?}");
        }
    }
}
