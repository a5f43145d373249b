//! Shared by the programs that test the crate: servers, clients and small services.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::expect_used,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::unwrap_used,
    reason = "only tests use it"
)]

pub mod algorithm;
pub mod another_time;
#[cfg(feature = "tls")]
pub mod certificates;
pub mod directory;
pub mod examples;
pub mod fake_server;
pub mod http;
pub mod lines;
pub mod losing;
#[cfg(feature = "tls")]
pub mod modes;
pub mod pipes;
pub mod pool;
pub mod proxy;
pub mod redis_cluster;
#[cfg(feature = "tls")]
pub mod redis_sentinel;
pub mod redis_server;
pub mod script;
pub mod slow;
pub mod sockets;
pub mod stores;
pub mod table;
pub mod users;

pub use algorithm::InLua;
pub use another_time::AnotherTime;
pub use directory::{Directory, file_of};
pub use lines::{EachLine, Lines};
pub use pool::{RedisPool, pool};
pub use redis_server::RedisServer;
pub use stores::{Counted, Down, Fake, Says, decides_after, deny, fails, fails_after, store_that};

use std::{
    sync::{LazyLock, mpsc},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tower_ratelimit::{
    Key, Limiter, MemoryStore, Policy, Quota, RedisStore,
    algorithm::FixedWindow,
    store::{ManualClock, RedisStoreBuilder},
};

/// The size of a random test: `usual` in `make test`, where each test has about two seconds, and `thorough` with the variable
/// `THOROUGH`, which `make test-long` sets.
pub fn size<T>(usual: T, thorough: T) -> T {
    if std::env::var_os("THOROUGH").is_some() { thorough } else { usual }
}

/// So long that no decision is late on a busy machine.
pub const PATIENT: Duration = Duration::from_secs(20);

/// The settings of a store that waits for its decisions.
pub fn settings() -> RedisStoreBuilder {
    RedisStore::builder().deadline(PATIENT)
}

/// A store on `server` that waits for its decisions.
pub async fn store(server: &RedisServer) -> RedisStore {
    settings().connect(&server.url()).await.unwrap()
}

/// A server, and a store on it.
pub async fn redis_store() -> (RedisServer, RedisStore) {
    let server = RedisServer::start();
    let store = store(&server).await;
    (server, store)
}

/// A server, and a limiter on it.
pub async fn on_redis() -> (RedisServer, Limiter) {
    let (server, store) = redis_store().await;
    (server, Limiter::new(store))
}

/// A server, and a limiter on it, whose time is a clock.
pub async fn on_redis_with_clock() -> (RedisServer, ManualClock, Limiter) {
    let (server, clock, redis, _) = stores_with_clock().await;
    (server, clock, Limiter::new(redis))
}

/// A server, and a store on it and one in process that have the same clock.
pub async fn stores_with_clock() -> (RedisServer, ManualClock, RedisStore, MemoryStore) {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let memory = MemoryStore::with_clock(clock.clone());
    (server, clock, redis, memory)
}

/// A limiter on each store.
pub async fn memory_and_redis(server: &RedisServer) -> [(&'static str, Limiter); 2] {
    [("memory", Limiter::new(MemoryStore::new())), ("redis", Limiter::new(store(server).await))]
}

/// A policy whose units are not replenished during a test.
pub fn day(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit)).algorithm(FixedWindow::anchored())
}

/// The units that remain of the key "all".
pub async fn units_left(limiter: &Limiter, policy: &Policy) -> u64 {
    limiter.peek(policy, &Key::new("all"), 0).await.unwrap().remaining().unwrap()
}

/// A runtime that is driven only inside `block_on`.
pub fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The value in Redis of a key with this state in version 2, see `lua/include/state.lua`. Its TTL ends a minute after `time`.
pub fn current_state(time: f64, count: f64, text: impl AsRef<[u8]>) -> Vec<u8> {
    let kept = time + 60e6;
    [&[2][..], &time.to_le_bytes(), &count.to_le_bytes(), &kept.to_le_bytes(), text.as_ref()].concat()
}

/// The same in version 1, which scripts read and do not write. A script takes only whole numbers.
pub fn state(time: f64, count: f64, text: impl AsRef<[u8]>) -> Vec<u8> {
    [&[1][..], &time.to_le_bytes(), &count.to_le_bytes(), text.as_ref()].concat()
}

/// Lets the other tasks of this thread run.
pub async fn let_others_run() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Polls until `holds` returns true, for at most `patience`. Returns whether it did.
pub async fn within(patience: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds().await {
        if started.elapsed() > patience {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Polls until `holds` returns true. Returns whether it did: the bound only ends a test that hangs, and is longer than
/// background work takes on a machine whose processors have other work too.
pub async fn eventually(holds: impl AsyncFnMut() -> bool) -> bool {
    within(Duration::from_secs(60), holds).await
}

/// Waits until the store of this runtime has received the close of each connection that `server` has closed.
///
/// A connection has a task, which ends then. The others are the task of the pool and the one that ends with the runtime.
pub async fn closes_received(server: &RedisServer) {
    let others = 2;
    let has_received = async || {
        tokio::runtime::Handle::current().metrics().num_alive_tasks() <= server.connections() + others
    };
    assert!(eventually(has_received).await, "a connection that the server has closed is still open");
}

/// Runs `test` in a thread, so that one that hangs fails.
pub fn ends(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let running = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => running.join().unwrap(),
    }
}

/// Makes `subscriber` the one of this thread.
///
/// As long as a process has only one subscriber, the first thread that reaches a line decides for all threads whether it
/// is logged, and another test's thread has none. So there is always a second one.
pub fn listen_with(subscriber: impl tracing::Subscriber + Send + Sync) -> tracing::subscriber::DefaultGuard {
    static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
        tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish())
    });
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(subscriber)
}

/// A service with no network, for tests that must set the clock.
pub mod inner {
    use std::{convert::Infallible, fmt::Debug};

    use ::http::{Request, Response};
    use http_body_util::BodyExt as _;
    use hyper::body::Body;
    use tower::{Layer, ServiceExt, service_fn};
    use tower_ratelimit::{Decision, Key, MemoryStore, Policy, Quota, RateLimitLayer, layer::ResponseBody};

    /// Admits `limit` requests of all clients together.
    pub fn layer(limit: u64) -> RateLimitLayer {
        RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_hour(limit)), Key::new("all"))
    }

    /// Answers `request` with `response` if `layer` admits it.
    pub async fn ask_for(
        layer: &RateLimitLayer,
        request: Request<String>,
        response: impl Fn() -> Response<String> + Clone,
    ) -> Response<ResponseBody<String>> {
        let service = service_fn(|_: Request<String>| {
            let response = response();
            async { Ok::<_, Infallible>(response) }
        });
        let Ok(response) = layer.layer(service).oneshot(request).await;
        response
    }

    pub async fn ask(layer: &RateLimitLayer, request: Request<String>) -> Response<ResponseBody<String>> {
        ask_for(layer, request, || Response::new("hello".into())).await
    }

    /// [`ask`] behind a middleware that reads the decision in the extensions of the response.
    pub async fn ask_and_read(
        layer: &RateLimitLayer,
        mut request: Request<String>,
    ) -> Response<ResponseBody<String>> {
        request.extensions_mut().insert(Decision::new([]));
        ask(layer, request).await
    }

    /// The statuses of the responses to `requests`, one after the other.
    pub async fn statuses(
        layer: &RateLimitLayer,
        requests: impl IntoIterator<Item = Request<String>>,
    ) -> Vec<u16> {
        let mut statuses = Vec::new();
        for request in requests {
            statuses.push(ask(layer, request).await.status().as_u16());
        }
        statuses
    }

    pub fn get() -> Request<String> {
        Request::get("/").body(String::new()).unwrap()
    }

    pub async fn text<B: Body<Error: Debug>>(response: Response<B>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }
}
