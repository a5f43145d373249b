//! How many requests wait for a Redis that hangs, and how soon it decides again, with and without traffic.

use std::{
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket},
    task::{JoinSet, block_in_place},
    time::{Instant, sleep},
};
use tower_ratelimit::{
    Error, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore, store::Servers,
};

use crate::{
    faults::{Cut, Fault, Frozen, Killed, OverTls, Promotion},
    promises::Promises,
};
use support::{
    RedisServer,
    certificates::Authority,
    proxy::{Network, Proxy},
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
};

const OUTAGE: Duration = Duration::from_secs(3);
/// Redis decides again after this time.
const BACK: Duration = Duration::from_millis(300);
/// 40 requests a second.
const PAUSE: Duration = Duration::from_millis(25);

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Waits for a Redis that hangs, and its return\n");
    println!(
        "40 requests a second or none, an outage of {} s. A row without traffic has one decision when the bound is over.\n",
        OUTAGE.as_secs()
    );
    println!(
        "| fault | traffic | waited, of those that began after the third failure | Redis decides after, ms | bound, ms |"
    );
    println!("|---|---|---|---|---|");
    for has_traffic in [true, false] {
        for kind in KINDS {
            row(kind, has_traffic, promises).await;
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Killed,
    Frozen,
    PacketsAreDropped,
    /// All connections are closed, and new ones hang.
    HangsInTls,
    HangsInAuth,
    /// The packets that open a connection are dropped.
    Deaf,
    FrozenCluster,
    Promotion,
}

const KINDS: [Kind; 8] = [
    Kind::Killed,
    Kind::Frozen,
    Kind::PacketsAreDropped,
    Kind::HangsInTls,
    Kind::HangsInAuth,
    Kind::Deaf,
    Kind::FrozenCluster,
    Kind::Promotion,
];

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Frozen => "frozen",
            Self::PacketsAreDropped => "packets are dropped",
            Self::HangsInTls => "connections are closed, and new ones hang in the TLS handshake",
            Self::HangsInAuth => "connections are closed, and new ones hang in AUTH",
            Self::Deaf => "killed, and packets that open a connection are dropped",
            Self::FrozenCluster => "all nodes of a Cluster are frozen",
            Self::Promotion => "killed, and sentinels promote a replica; after the kill",
        }
    }

    const fn bound(self) -> Duration {
        match self {
            // TCP repeats the first packet, or the attempt ends.
            Self::Deaf => Duration::from_millis(2_300),
            // The sentinels need most of it.
            Self::Promotion => OUTAGE,
            _ => BACK,
        }
    }
}

/// The server closes all connections and is stopped. The system accepts new ones for it.
struct Silenced(RedisServer);

impl Fault for Silenced {
    fn begin(&mut self) {
        let mut connection = self.0.connection();
        let mut kill = redis::cmd("CLIENT");
        let killed = kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).query::<u64>(&mut connection);
        self.0.signal("STOP");
        assert!(killed.unwrap() > 0);
    }

    fn end(&mut self) {
        self.0.signal("CONT");
    }
}

/// In the place of the server is a port with a full queue, so the system drops the packets that open a connection.
struct Deaf {
    server: RedisServer,
    port: Option<(TcpListener, Vec<TcpStream>)>,
}

impl Fault for Deaf {
    fn begin(&mut self) {
        self.server.kill();
        let address = SocketAddr::from(([127, 0, 0, 1], self.server.port()));
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(1).unwrap();
        let open = |_| TcpStream::connect_timeout(&address, Duration::from_millis(50)).ok();
        let filling = (0..8).map_while(open).collect();
        self.port = Some((listener, filling));
    }

    fn end(&mut self) {
        self.port = None;
        self.server.restart();
    }
}

/// The servers of a Cluster, which freeze together.
struct AllNodes(RedisCluster);

impl Fault for AllNodes {
    fn begin(&mut self) {
        self.0.nodes.iter().for_each(|node| node.signal("STOP"));
    }

    fn end(&mut self) {
        self.0.nodes.iter().for_each(|node| node.signal("CONT"));
    }
}

async fn check(limiter: &Limiter) -> Result<(), Error> {
    let policy = Policy::new("p", Quota::per_day(1_000_000)).failure_mode(FailureMode::Closed);
    limiter.check(&policy, &Key::new("alice"), 1).await.map(drop)
}

async fn fault(kind: Kind) -> (Box<dyn Fault>, RedisStore) {
    let connect = async |url: &str| RedisStore::connect(url).await.unwrap();
    match kind {
        Kind::FrozenCluster => {
            let cluster = block_in_place(|| RedisCluster::start(3));
            let store = RedisStore::connect(Servers::cluster(cluster.urls())).await.unwrap();
            (Box::new(AllNodes(cluster)), store)
        }
        Kind::Promotion => {
            let group = block_in_place(SentinelGroup::start);
            let store = RedisStore::connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap();
            (Box::new(Promotion(group)), store)
        }
        Kind::HangsInTls => {
            let authority = Authority::new();
            let (server, url) = authority.serve(&["--tls-auth-clients", "no"]);
            let settings = RedisStore::builder().tls_ca_certificate(authority.ca.clone());
            let store = settings.connect(&url).await.unwrap();
            (Box::new(OverTls { fault: Silenced(server), _authority: authority }), store)
        }
        Kind::HangsInAuth => {
            let server = RedisServer::start();
            let rules = ["SETUSER", "limiter", "on", ">secret", "~*", "+@all"];
            redis::cmd("ACL").arg(&rules).exec(&mut server.connection()).unwrap();
            let store = connect(&server.url().replace("redis://", "redis://limiter:secret@")).await;
            (Box::new(Silenced(server)), store)
        }
        Kind::PacketsAreDropped => {
            let server = RedisServer::start();
            let proxy = Proxy::to(server.port()).await;
            let store = connect(&proxy.url()).await;
            (Box::new(Cut { _server: server, proxy, during: Network::DropsAll }), store)
        }
        Kind::Killed | Kind::Frozen | Kind::Deaf => {
            let server = RedisServer::start();
            let store = connect(&server.url()).await;
            match kind {
                Kind::Killed => (Box::new(Killed(server)), store),
                Kind::Frozen => (Box::new(Frozen(server)), store),
                _ => (Box::new(Deaf { server, port: None }), store),
            }
        }
    }
}

async fn row(kind: Kind, has_traffic: bool, promises: &mut Promises) {
    let (mut fault, store) = fault(kind).await;
    let limiter = Limiter::new(store);
    for _ in 0..20 {
        check(&limiter).await.unwrap();
    }
    let began = Instant::now();
    block_in_place(|| fault.begin());
    // How many requests have failed, and the first success after that.
    let ends = Arc::new(Mutex::new((0_u32, None)));
    let mut running = JoinSet::new();
    let request = |running: &mut JoinSet<bool>| {
        let (limiter, ends) = (limiter.clone(), ends.clone());
        running.spawn(async move {
            let failed_before = ends.lock().unwrap().0;
            let error = check(&limiter).await.err();
            let (failed, back) = &mut *ends.lock().unwrap();
            match &error {
                Some(_) => *failed += 1,
                None if *failed > 0 => drop(back.get_or_insert_with(Instant::now)),
                None => {}
            }
            failed_before >= 3 && error.is_some_and(|error| error.kind() != ErrorKind::StoreSuspended)
        });
    };
    // Without traffic, until the breaker is open.
    let with_requests = if has_traffic { OUTAGE } else { Duration::from_secs(1) };
    while began.elapsed() < with_requests {
        request(&mut running);
        sleep(PAUSE).await;
    }
    sleep(OUTAGE.saturating_sub(began.elapsed())).await;
    block_in_place(|| fault.end());
    let ended = if kind == Kind::Promotion { began } else { Instant::now() };
    if !has_traffic {
        sleep(kind.bound().saturating_sub(ended.elapsed())).await;
    }
    let mut later = 0;
    while ends.lock().unwrap().1.is_none() && check(&limiter).await.is_err() && later < 4_000 {
        later += 1;
        sleep(Duration::from_millis(5)).await;
    }
    let back = ends.lock().unwrap().1.unwrap_or_else(Instant::now) - ended;
    let waited = running.join_all().await.into_iter().filter(|waited| *waited).count();
    let (name, traffic) = (kind.name(), if has_traffic { "40 a second" } else { "none" });
    let wait = promises.check(waited == 0, || format!("{name}, {traffic}: {waited} waited"));
    let is_back = if has_traffic { back <= kind.bound() } else { later == 0 };
    let late = promises.check(is_back, || format!("{name}, {traffic}: Redis decided after {back:?}"));
    let bound = kind.bound().as_millis();
    let back = match later {
        0 if !has_traffic => "in time".to_owned(),
        _ => back.as_millis().to_string(),
    };
    println!("| {name} | {traffic} | {waited}{wait} | {back}{late} | {bound} |");
}
