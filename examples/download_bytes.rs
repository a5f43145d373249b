//! Downloads: a client may fetch a number of bytes, regardless of the number of requests.
//!
//! Run with
//!
//! ```text
//! cargo run --example download_bytes --features axum
//! ```
//!
//! and, in another terminal, run the lines right after each other. An address may fetch 1 MB per minute. If
//! the last response exceeds that, the excess becomes debt.
//!
//! ```text
//! curl -i -o /dev/null http://127.0.0.1:3000/files/610000
//!     200
//!     content-length: 610000
//!     ratelimit-policy: "bytes";q=1000000;qu="content-bytes";w=60
//! curl -i -o /dev/null http://127.0.0.1:3000/files/610000
//!     200
//!     content-length: 610000
//! curl -i -o /dev/null http://127.0.0.1:3000/files/610000
//!     429
//!     retry-after: 14
//! ```
//!
//! 220,000 bytes of debt take 14 seconds. A client that closes its connection is charged what was sent until
//! then.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error as StdError, net::SocketAddr};

use axum::{Router, extract::Path, routing::get};
use tokio::net::TcpListener;
use tower_ratelimit::policy::QuotaUnit;
use tower_ratelimit::{Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rule};

/// A file of this many bytes, up to 10 MB.
async fn file(Path(size): Path<usize>) -> Vec<u8> {
    vec![b'x'; size.min(10_000_000)]
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    // The debt bounds how long a client waits after one large response: at most ten minutes here.
    let bytes = Policy::new("bytes", Quota::per_minute(1_000_000))
        .max_debt(10_000_000)
        .quota_unit(QuotaUnit::ContentBytes);
    let layer = RateLimitLayer::with_rules(limiter, Rule::new(bytes, PeerIp::new()).response_bytes());
    Router::new().route("/files/{size}", get(file)).layer(layer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(MemoryStore::new()).into_make_service_with_connect_info::<SocketAddr>())
        .await?;
    Ok(())
}
