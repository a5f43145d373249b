//! An API for pages of other origins, with rate limit headers that their scripts can read.
//!
//! Run with
//!
//! ```text
//! cargo run --example cors
//! ```
//!
//! and open the page that it prints, or send the request of a browser twice:
//!
//! ```text
//! curl -i -H 'origin: http://page.example' http://127.0.0.1:3000/
//!     200
//!     access-control-allow-origin: *
//!     ratelimit: "per-ip";r=0;t=60
//! curl -i -H 'origin: http://page.example' http://127.0.0.1:3000/
//!     429
//!     access-control-allow-origin: *
//!     retry-after: 60
//!     access-control-expose-headers: ratelimit,ratelimit-policy,retry-after
//! ```
//!
//! Without `Access-Control-Expose-Headers`, a script sees the 429 but not how long to wait. If the rate limit
//! is outside of the CORS layer, the script sees a network error. `.ci/browser-cors` tests this with
//! Chromium.
//!
//! `PORT` (3000) is the port of the API and `PAGE_PORT` (3001) the port of the page; 0 selects a free port.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, response::Html, routing::get};
use http::{HeaderName, Method};
use tokio::net::TcpListener;
use tower_http::cors::{Any, CorsLayer};
use tower_ratelimit::{Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitHeaders, RateLimitLayer};

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let policy = Policy::new("per-ip", Quota::per_minute(1));
    let headers = RateLimitHeaders::default();
    let limit = RateLimitLayer::new(limiter, policy, PeerIp::new()).headers(headers.clone());
    let cors = CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([HeaderName::from_static("x-asks")])
        .expose_headers(headers.names());
    // The layer added last is the outermost, so it also handles rejections.
    Router::new().route("/", get(async || "hello\n")).layer(limit).layer(cors)
}

/// A page that sends two requests to `api` and shows the headers that it can read. Because of the custom
/// header, the browser sends a preflight request first, which the CORS layer answers.
fn page(api: SocketAddr) -> Router {
    let page = include_str!("cors.html").replace("API", &format!("http://{api}/"));
    Router::new().route("/", get(async move || Html(page)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let port = |name, default| env::var(name).map_or(Ok(default), |port| port.parse::<u16>());
    let api = TcpListener::bind(("127.0.0.1", port("PORT", 3000)?)).await?;
    let pages = TcpListener::bind(("127.0.0.1", port("PAGE_PORT", 3001)?)).await?;
    println!("the API is http://{}", api.local_addr()?);
    println!("the page is http://{}", pages.local_addr()?);
    let page = page(api.local_addr()?);
    tokio::spawn(async move { axum::serve(pages, page).await });
    let app = app(MemoryStore::new());
    axum::serve(api, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
