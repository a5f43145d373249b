//! A page on which you try a limit before you write it: an algorithm, a quota and a traffic, or two algorithms under
//! the same traffic.
//!
//! Run with
//!
//! ```text
//! cargo run --example playground
//! ```
//!
//! and open the page that it prints. The setup is in the page's address, so you can share it. The page also shows the
//! setup as Rust code and as TOML for `tower-ratelimit-operate`.
//!
//! Each verdict on the page is the response to a request that this process sends through a `RateLimitLayer`. In
//! simulated time, the store has a `ManualClock`, so a month takes seconds. `/api/run?SETUP` returns the same
//! numbers, a line of JSON per frame; an invalid setup gets a 400 that states the field:
//!
//! ```text
//! curl 'http://127.0.0.1:3000/api/run?algorithm=gcra&limit=0'
//!     400
//!     {"error":"`limit` must be a whole number from 1 to 1000, not `0`","field":"limit"}
//! curl 'http://127.0.0.1:3000/api/run?algorithm=fixed-window&burst=20'
//!     400
//!     {"error":"a fixed window has no burst: leave out `burst`, or use `Gcra`","field":"algorithm"}
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one. With `REDIS_URL`, such as `redis://127.0.0.1:6379`, the setup can
//! have Redis as its store.

#![allow(clippy::print_stdout, reason = "the example prints its address")]

mod code;
pub(crate) mod setup;
mod simulation;
mod stores;
pub(crate) mod traffic;

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    body::Body,
    extract::{RawQuery, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{Html, IntoResponse, Response},
    routing::{get, put},
};
use futures_util::stream;
use serde_json::json;
use tokio::{net::TcpListener, sync::mpsc};

use self::{
    setup::{Invalid, Setup},
    stores::Stores,
};

/// What all runs share.
#[derive(Clone, Debug)]
struct Playground {
    redis_url: Option<String>,
    /// The switch on the page that makes the stores of all runs fail.
    is_failing: Arc<AtomicBool>,
}

/// The page and its API. Without a URL, no setup can have Redis as its store.
pub(crate) fn app(redis_url: Option<String>) -> Router {
    let page = setup::fill_in(include_str!("page.html"), redis_url.is_some());
    Router::new()
        .route("/", get(async move || Html(page)))
        .route("/page.css", get(async || ([(CONTENT_TYPE, "text/css")], include_str!("page.css"))))
        .route("/page.js", get(async || ([(CONTENT_TYPE, "text/javascript")], include_str!("page.js"))))
        .route("/api/run", get(run))
        .route("/api/outage", put(set_outage))
        .with_state(Playground { redis_url, is_failing: Arc::default() })
}

/// Simulates the setup of the query. The body has a line of JSON for the setup, and one for each frame as soon as it
/// is known.
async fn run(State(playground): State<Playground>, RawQuery(query): RawQuery) -> Result<Response, Invalid> {
    let setup: Setup = query.unwrap_or_default().parse()?;
    let limits = setup.limits()?;
    let arrivals = setup.arrivals()?;
    let stores = Stores::open(&setup, limits.len(), &playground).await?;
    let (lines, received) = mpsc::unbounded_channel();
    simulation::start(simulation::Plan { setup, limits, arrivals, stores }, lines);
    let lines = stream::unfold(received, async |mut received| {
        let line: Result<String, std::convert::Infallible> = Ok(received.recv().await?);
        Some((line, received))
    });
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

/// Makes the stores of all runs fail, or answer again.
async fn set_outage(State(playground): State<Playground>, Json(fails): Json<bool>) -> StatusCode {
    playground.is_failing.store(fails, Ordering::Relaxed);
    StatusCode::NO_CONTENT
}

impl IntoResponse for Invalid {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.message, "field": self.field });
        (StatusCode::BAD_REQUEST, Json(body)).into_response()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::ERROR).init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to another"))?;
    println!("the page is http://{}", listener.local_addr()?);
    axum::serve(listener, app(env::var("REDIS_URL").ok())).await?;
    Ok(())
}
