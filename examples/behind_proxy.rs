//! A limit per client behind a reverse proxy. Clients cannot spoof their address with a header.
//!
//! Run with
//!
//! ```text
//! cargo run --example behind_proxy
//! ```
//!
//! and, in another terminal, play the proxy: it runs on this machine and appends the client's address.
//!
//! ```text
//! curl -i -H 'x-forwarded-for: 203.0.113.7' http://127.0.0.1:3000/
//!     200
//!     ratelimit: "per-client";r=1;t=30
//!     hello
//! curl -i -H 'x-forwarded-for: 203.0.113.7' http://127.0.0.1:3000/
//!     200
//!     ratelimit: "per-client";r=0;t=30
//!     hello
//! curl -i -H 'x-forwarded-for: 1.2.3.4, 203.0.113.7' http://127.0.0.1:3000/
//!     429
//!     retry-after: 30
//!     ratelimit: "per-client";r=0;t=30
//! curl -i -H 'x-forwarded-for: 203.0.113.8' http://127.0.0.1:3000/
//!     200
//!     ratelimit: "per-client";r=1;t=30
//!     hello
//! ```
//!
//! The third request has a spoofed address on the left, the part of the header that clients control. It is
//! denied.
//!
//! Settings: `PROXIES` (127.0.0.0/8) are the networks of your proxies, separated by commas. With
//! `PROXIES=10.0.0.0/8`, curl is not a trusted proxy, and its header is ignored. `PORT` (3000) is the port, 0
//! for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_ratelimit::{ClientIp, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, key::TrustedProxies};

pub(crate) fn app(limiter: impl Into<Limiter>, proxies: TrustedProxies) -> Router {
    let policy = Policy::new("per-client", Quota::per_minute(2));
    Router::new().route("/", get(async || "hello\n")).layer(RateLimitLayer::new(
        limiter,
        policy,
        ClientIp::behind(proxies),
    ))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let proxies = env::var("PROXIES").unwrap_or_else(|_| "127.0.0.0/8".into());
    let proxies = TrustedProxies::cidrs(proxies.split(','))?;
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(
        listener,
        app(MemoryStore::new(), proxies).into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
