//! One router, one store, and a limit for each route: by path, by method, and by the plan of the client.
//!
//! Run with
//!
//! ```text
//! cargo run --example per_route
//! ```
//!
//! and, in another terminal, run the lines right after each other. If two limits apply, each adds a header
//! line.
//!
//! ```text
//! curl -i -X POST http://127.0.0.1:3000/login
//!     200
//!     ratelimit: "login";r=0;t=60
//!     in
//! curl -i -X POST http://127.0.0.1:3000/login
//!     429
//!     retry-after: 60
//!     ratelimit: "login";r=0;t=60
//! curl -i http://127.0.0.1:3000/
//!     200
//!     ratelimit: "router";r=59;t=59
//!     home
//! curl -i http://127.0.0.1:3000/notes
//!     200
//!     ratelimit: "reads";r=5;t=50, "router";r=58;t=58
//!     notes
//! curl -i -X POST http://127.0.0.1:3000/notes
//!     200
//!     ratelimit: "writes";r=1;t=30, "router";r=57;t=57
//!     added
//! curl -i -H 'x-api-key: k1' http://127.0.0.1:3000/reports
//!     200
//!     ratelimit: "free";r=0;t=60, "router";r=56;t=56
//!     report
//! curl -i -H 'x-api-key: k1' http://127.0.0.1:3000/reports
//!     429
//!     retry-after: 60
//!     ratelimit: "free";r=0;t=60, "router";r=55;t=55
//! curl -i -H 'x-api-key: key-of-acme' http://127.0.0.1:3000/reports
//!     200
//!     ratelimit: "paid";r=29;t=58, "router";r=54;t=54
//!     report
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{collections::HashSet, env, error::Error, net::SocketAddr};

use axum::{
    Router,
    routing::{get, post},
};
use http::request::Parts;
use tokio::net::TcpListener;
use tower_ratelimit::{
    Header, Key, KeyExtractor as _, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota,
    RateLimitLayer, key::MatchedRoute,
};

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let limiter = limiter.into();
    // Each policy has its own name, so that they do not share counts.
    let per_ip = |name, quota| RateLimitLayer::new(limiter.clone(), Policy::new(name, quota), PeerIp::new());
    let reads = per_ip("reads", Quota::per_minute(6));
    let writes = per_ip("writes", Quota::per_minute(2));

    Router::new()
        .route("/", get(async || "home\n"))
        // A limit for each method, in addition to the router's limit. With `route_layer`, requests with other
        // methods are not counted here.
        .route(
            "/notes",
            get(async || "notes\n").route_layer(reads).merge(post(async || "added\n").route_layer(writes)),
        )
        // Both limits apply here too: the plan's and the router's.
        .route("/reports", get(async || "report\n").route_layer(per_plan(limiter.clone())))
        // Only this limit applies, because the router's limit exempts the path.
        .route("/login", post(async || "in\n").route_layer(per_ip("login", Quota::per_minute(1))))
        .layer(per_ip("router", Quota::per_minute(60)).exempt_if(MatchedRoute::new().any_of(["/login"])))
}

/// The limit depends on the plan of the client. The policies are built once.
fn per_plan(limiter: Limiter) -> RateLimitLayer {
    let paying = HashSet::from([Key::new("key-of-acme")]);
    let free = Policy::new("free", Quota::per_minute(1));
    let paid = Policy::new("paid", Quota::per_minute(30));
    let plan = PolicySource::per_request(
        move |_: &Parts, key: &Key| {
            if paying.contains(key) { paid.clone() } else { free.clone() }
        },
    );
    RateLimitLayer::new(limiter, plan, Header::new("x-api-key"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(MemoryStore::new()).into_make_service_with_connect_info::<SocketAddr>())
        .await?;
    Ok(())
}
