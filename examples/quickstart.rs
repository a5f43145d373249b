//! An axum app with one limited route and one that is not.
//!
//! Run with
//!
//! ```text
//! cargo run --example quickstart
//! ```
//!
//! and, in another terminal, send six requests:
//!
//! ```text
//! for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:3000/; done
//! ```
//!
//! Five responses are 200, the sixth is 429 with a `Retry-After` header. `/health` is never denied.
//!
//! Settings: `LIMIT` (5) and `PERIOD_SECS` (10) are the limit per client. `PORT` (3000) is the port, 0 for
//! any free one. With `REDIS_URL`, such as `redis://127.0.0.1:6379`, all processes started with it share the
//! limit.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr, str::FromStr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_ratelimit::{Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, RedisStore};

fn app(limiter: Limiter, quota: Quota) -> Router {
    Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::new(limiter, Policy::new("per-ip", quota), PeerIp::new()))
        // Routes added after the layer are outside of it.
        .route("/health", get(async || "ok\n"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    if let Err(error) = serve().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
    Ok(())
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let port: u16 = setting("PORT", 3000)?;
    let limit: u64 = setting("LIMIT", 5)?;
    let period: u64 = setting("PERIOD_SECS", 10)?;
    let quota = Quota::try_new(limit, Duration::from_secs(period))?;

    let (limiter, kept): (Limiter, _) = match env::var("REDIS_URL") {
        Ok(url) => (RedisStore::connect(&url).await?.into(), "in Redis, shared by every process"),
        Err(_) => (MemoryStore::new().into(), "in this process (set REDIS_URL to share it)"),
    };

    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to another"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, {quota} for each client, counted {kept}");
    println!("try: curl -i http://{address}/");
    axum::serve(listener, app(limiter, quota).into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

fn setting<T: FromStr>(name: &str, default: T) -> Result<T, String> {
    match env::var(name) {
        Ok(value) => value.parse().map_err(|_| format!("{name} must be a number, not {value:?}")),
        Err(_) => Ok(default),
    }
}
