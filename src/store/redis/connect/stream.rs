//! Streams to servers, and the setup of the connections over them.
//!
//! Until a connection is set up, the other end may be any program. So what it sends is bounded: redis-rs keeps as much
//! as a reply announces. And a server that closes a connection states the reason first. redis-rs loses it, because the
//! server has closed the connection before all commands of the setup are written or answered.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult,
    aio::MultiplexedConnection,
    io::tcp::socket2::{SockRef, TcpKeepalive},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, lookup_host},
    task::JoinSet,
};

use crate::{
    base::sync::lock,
    store::redis::{codes::is_farewell, safe_text::NO_REDIS},
};

/// How long a socket is silent until the system probes it, and the time between its probes. NAT gateways, firewalls and
/// load balancers forget connections that are silent for longer: most after minutes, few after less than half of one.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The most bytes that a server may send before its connection is set up. The longest reply, to `HELLO`, lists the
/// server's modules.
const MOST: usize = 64 << 10;
/// The longest reason for closing a connection.
const LONGEST_REASON: usize = 4 << 10;

pub(super) const fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE)
}

/// Connects to the first address of `host` that accepts it.
pub(crate) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|ended| Err(io::Error::other(ended))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Sets up a connection over `stream`. Returns it with the task that drives it, which ends when the set is
/// dropped, even if the server hangs.
///
/// # Errors
///
/// The reason that the server has stated if it closes the connection, instead of the error of the closed connection.
pub(crate) async fn set_up(
    settings: &RedisConnectionInfo,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    config: AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, JoinSet<()>)> {
    let setup = Arc::new(Setup::default());
    let watched = Watched { stream, setup: setup.clone() };
    let opened = MultiplexedConnection::new_with_config(settings, watched, config).await;
    let (connection, driver) = opened.map_err(|error| setup.reason().unwrap_or(error))?;
    setup.is_over.store(true, Relaxed);
    let mut task = JoinSet::new();
    task.spawn(driver);
    Ok((connection, task))
}

/// Opens a connection with `open`, and once more if the first one is closed while it is set up. A server that works may
/// have closed it: by `CLIENT KILL`, or because a load balancer replaces a server.
pub(crate) async fn or_once_more<T, F>(open: impl Fn() -> F) -> RedisResult<T>
where
    F: Future<Output = RedisResult<T>>,
{
    match open().await {
        Err(error) if is_closed(&error) => open().await,
        opened => opened,
    }
}

/// Whether the server has accepted a connection and then closed it.
pub(crate) fn is_closed(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal() && error.detail().is_none()
}

/// A stream whose connection is being set up, or was.
struct Watched<S> {
    stream: S,
    setup: Arc<Setup>,
}

#[derive(Default)]
struct Setup {
    is_over: AtomicBool,
    read: Mutex<Received>,
}

/// What a server has sent.
#[derive(Default)]
struct Received {
    bytes: usize,
    /// The beginning.
    first: Vec<u8>,
}

impl Setup {
    #[cold]
    fn received(&self, bytes: &[u8]) -> io::Result<()> {
        let mut read = lock(&self.read);
        read.bytes += bytes.len();
        let room = LONGEST_REASON.saturating_sub(read.first.len()).min(bytes.len());
        read.first.extend_from_slice(&bytes[..room]);
        if read.bytes > MOST { Err(io::Error::other(NO_REDIS)) } else { Ok(()) }
    }

    /// Why the server has closed the connection, if it has stated that.
    fn reason(&self) -> Option<RedisError> {
        let read = lock(&self.read);
        let end = read.first.windows(2).position(|pair| pair == b"\r\n")?;
        let line = read.first.get(..end + 2).filter(|line| is_farewell(line))?;
        redis::parse_redis_value(line).ok()?.extract_error().err()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.setup.is_over.load(Relaxed) {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(()))) {
            return Poll::Ready(self.setup.received(&buffer.filled()[before..]));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> Watched<S> {
    /// During the setup, a stream that takes no more bytes is read to its end, since the server may have sent
    /// the reason.
    fn written<T>(&self, written: Poll<io::Result<T>>, all: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(_)) if !self.setup.is_over.load(Relaxed) => Poll::Ready(Ok(all)),
            written => written,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(written, bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
