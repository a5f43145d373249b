//! A client that retries denied requests after the wait that the server sets.
//!
//! Run with
//!
//! ```text
//! cargo run -p example-client-retry
//! ```
//!
//! It starts a server that admits two requests at once and then one a second, sends it five, one after
//! the other, and prints each attempt: the first two are admitted at once, each of the others is denied
//! with `Retry-After: 1`, waits that second and up to a tenth more, and is admitted. All five are done
//! after a bit more than three seconds.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{error::Error, net::SocketAddr, time::Instant};

use axum::{Router, routing::get};
use http::{Request, Response, header::RETRY_AFTER};
use reqwest::{Body, Client};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt, retry::RetryLayer};
use tower_ratelimit::{MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, retry::RetryPolicy};

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

    let start = Instant::now();
    let http = Client::builder().no_proxy().build()?;
    // One attempt. reqwest has its own request and response types, which convert from and to those of `http`.
    let attempt = tower::service_fn(move |request: Request<String>| {
        let http = http.clone();
        async move {
            let path = request.uri().path().to_owned();
            let response: Response<Body> = http.execute(request.try_into()?).await?.into();
            let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let wait = after.map(|seconds| format!(", retry after {seconds} s")).unwrap_or_default();
            println!("{:5.2} s  GET {path}: {}{wait}", start.elapsed().as_secs_f64(), response.status());
            Ok::<_, reqwest::Error>(response)
        }
    });
    let mut client = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::default())).service(attempt);

    for order in 1..=5 {
        let request = Request::get(format!("http://{address}/{order}")).body(String::new())?;
        let response = client.ready().await?.call(request).await?;
        if !response.status().is_success() {
            return Err(format!("order {order} was not admitted: {}", response.status()).into());
        }
    }
    println!("{:5.2} s  all five are done", start.elapsed().as_secs_f64());
    Ok(())
}
