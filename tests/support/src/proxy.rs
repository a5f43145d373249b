//! A network between a client and a server that can be cut or slowed down.

use std::{
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
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

use crate::{eventually, sockets::open_to};

/// What the network does to open connections.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Network {
    Works,
    /// Nothing arrives, and no connection is closed.
    DropsAll,
    /// Everything arrives five milliseconds later, in each direction.
    SlowBy5,
    /// Everything that the server sends arrives 30 to 70 milliseconds later.
    SlowBy30To70,
}

/// Forwards connections to the server at a port.
pub struct Proxy {
    port: u16,
    address: SocketAddr,
    traffic: Arc<Traffic>,
    /// `None` while the network is cut.
    connected: Option<Connected>,
}

#[derive(Default)]
struct Traffic {
    network: AtomicU8,
    /// The bytes that have passed, in both directions.
    passed: AtomicU64,
    /// Connections that were opened under an earlier number are forgotten.
    remembered: AtomicU64,
    /// How many of the next connections are closed once the client has sent something.
    closes: AtomicU64,
    /// The connections that were accepted.
    accepted: AtomicU64,
}

struct Connected {
    accepts: JoinHandle<()>,
    // Changed or dropped, it ends the connections.
    open: watch::Sender<()>,
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, traffic) = (listener.local_addr().unwrap(), Arc::default());
        let connected = Some(accept(listener, port, &traffic));
        Self { port, address, traffic, connected }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of a Redis server behind the proxy.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn set(&self, network: Network) {
        self.traffic.network.store(network as u8, Relaxed);
    }

    /// Closes all connections, and lets new ones fail.
    pub async fn cut(&mut self) {
        if let Some(Connected { accepts, open: _open }) = self.connected.take() {
            accepts.abort();
            // The port is closed once the task has ended.
            let _ = accepts.await;
        }
    }

    /// Forgets all connections: from now on, nothing arrives over them and none is closed, and new ones work.
    pub fn forget(&self) {
        self.traffic.remembered.fetch_add(1, Relaxed);
    }

    /// Closes all connections that are open.
    pub fn close_all(&self) {
        if let Some(connected) = &self.connected {
            let _ = connected.open.send(());
        }
    }

    /// Closes all connections that are open, and waits until the client, which runs in this process, has closed its ends
    /// too.
    pub async fn close_all_and_wait(&self) {
        let open = open_to(self.port());
        self.close_all();
        let are_closed = async || !open_to(self.port()).iter().any(|address| open.contains(address));
        assert!(eventually(are_closed).await, "a client keeps connections that are closed");
    }

    /// Closes the next `count` connections during their setup.
    pub fn close_next(&self, count: u64) {
        self.traffic.closes.store(count, Relaxed);
    }

    /// How many connections were opened.
    pub fn accepted(&self) -> u64 {
        self.traffic.accepted.load(Relaxed)
    }

    pub async fn mend(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.connected = Some(accept(listener, self.port, &self.traffic));
    }

    /// Waits until nothing has passed for a while.
    pub async fn is_quiet(&self) {
        let mut before = None;
        while before != Some(self.traffic.passed.load(Relaxed)) {
            before = Some(self.traffic.passed.load(Relaxed));
            sleep(Duration::from_millis(300)).await;
        }
    }
}

fn accept(listener: TcpListener, port: u16, traffic: &Arc<Traffic>) -> Connected {
    let (open, closed) = watch::channel(());
    let traffic = traffic.clone();
    let accepts = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut closed, traffic) = (closed.clone(), traffic.clone());
            closed.mark_unchanged();
            tokio::spawn(async move {
                traffic.accepted.fetch_add(1, Relaxed);
                let closes = traffic.closes.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
                if closes.is_ok() {
                    return client.readable().await.ok();
                }
                let server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::select! {
                    _ = traffic.pass(from_client, to_server, false) => {}
                    _ = traffic.pass(from_server, to_client, true) => {}
                    _ = closed.changed() => {}
                }
                Some(())
            });
        }
    });
    Connected { accepts, open }
}

impl Traffic {
    fn is(&self, network: Network) -> bool {
        self.network.load(Relaxed) == network as u8
    }

    /// Returns once one side has closed the connection.
    async fn pass(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_reply: bool) -> Option<()> {
        let mut bytes = vec![0; 65_536];
        let remembered = self.remembered.load(Relaxed);
        loop {
            let count = from.read(&mut bytes).await.ok()?;
            if self.remembered.load(Relaxed) != remembered {
                return pending().await;
            }
            if self.is(Network::SlowBy5) {
                sleep(Duration::from_millis(5)).await;
            }
            if is_reply && self.is(Network::SlowBy30To70) {
                // A sequence for each connection would make the delays of all alike.
                sleep(Duration::from_millis(fastrand::u64(30..70))).await;
            }
            // TCP sends it again later. The end of a connection does not arrive either.
            while self.is(Network::DropsAll) {
                sleep(Duration::from_millis(5)).await;
            }
            if count == 0 {
                return None;
            }
            to.write_all(&bytes[..count]).await.ok()?;
            self.passed.fetch_add(count as u64, Relaxed);
        }
    }
}
