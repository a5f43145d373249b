//! A service with every feature that has a metric, and its clients.

use std::{fs, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use futures_util::future::join_all;
use http::Request;
use support::{
    Directory, RedisServer,
    http::{Client, serve},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tower_ratelimit::{
    FailureMode, Header, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore,
    algorithm::{FixedWindow, LeakyBucket},
    policy::{Enforcement, EnforcementSwitch, Penalty},
};
use tower_ratelimit_extra::adaptive::{Adaptive, AdaptivePolicy};
use tower_ratelimit_operate::live::LivePolicies;

use crate::example;

pub(crate) struct Service {
    pub(crate) redis: RedisServer,
    address: SocketAddr,
    _clients: JoinSet<()>,
    _switch: EnforcementSwitch,
    _adaptive: AdaptivePolicy,
    _live: LivePolicies,
    _files: Directory,
}

impl Service {
    pub(crate) async fn start() -> Self {
        let handle = example::prometheus().unwrap().install_recorder().unwrap();
        let redis = RedisServer::start();
        let limiter = Limiter::new(RedisStore::connect(&redis.url()).await.unwrap());
        let switch = EnforcementSwitch::new(Enforcement::ReportOnly);
        let adaptive = Adaptive::new(Policy::new("search", Quota::per_second(1_000))).follow(|| 0.5).start();
        let adaptive = adaptive.unwrap();

        let files = Directory::new();
        let file = files.file("limits.toml");
        let entry = "[[policies]]\nname = \"live\"\nquota = \"100/min\"\n";
        fs::write(&file, entry).unwrap();
        let live = LivePolicies::file(&file).unwrap().poll_every(Duration::from_millis(50));
        // It stays invalid.
        fs::write(&file, entry.replace("100/min", "many")).unwrap();

        let hour = |name, limit| Policy::new(name, Quota::per_hour(limit));
        let plan = hour("plan", 10).algorithm(FixedWindow::anchored()).notify_at([50, 100]);
        let queue = Policy::new("queue", Quota::per_second(100))
            .algorithm(LeakyBucket::queue(Duration::from_millis(50)));
        let penalty = Penalty::after(2, Duration::from_secs(60));
        let limited = |path, limiter: &Limiter, policy: Policy| {
            let layer = RateLimitLayer::new(limiter.clone(), policy, Header::new("x-user"));
            Router::new().route(path, get(async || "hello")).layer(layer)
        };
        let reported = RateLimitLayer::new(limiter.clone(), hour("reported", 10), Header::new("x-user"));
        let app = limited("/plan", &limiter, plan)
            .merge(limited("/queue", &limiter, queue))
            .merge(limited("/login", &limiter, hour("login", 5).penalty(penalty)))
            .merge(limited("/shadow", &limiter, hour("shadow", 10).shadow()))
            .merge(limited("/open", &limiter, hour("open", 10).failure_mode(FailureMode::Open)))
            .merge(limited("/closed", &limiter, hour("closed", 10).failure_mode(FailureMode::Closed)))
            .merge(limited("/memory", &Limiter::new(MemoryStore::new()), hour("memory", 10)))
            .merge(
                Router::new()
                    .route("/reported", get(async || "hello"))
                    .layer(reported.enforcement(switch.clone())),
            )
            .route("/metrics", get(async move || handle.render()));
        let address = serve(app).await;
        let mut clients = JoinSet::new();
        for client in 0..2 {
            clients.spawn(send_requests(address, client));
        }
        clients.spawn(use_limiter(limiter, adaptive.policy()));
        Self {
            redis,
            address,
            _clients: clients,
            _switch: switch,
            _adaptive: adaptive,
            _live: live,
            _files: files,
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Sends requests to each route. A user sends 20 to each, and then the next one comes.
async fn send_requests(address: SocketAddr, client: usize) {
    let connections = Client::new();
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0.. {
        ticks.tick().await;
        let user = format!("{client}-{}", number / 20);
        for path in ["plan", "queue", "login", "shadow", "open", "closed", "memory", "reported"] {
            let request = Request::get(format!("http://{address}/{path}")).header("x-user", &user);
            connections.send(request.body(String::new()).unwrap()).await;
        }
    }
}

/// Charges a hot key, which is leased; keys that get into debt; and many keys in one burst.
async fn use_limiter(limiter: Limiter, search: Policy) {
    let hot = Policy::new("hot", Quota::per_second(10_000)).max_lease(100);
    let tokens = Policy::new("tokens", Quota::per_hour(10)).max_debt(20);
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0.. {
        ticks.tick().await;
        let key = |name: &str| Key::new(format!("{name}{number}"));
        for _ in 0..5 {
            limiter.check(&hot, &Key::new("all"), 1).await.unwrap();
        }
        let reserved = limiter.check(&tokens, &key("debtor"), 5).await.unwrap();
        limiter.debit(&reserved, 10).await.unwrap();
        let keys: Vec<Key> = (0..40).map(|user| key(&format!("user{user}-"))).collect();
        join_all(keys.iter().map(|key| limiter.check(&search, key, 1))).await;
    }
}
