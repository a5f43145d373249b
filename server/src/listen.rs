//! The connections of callers.

use std::{
    io::{self, Error, ErrorKind},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, stream};
use metrics::{Counter, Gauge, counter, gauge};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// A caller that has not sent this many bytes in this time is gone: the preface of HTTP/2, and a frame.
const FIRST_BYTES: usize = 33;
const FIRST_TIME: Duration = Duration::from_secs(10);
/// The pause after an accept that failed, such as for want of a file descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// Binds `address`.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

/// The connections of `listener`, at most `most` at a time. Others are closed.
pub(crate) fn incoming(listener: TcpListener, most: usize) -> impl Stream<Item = io::Result<Connection>> {
    let (places, open) = (Arc::new(Semaphore::new(most)), gauge!("ratelimit_server_connections"));
    let refused = counter!("ratelimit_server_refused_connections_total");
    stream::unfold((listener, places, open, refused), async |(listener, places, open, refused)| {
        let connection = accept(&listener, &places, &open, &refused).await;
        Some((Ok(connection), (listener, places, open, refused)))
    })
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    open: &Gauge,
    refused: &Counter,
) -> Connection {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("a connection was not accepted: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            refused.increment(1);
            continue;
        };
        // It only delays small answers.
        let _ = stream.set_nodelay(true);
        open.increment(1.0);
        let deadline = Some((FIRST_BYTES, Box::pin(sleep(FIRST_TIME))));
        return Connection { stream, deadline, open: open.clone(), _place: place };
    }
}

/// A connection, which has a place among those that may be open.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// How many bytes must still arrive, and until when.
    deadline: Option<(usize, Pin<Box<Sleep>>)>,
    open: Gauge,
    _place: OwnedSemaphorePermit,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.decrement(1.0);
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
        if let Some((missing, end)) = &mut this.deadline {
            *missing = missing.saturating_sub(buf.filled().len() - before);
            if *missing == 0 {
                this.deadline = None;
            } else if read.is_pending() {
                ready!(end.as_mut().poll(cx));
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        pin!(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
