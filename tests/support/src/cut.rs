//! A network that can be cut between a client and a server.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
    time::sleep,
};

/// A proxy in front of the server at a port. While it is cut, connections are closed and new ones fail.
pub struct Cut {
    port: u16,
    address: SocketAddr,
    /// The bytes that have passed, in both directions.
    passed: Arc<AtomicU64>,
    connected: Option<Connected>,
}

struct Connected {
    accepts: JoinHandle<()>,
    // Dropped, it ends the connections.
    _open: watch::Sender<()>,
}

impl Cut {
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let passed = Arc::default();
        let connected = Some(accept(listener, port, &passed));
        Self { port, address, passed, connected }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and lets new ones fail.
    pub async fn cut(&mut self) {
        if let Some(Connected { accepts, _open }) = self.connected.take() {
            accepts.abort();
            // The port is closed once the task has ended.
            let _ = accepts.await;
        }
    }

    pub async fn mend(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.connected = Some(accept(listener, self.port, &self.passed));
    }

    /// Waits until nothing has passed for a while.
    pub async fn is_quiet(&self) {
        let mut before = None;
        while before != Some(self.passed.load(Relaxed)) {
            before = Some(self.passed.load(Relaxed));
            sleep(Duration::from_millis(300)).await;
        }
    }
}

fn accept(listener: TcpListener, port: u16, passed: &Arc<AtomicU64>) -> Connected {
    let (open, closed) = watch::channel(());
    let passed = passed.clone();
    let accepts = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut closed, passed) = (closed.clone(), passed.clone());
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::select! {
                    _ = pass(from_client, to_server, &passed) => {}
                    _ = pass(from_server, to_client, &passed) => {}
                    _ = closed.changed() => {}
                }
                Some(())
            });
        }
    });
    Connected { accepts, _open: open }
}

/// Returns once one side has closed the connection.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, passed: &AtomicU64) -> Option<()> {
    let mut bytes = vec![0; 65_536];
    while let count @ 1.. = from.read(&mut bytes).await.ok()? {
        to.write_all(&bytes[..count]).await.ok()?;
        passed.fetch_add(count as u64, Relaxed);
    }
    None
}
