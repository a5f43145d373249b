//! A network that can be cut or slowed down.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::sleep,
};

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Network {
    Works,
    /// Nothing arrives, and no connection is closed.
    DropsAll,
    /// Everything arrives five milliseconds later, in each direction.
    SlowBy5,
    /// Everything that the server sends arrives 30 to 70 milliseconds later.
    SlowBy30To70,
}

/// Forwards connections to a server.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<AtomicU8>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let proxy = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let state = proxy.state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(forward(from_client, to_server, state.clone(), false));
                tokio::spawn(forward(from_server, to_client, state.clone(), true));
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn set(&self, network: Network) {
        self.state.store(network as u8, Ordering::Relaxed);
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: Arc<AtomicU8>,
    is_reply: bool,
) -> Option<()> {
    let mut bytes = vec![0; 65_536];
    loop {
        let count = from.read(&mut bytes).await.ok()?;
        if count == 0 {
            return None;
        }
        if state.load(Ordering::Relaxed) == Network::SlowBy5 as u8 {
            sleep(Duration::from_millis(5)).await;
        }
        if is_reply && state.load(Ordering::Relaxed) == Network::SlowBy30To70 as u8 {
            sleep(Duration::from_millis(fastrand::u64(30..70))).await;
        }
        // TCP sends it again later.
        while state.load(Ordering::Relaxed) == Network::DropsAll as u8 {
            sleep(Duration::from_millis(5)).await;
        }
        to.write_all(&bytes[..count]).await.ok()?;
    }
}
