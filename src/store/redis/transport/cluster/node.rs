//! A connection to one node, below redis-rs' cluster client.
//!
//! Whenever a slot has moved, the client looks the nodes up again and makes no other call in that time. It
//! asks one node after the other for the slots, then pings all of them, and waits for each as long as for any
//! reply. So a node that hangs would stall the decisions of all others. Here these two commands wait only a
//! little, and a node that is late with its pong keeps its connection: only a broken one is replaced.
//!
//! If a connection breaks, the client sends its commands again, although they may have been carried out. Here
//! the error of a script call forbids it. A call that was not sent at all has a distinct error.
//!
//! A connection that was silent for long is checked and replaced here ([`check`]), because the client would keep
//! it.
//!
//! The client opens missing connections during that time too. So a host that is lost would stall the
//! decisions of all other nodes again and again. It stalls them once: from then on its address is tried in
//! the background, and attempts of the client fail immediately until it answers.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn, ready},
    io,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use arc_swap::ArcSwap;
use redis::{
    Arg, AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, Pipeline,
    RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::Connect,
};
#[cfg(feature = "tls-rustls-no-provider")]
use tokio::net::TcpStream;
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    base::{sync::lock, time::micros},
    store::redis::{
        connect::{connect, is_tls, or_once_more, set_up},
        credentials::{Session, is_login_error, not_accepted, opening},
        error::is_broken,
        transport::{
            deadline::{CONNECT_TIMEOUT, or_late},
            silence::{LastUse, Silence},
        },
    },
};

/// An unresponsive node delays the search for other nodes by at most this.
pub(super) const CONNECT: Duration = Duration::from_millis(250);
/// [`CONNECT`] with TLS, whose handshake takes long on a busy machine.
pub(super) const CONNECT_TLS: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct NodeConnection(Arc<Node>);

/// The connection to a node. All calls share it.
struct Node {
    current: ArcSwap<Opened>,
    /// When a reply came last.
    used: Mutex<LastUse>,
    /// Held during a check.
    checking: tokio::sync::Mutex<()>,
    info: ConnectionInfo,
    config: AsyncConnectionConfig,
}

struct Opened {
    connection: MultiplexedConnection,
    /// `None` if the URL has the credentials.
    session: Option<Session>,
    /// How long the search for the slots waits for this node.
    patience: Duration,
    /// The task that drives the connection. With TLS, redis-rs owns it, and the set is empty.
    _task: JoinSet<()>,
}

/// How long a node may take to answer the search, in addition to some round trips.
const PATIENCE: Duration = Duration::from_millis(20);
const ROUND_TRIPS: u32 = 4;

/// The marks of the errors of script calls, in their details. redis-rs connects again and sends the call
/// again after an `Io` error, and does nothing after a `Client` error.
const NOT_SENT: &str = "the connection to the node was closed before";
const BROKEN: &str = "the connection to the node broke";
const LATE: &str = "the node did not answer";

impl Connect for NodeConnection {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        Box::pin(async move {
            let info = info.into_connection_info()?;
            let address = info.addr().to_string();
            if is_silent(&address) {
                return or_late(None);
            }
            let opened = or_once_more(|| Opened::open(&info, &config, allowed(&info))).await;
            if opened.as_ref().is_err_and(RedisError::is_timeout) {
                mark(&address, info.clone());
            }
            let (current, used) = (ArcSwap::from_pointee(opened?), Mutex::new(LastUse::now()));
            Ok(Self(Arc::new(Node { current, used, checking: tokio::sync::Mutex::default(), info, config })))
        })
    }
}

/// How long the client waits for a connection.
fn allowed(info: &ConnectionInfo) -> Duration {
    if is_tls(info) { CONNECT_TLS } else { CONNECT }
}

impl Opened {
    /// Connects within the time that is `allowed`.
    async fn open(
        info: &ConnectionInfo,
        config: &AsyncConnectionConfig,
        allowed: Duration,
    ) -> RedisResult<Self> {
        loop {
            let opened = async { or_late(timeout(allowed, Self::connect(info, config)).await.ok()) };
            let (opened, login) = opening(opened).await;
            let error = match opened {
                Ok((mut connection, _task)) => {
                    let session = login.map(|(authenticator, login)| {
                        Session::begin(authenticator, login, connection.clone())
                    });
                    let asked = Instant::now();
                    connection.req_packed_command(&redis::cmd("PING")).await?;
                    let patience = PATIENCE + asked.elapsed() * ROUND_TRIPS;
                    return Ok(Self { connection, session, patience, _task });
                }
                Err(error) => error,
            };
            match login.filter(|_| is_login_error(&error)) {
                // Ends, because the provider is called once a second at most.
                Some((authenticator, login)) => {
                    authenticator.instead_of(&login).await.ok_or_else(not_accepted)?
                }
                None => return Err(error),
            };
        }
    }

    async fn connect(
        info: &ConnectionInfo,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, JoinSet<()>)> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                return set_up(info.redis_settings(), connect(host, *port).await?, config.clone()).await;
            }
            #[cfg(feature = "tls-rustls-no-provider")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                // redis-rs reads the certificates of the system before it connects, which is in vain if no
                // server is there.
                let opened = timeout(CONNECT, TcpStream::connect((&**host, *port))).await.ok();
                or_late(opened.map(|opened| opened.map_err(RedisError::from)))?;
            }
            _ => {}
        }
        let connection = MultiplexedConnection::connect_with_config(info.clone(), config.clone()).await?;
        Ok((connection, JoinSet::new()))
    }
}

/// The name of a command that checks the connection to the node of a key, if it was silent for long: see [`check`].
/// No server is sent it.
const CHECK: &str = "tower-ratelimit:check";

/// The command that checks the connection to the node that has `key`. It fails if nothing can be sent to the node.
/// Without a silence, it sends nothing.
pub(super) fn check(key: &[u8], silence: Silence) -> Cmd {
    let mut check = redis::cmd(CHECK);
    let Silence { longest, patience } = silence;
    check.arg(key).arg(micros(longest)).arg(micros(patience));
    check
}

impl Node {
    /// Carries out a [`check`] with these arguments.
    async fn check(&self, longest: Duration, patience: Duration) -> RedisResult<Value> {
        let silence = Silence { longest, patience };
        let is_long = || silence.is_long(*lock(&self.used), LastUse::now());
        if is_long() {
            let _alone = self.checking.lock().await;
            // Another call may have checked it in the meantime.
            if is_long() {
                let mut connection = self.current.load().connection.clone();
                let open = Opened::open(&self.info, &self.config, allowed(&self.info));
                let checked = silence.check(&mut connection, open).await;
                if let Some(other) = checked.map_err(|_| not_sent())? {
                    self.current.store(Arc::new(other));
                }
                *lock(&self.used) = LastUse::now();
            }
        }
        Ok(Value::Okay)
    }
}

impl ConnectionLike for NodeConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let node = &self.0;
        let current = node.current.load();
        if let Some(Err(closed)) = current.session.as_ref().map(Session::check) {
            return Box::pin(once(ready(Err(closed))));
        }
        let (patience, mut connection) = (current.patience, current.connection.clone());
        let reply = async move {
            let reply = connection.req_packed_command(cmd).await;
            if reply.is_ok() {
                *lock(&node.used) = LastUse::now();
            }
            reply
        };
        let mut words = cmd.args_iter().map(|word| match word {
            Arg::Simple(word) => word,
            _ => &[],
        });
        match (words.next(), words.next()) {
            (Some(name), Some(_)) if name == CHECK.as_bytes() => {
                let mut times = words.map(|word| str::from_utf8(word).ok()?.parse().ok());
                let mut time = || times.next().flatten().map_or(Duration::MAX, Duration::from_micros);
                let (longest, patience) = (time(), time());
                Box::pin(node.check(longest, patience))
            }
            // The client looks up which node has which slots.
            (Some(b"CLUSTER"), Some(b"SLOTS")) => {
                Box::pin(async move { or_late(timeout(patience, reply).await.ok()) })
            }
            // The client finds out whether the connection is broken.
            (Some(b"PING"), None) => Box::pin(async move {
                let pong = Ok(Value::SimpleString("PONG".to_owned()));
                timeout(patience, reply).await.unwrap_or(pong)
            }),
            // A decision.
            (Some(b"EVALSHA" | b"EVAL"), _) => Box::pin(once(reply)),
            _ => Box::pin(reply),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let mut connection = self.0.current.load().connection.clone();
        Box::pin(async move { connection.req_packed_commands(pipeline, offset, count).await })
    }

    fn get_db(&self) -> i64 {
        self.0.current.load().connection.get_db()
    }
}

/// The reply to a script call. If its connection breaks, the error says whether it was sent.
async fn once(reply: impl Future<Output = RedisResult<Value>>) -> RedisResult<Value> {
    // No reply can arrive before the first poll, so an error then means that the connection was closed
    // before.
    let mut reply = pin!(reply);
    let (reply, is_immediate) = match poll_fn(|cx| Poll::Ready(reply.as_mut().poll(cx))).await {
        Poll::Ready(reply) => (reply, true),
        Poll::Pending => (reply.await, false),
    };
    reply.map_err(|error| match error {
        error if !is_broken(&error) || error.code().is_some() => error,
        _ if is_immediate => not_sent(),
        error if error.is_timeout() => (ErrorKind::Client, "not answered", LATE.to_owned()).into(),
        _ => (ErrorKind::Client, "not answered", BROKEN.to_owned()).into(),
    })
}

/// The error of a call that was not sent.
fn not_sent() -> RedisError {
    (ErrorKind::Io, "not sent", NOT_SENT.to_owned()).into()
}

/// Whether a script call was not sent, because its connection had been closed before.
pub(super) fn was_not_sent(error: &RedisError) -> bool {
    mark_of(error) == Some(NOT_SENT)
}

/// The details of an error that [`once`] may have made. An error of a server has a code, and may have any
/// details.
fn mark_of(error: &RedisError) -> Option<&str> {
    error.detail().filter(|_| error.code().is_none())
}

/// The usual form of an error of a script call.
pub(super) fn usual(error: RedisError) -> RedisError {
    match mark_of(&error) {
        Some(NOT_SENT | BROKEN) => io::Error::from(io::ErrorKind::ConnectionReset).into(),
        Some(LATE) => io::Error::from(io::ErrorKind::TimedOut).into(),
        _ => error,
    }
}

/// The addresses of nodes that do not answer when a connection is opened, in each runtime, because another
/// one may not be driven, with the time of the client's latest attempt.
static SILENT: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// The pause between two attempts in the background.
const PAUSE: Duration = Duration::from_millis(250);
/// An address that no client needs for this time is forgotten.
const FORGET: Duration = Duration::from_secs(5);

fn here(address: &str) -> String {
    format!("{} {address}", Handle::current().id())
}

/// Whether attempts to connect to `address` fail. Call it at each attempt.
fn is_silent(address: &str) -> bool {
    let mut silent = lock(&SILENT);
    silent.get_mut(&here(address)).map(|asked| *asked = Instant::now()).is_some()
}

/// Lets attempts to connect to the node at `address` fail until one in the background ends otherwise than in
/// a timeout.
fn mark(address: &str, info: ConnectionInfo) {
    let address = here(address);
    if lock(&SILENT).insert(address.clone(), Instant::now()).is_some() {
        return;
    }
    let mark = Mark(address);
    tokio::spawn(async move {
        while mark.is_needed() {
            sleep(PAUSE).await;
            let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT));
            let opened = Opened::open(&info, &config, CONNECT_TIMEOUT).await;
            if !opened.is_err_and(|error| error.is_timeout()) {
                return;
            }
        }
    });
}

/// Removes the address when it is dropped, also with its runtime.
struct Mark(String);

impl Mark {
    fn is_needed(&self) -> bool {
        let silent = lock(&SILENT);
        silent.get(&self.0).is_some_and(|asked| asked.elapsed() < FORGET)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        lock(&SILENT).remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_server_do_not_mark_a_script_call() {
        for words in [NOT_SENT, BROKEN, LATE] {
            let raised = redis::make_extension_error("RATELIMIT-ALGORITHM".into(), Some(words.into()));
            assert!(!was_not_sent(&raised), "{words}");
            assert_eq!(usual(raised.clone()), raised, "{words}");
        }
    }
}
