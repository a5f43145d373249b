//! HTTP over pipes in this process, for more connections than it may have sockets.

use axum::{Router, serve::Listener};
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::handshake,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{DuplexStream, duplex},
    sync::mpsc,
};

/// Serves `app` until the runtime ends. Each request of the client has its own connection.
pub fn serve(app: Router) -> PipeClient {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move { axum::serve(Pipes(receiver), app).await.unwrap() });
    PipeClient(sender)
}

/// The other ends of the connections that the client opens.
struct Pipes(mpsc::UnboundedReceiver<DuplexStream>);

impl Listener for Pipes {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.recv().await {
            Some(pipe) => (pipe, ()),
            // There is no client any more.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A client of a [served](serve) app. Clones share it.
#[derive(Clone, Debug)]
pub struct PipeClient(mpsc::UnboundedSender<DuplexStream>);

impl PipeClient {
    /// A client of a server that closes all connections.
    pub fn of_no_server() -> Self {
        Self(mpsc::unbounded_channel().0)
    }

    /// Sends a request. If the body of its response is dropped before its end, the connection is closed.
    pub async fn send(&self, request: Request<String>) -> Result<Response<Incoming>, hyper::Error> {
        let (ours, theirs) = duplex(1 << 16);
        // Without a server, the connection is closed.
        drop(self.0.send(theirs));
        let (mut sender, connection) = handshake(TokioIo::new(ours)).await?;
        tokio::spawn(connection);
        sender.send_request(request.map(|body| Full::new(Bytes::from(body)))).await
    }
}
