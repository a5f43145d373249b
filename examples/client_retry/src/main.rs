//! A `reqwest` client that retries denied requests after the wait the server asks for.
//!
//! Run with `cargo run -p example-client-retry`
//!
//! It starts a server that admits a burst of two requests and then one a second, and sends it five, one after
//! the other. The first two are admitted immediately. Each of the others is denied with `Retry-After: 1`,
//! waits that second and up to a tenth more, and is admitted. All five are done after a little more than
//! three seconds.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{error::Error, net::SocketAddr, time::Instant};

use axum::{Router, routing::get};
use reqwest::{Client, Method, Request};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt, retry::RetryLayer};
use tower_ratelimit::{MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
use tower_ratelimit_retry::RetryPolicy;

fn app() -> Router {
    let policy = Policy::new("per-ip", Quota::per_second(1).burst(2));
    Router::new().route("/{order}", get(async || "done")).layer(RateLimitLayer::new(
        MemoryStore::new(),
        policy,
        PeerIp::new(),
    ))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await
    });

    let client = Client::builder().no_proxy().build()?;
    let mut client = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::new())).service(client);

    let start = Instant::now();
    for order in 1..=5 {
        let request = Request::new(Method::GET, format!("http://{address}/{order}").parse()?);
        let response = client.ready().await?.call(request).await?.error_for_status()?;
        println!("{:.2} s  order {order}: {}", start.elapsed().as_secs_f64(), response.text().await?);
    }
    Ok(())
}
