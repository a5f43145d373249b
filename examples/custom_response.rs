//! Custom rejections: by a closure, by a type, and a layer that only reports, under which the handler returns
//! less.
//!
//! Run with
//!
//! ```text
//! cargo run --example custom_response
//! ```
//!
//! and, in another terminal, request each route twice. The limit is one request a minute.
//!
//! ```text
//! curl -i http://127.0.0.1:3000/json
//!     200
//!     ratelimit: "json";r=0;t=60
//!     hello
//! curl -i http://127.0.0.1:3000/json
//!     429
//!     retry-after: 60
//!     content-type: application/json
//!     {"error":"slow down","seconds":60}
//! curl -i -H 'accept: text/html' http://127.0.0.1:3000/page
//!     200
//!     ratelimit: "page";r=0;t=60
//!     hello
//! curl -i -H 'accept: text/html' http://127.0.0.1:3000/page
//!     429
//!     retry-after: 60
//!     content-type: text/html
//!     <h1>429 Too Many Requests</h1>
//! curl -i http://127.0.0.1:3000/page
//!     429
//!     retry-after: 60
//!     content-type: application/problem+json
//! curl -i http://127.0.0.1:3000/search
//!     200
//!     ratelimit: "search";r=0;t=60
//!     ten results
//! curl -i http://127.0.0.1:3000/search
//!     200
//!     x-ratelimit-exceeded: "search"
//!     one result, from the cache
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr};

use axum::{Json, Router, routing::get};
use http::{
    HeaderValue, Response,
    header::{ACCEPT, CONTENT_TYPE},
    request::Parts,
};
use serde_json::json;
use tokio::net::TcpListener;
use tower_ratelimit::{
    Decision, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rejection,
    policy::Enforcement,
    response::{ProblemDetails, RejectionBody, ResponseMapper},
};

/// Responds with a page to browsers, and with the default problem to other clients.
struct Page;

impl ResponseMapper for Page {
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        let accepted = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        if !accepted.is_some_and(|types| types.contains("text/html")) {
            return ProblemDetails::default().response(rejection, request);
        }
        let page = format!("<h1>{}</h1>\n", rejection.status());
        let mut response = Response::new(RejectionBody::new(page));
        *response.status_mut() = rejection.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
        response
    }
}

/// The layer only reports: a client over the limit gets fewer results instead of a rejection.
async fn search(decision: Decision) -> &'static str {
    if decision.is_admitted() { "ten results\n" } else { "one result, from the cache\n" }
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let limiter = limiter.into();
    let limit =
        |name| RateLimitLayer::new(limiter.clone(), Policy::new(name, Quota::per_minute(1)), PeerIp::new());
    // The closure returns anything that axum converts to a response. It sets no status, so the layer uses the
    // rejection's status. The layer always adds `Retry-After` and the other headers.
    let json = |rejection: &Rejection, _: &Parts| {
        Json(json!({ "error": "slow down", "seconds": rejection.retry_after_seconds() }))
    };
    Router::new()
        .route("/json", get(async || "hello\n").layer(limit("json").response(json)))
        .route("/page", get(async || "hello\n").layer(limit("page").response(Page)))
        .route("/search", get(search).layer(limit("search").enforcement(Enforcement::ReportOnly)))
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
