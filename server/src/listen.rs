//! The connections of callers and operators.

use std::{
    io::{self, Error, ErrorKind},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, stream};
use metrics::{counter, gauge};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::warn;

/// A caller that has not sent this many bytes in this time is cut off: the preface of HTTP/2, and a frame.
const FIRST_BYTES: usize = 33;
const FIRST_TIME: Duration = Duration::from_secs(10);
/// After that, a caller answers a ping at least this often.
const IDLE_TIME: Duration = Duration::from_secs(40);
/// The pause after an accept that failed, such as for want of a file descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts a number of connections at a time. Others are closed.
pub(crate) struct Listener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    /// In the metrics.
    name: &'static str,
}

impl Listener {
    pub(crate) async fn bind(address: SocketAddr, most: usize, name: &'static str) -> io::Result<Self> {
        let bound = TcpListener::bind(address).await;
        let listener = bound
            .map_err(|error| Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
        Ok(Self { listener, places: Arc::new(Semaphore::new(most)), name })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(crate) fn incoming(self) -> impl Stream<Item = io::Result<Connection>> {
        stream::unfold(self, async |listener| Some((Ok(listener.next().await.0), listener)))
    }

    async fn next(&self) -> (Connection, SocketAddr) {
        let name = self.name;
        loop {
            let (stream, address) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!("a connection was not accepted: {error}");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                counter!("ratelimit_server_rejected_connections_total", "listener" => name).increment(1);
                continue;
            };
            // It only delays small answers.
            let _ = stream.set_nodelay(true);
            gauge!("ratelimit_server_connections", "listener" => name).increment(1.0);
            let alarm = Box::pin(sleep(FIRST_TIME));
            return (
                Connection { stream, alarm, missing: FIRST_BYTES, was_heard: false, name, _place: place },
                address,
            );
        }
    }
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        self.next().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.address()
    }
}

/// A connection, which has a place among those that may be open. A silent one fails.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    alarm: Pin<Box<Sleep>>,
    /// How many of the first bytes must still arrive.
    missing: usize,
    /// Whether bytes have arrived since the alarm was set.
    was_heard: bool,
    name: &'static str,
    _place: OwnedSemaphorePermit,
}

impl Drop for Connection {
    fn drop(&mut self) {
        gauge!("ratelimit_server_connections", "listener" => self.name).decrement(1.0);
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = pin!(&mut this.stream).poll_read(cx, buf);
        let arrived = buf.filled().len() - before;
        this.missing = this.missing.saturating_sub(arrived);
        this.was_heard |= arrived > 0;
        while read.is_pending() && this.alarm.as_mut().poll(cx).is_ready() {
            if this.missing > 0 || !this.was_heard {
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
            this.was_heard = false;
            this.alarm.as_mut().reset(Instant::now() + IDLE_TIME);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        pin!(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
