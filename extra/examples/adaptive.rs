//! Limits that follow the load. A rate follows a number that the service knows, here how busy its database
//! is. A limit on an expensive route's requests in flight follows that route's latency. The rate may be
//! counted in Redis; requests in flight are counted per process.
//!
//! Run with
//!
//! ```text
//! cargo run -p tower-ratelimit-extra --example adaptive --features adaptive
//! ```
//!
//! and, in another terminal, run the lines right after each other. After a change, wait for two seconds: the
//! quota falls by at most half in half a second.
//!
//! ```text
//! curl -i http://127.0.0.1:3000/
//!     200
//!     ratelimit: "api";r=3;t=2700
//!     hello
//! curl -i http://127.0.0.1:3000/report
//!     200
//!     a long report
//! curl -i http://127.0.0.1:3000/limits
//!     200
//!     api 4/h, reports 100
//! curl -i -X PUT http://127.0.0.1:3000/database/75
//!     200
//!     75 % busy
//!
//! sleep 2
//!
//! curl -i http://127.0.0.1:3000/limits
//!     200
//!     api 1/h, reports 100
//! curl -i http://127.0.0.1:3000/
//!     429
//!     retry-after: 3600
//! curl -i -X PUT http://127.0.0.1:3000/database/0
//!     200
//!     0 % busy
//!
//! sleep 5
//!
//! curl -i http://127.0.0.1:3000/limits
//!     200
//!     api 4/h, reports 100
//! curl -i http://127.0.0.1:3000/
//!     200
//!     hello
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{
    env,
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use axum::{
    Router,
    extract::Path,
    routing::{get, put},
};
use tokio::net::TcpListener;
use tower_ratelimit::{Key, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
use tower_ratelimit_extra::adaptive::{Adaptive, AdaptivePolicy, Gradient, LoadMeter};

/// The service, and the limit of its clients.
pub(crate) fn app(limiter: impl Into<Limiter>) -> Result<(Router, AdaptivePolicy), tower_ratelimit::Error> {
    // In a service, this number comes from a connection pool, a queue or a monitoring system.
    let busy = Arc::new(AtomicU8::new(0));
    let free = {
        let busy = busy.clone();
        move || 1.0 - f64::from(busy.load(Relaxed)) / 100.0
    };
    let api = Adaptive::new(Policy::new("api", Quota::per_hour(4))).floor(0.1).follow(free).start()?;
    let hello = get(async || "hello\n").layer(RateLimitLayer::new(limiter, &api, PeerIp::new()));

    // The meter is the inner layer, so it measures only what is admitted.
    let meter = LoadMeter::new();
    let reports = Adaptive::new(Policy::concurrency("reports", 100)).follow(Gradient::new(&meter)).start()?;
    let in_flight = RateLimitLayer::new(MemoryStore::new(), &reports, Key::new("all"));
    let report = get(async || "a long report\n").layer((in_flight, meter));

    let limits = {
        let api = api.clone();
        get(async move || {
            format!("api {}, reports {}\n", api.policy().quota(), reports.policy().quota().limit())
        })
    };
    let database = put(async move |Path(percent): Path<u8>| {
        busy.store(percent, Relaxed);
        format!("{percent} % busy\n")
    });
    let app = Router::new().route("/", hello).route("/report", report);
    Ok((app.route("/limits", limits).route("/database/{percent}", database), api))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let (app, _) = app(MemoryStore::new())?;
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
