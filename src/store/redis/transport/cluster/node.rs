//! A connection to one node, below redis-rs' cluster client.
//!
//! Whenever a slot has moved, the client looks the nodes up again and makes no other call in that time. It asks one node
//! after the other for the slots, then pings all of them, and waits for each as long as for any reply. So a node that
//! hangs would stall the decisions of all others. Here these two commands wait only a little, and a node that is late
//! with its pong keeps its connection: only a broken one is replaced.
//!
//! If a connection breaks, the client sends its commands again, although they may have been carried out. Here the error
//! of a script call forbids it. A call that was not sent at all has a distinct error.

use std::{future::poll_fn, io, pin::pin, task::Poll, time::Duration};

#[cfg(feature = "tls-rustls-no-provider")]
use redis::ConnectionAddr;
use redis::{
    Arg, AsyncConnectionConfig, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, Pipeline, RedisError,
    RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::Connect,
};
#[cfg(feature = "tls-rustls-no-provider")]
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

#[cfg(feature = "tls-rustls-no-provider")]
use super::clients::CONNECT;
use super::silent::{is_silent, mark};
use crate::store::redis::{error::is_broken, transport::deadline::CONNECT_TIMEOUT};

#[derive(Clone)]
pub(crate) struct NodeConnection {
    connection: MultiplexedConnection,
    /// How long the search for the slots waits for this node.
    patience: Duration,
}

/// How long a node may take to answer the search, in addition to some round trips.
const PATIENCE: Duration = Duration::from_millis(20);
const ROUND_TRIPS: u32 = 4;

/// The marks of the errors of script calls, in their details. redis-rs connects again and sends the call again after an `Io` error, and
/// does nothing after a `Client` error.
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
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            let opened = Self::open(info.clone(), config).await;
            if opened.as_ref().is_err_and(RedisError::is_timeout) {
                mark(&address, move || {
                    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT));
                    let opened = Self::open(info.clone(), config);
                    async { opened.await.map(|_| ()) }
                });
            }
            opened
        })
    }
}

impl NodeConnection {
    async fn open(info: ConnectionInfo, config: AsyncConnectionConfig) -> RedisResult<Self> {
        #[cfg(feature = "tls-rustls-no-provider")]
        if let ConnectionAddr::TcpTls { host, port, .. } = info.addr() {
            // redis-rs reads the certificates of the system before it connects, which is in vain if no server is there.
            let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
            timeout(CONNECT, TcpStream::connect((&**host, *port))).await.unwrap_or_else(late)?;
        }
        let mut connection: MultiplexedConnection = Connect::connect_with_config(info, config).await?;
        let asked = Instant::now();
        connection.req_packed_command(&redis::cmd("PING")).await?;
        Ok(Self { connection, patience: PATIENCE + asked.elapsed() * ROUND_TRIPS })
    }
}

impl ConnectionLike for NodeConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let patience = self.patience;
        match Purpose::of(cmd) {
            Purpose::Slots => Box::pin(async move {
                let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
                timeout(patience, self.connection.req_packed_command(cmd)).await.unwrap_or_else(late)
            }),
            Purpose::Check => Box::pin(async move {
                let pong = Ok(Value::SimpleString("PONG".to_owned()));
                timeout(patience, self.connection.req_packed_command(cmd)).await.unwrap_or(pong)
            }),
            Purpose::Script => Box::pin(once(self.connection.req_packed_command(cmd))),
            Purpose::Other => self.connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

/// What a command is for.
enum Purpose {
    /// The client looks up which node has which slots.
    Slots,
    /// The client finds out whether the connection is broken.
    Check,
    /// A decision.
    Script,
    Other,
}

impl Purpose {
    fn of(cmd: &Cmd) -> Self {
        let mut words = cmd.args_iter().map(|word| match word {
            Arg::Simple(word) => word,
            _ => &[],
        });
        match (words.next(), words.next()) {
            (Some(b"CLUSTER"), Some(b"SLOTS")) => Self::Slots,
            (Some(b"PING"), None) => Self::Check,
            (Some(b"EVALSHA" | b"EVAL"), _) => Self::Script,
            _ => Self::Other,
        }
    }
}

/// The reply to a script call. If its connection breaks, the error says whether it was sent.
async fn once(reply: impl Future<Output = RedisResult<Value>>) -> RedisResult<Value> {
    let mut reply = pin!(reply);
    // No reply can arrive before the first poll, so an error then means that the connection was closed before.
    let (reply, is_immediate) = match poll_fn(|cx| Poll::Ready(reply.as_mut().poll(cx))).await {
        Poll::Ready(reply) => (reply, true),
        Poll::Pending => (reply.await, false),
    };
    reply.map_err(|error| match error {
        error if !is_broken(&error) || error.code().is_some() => error,
        _ if is_immediate => (ErrorKind::Io, "not sent", NOT_SENT.to_owned()).into(),
        error if error.is_timeout() => (ErrorKind::Client, "not answered", LATE.to_owned()).into(),
        _ => (ErrorKind::Client, "not answered", BROKEN.to_owned()).into(),
    })
}

/// Whether a script call was not sent, because its connection had been closed before.
pub(super) fn was_not_sent(error: &RedisError) -> bool {
    mark_of(error) == Some(NOT_SENT)
}

/// The details of an error that [`once`] may have made. An error of a server has a code, and may have any details.
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
