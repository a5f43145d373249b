//! A limited service that serves its metrics to Prometheus.
//!
//! Run with
//!
//! ```text
//! cargo run -p example-metrics
//! ```
//!
//! and, in another terminal, run the lines right after each other. The last one prints the counters.
//!
//! ```text
//! curl -i http://127.0.0.1:3000/
//!     200
//!     hello
//! curl -i http://127.0.0.1:3000/
//!     200
//! curl -i http://127.0.0.1:3000/
//!     429
//! curl -s http://127.0.0.1:3000/metrics
//!     200
//! ```
//!
//! With `REDIS_URL`, such as `redis://127.0.0.1:6379`, the limits are shared, and the histograms of Redis
//! have values. `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{net::TcpListener, time::interval};
use tower_ratelimit::{
    Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, RedisStore, metrics::BUCKETS,
};

pub(crate) fn app(limiter: impl Into<Limiter>, prometheus: PrometheusHandle) -> Router {
    let policy = Policy::new("per-ip", Quota::per_minute(2));
    Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::new(limiter, policy, PeerIp::new()))
        // Added after the layer, so it is not limited. Keep it off the public port in production.
        .route("/metrics", get(async move || prometheus.render()))
}

/// Without buckets, the exporter makes summaries, which cannot be added over instances.
pub(crate) fn prometheus() -> Result<PrometheusBuilder, BuildError> {
    BUCKETS.iter().try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
        builder.set_buckets_for_metric(Matcher::Full((*name).into()), buckets)
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let handle = prometheus()?.install_recorder()?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });

    let limiter = match env::var("REDIS_URL") {
        Ok(url) => Limiter::new(RedisStore::connect(&url).await?),
        Err(_) => Limiter::new(MemoryStore::new()),
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = app(limiter, handle).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
