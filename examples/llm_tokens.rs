//! Tokens of a language model: a request reserves an estimate, and the answer settles what it cost.
//!
//! Run with
//!
//! ```text
//! cargo run --example llm_tokens --features axum
//! ```
//!
//! and, in another terminal, run the lines right after each other. An API key may use 1,000 tokens per hour,
//! plus 200 of debt. A word is a token. `x-max-tokens` is the longest answer (default 100). The model answers
//! with twice as many words as the prompt has.
//!
//! ```text
//! curl -i -H 'x-api-key: k-ann' -d 'one two three' http://127.0.0.1:3000/complete
//!     200
//!     x-tokens-used: 9
//!     x-tokens-left: 991
//! curl -i -H 'x-api-key: k-ann' -H 'x-max-tokens: 900' -d 'one two three' http://127.0.0.1:3000/complete
//!     200
//!     x-tokens-used: 9
//!     x-tokens-left: 982
//! curl -i -H 'x-api-key: k-ann' -H 'x-max-tokens: 990' -d 'one two three' http://127.0.0.1:3000/complete
//!     429
//! curl -i -H 'x-api-key: k-ann' -d 'fail' http://127.0.0.1:3000/complete
//!     500
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/left
//!     200
//!     982
//! ```
//!
//! The third request could need more tokens than are left, so it is denied before the model runs. The fourth
//! fails, so its estimate is refunded.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error as StdError, net::SocketAddr};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::net::TcpListener;
use tower_ratelimit::{
    Header, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule,
};

const API_KEY: &str = "x-api-key";

fn tokens() -> Policy {
    Policy::new("tokens", Quota::per_hour(1_000)).max_debt(200)
}

/// The most tokens that the answer may have.
fn max_tokens(headers: &HeaderMap) -> u64 {
    let max = headers.get("x-max-tokens").and_then(|value| value.to_str().ok()?.parse().ok());
    max.unwrap_or(100)
}

/// A language model: a word is a token.
fn answer(prompt: &str) -> Option<String> {
    (!prompt.contains("fail")).then(|| format!("{prompt} {prompt}"))
}

async fn complete(reservation: Reservation, prompt: String) -> Result<Response, Rejection> {
    let Some(answer) = answer(&prompt) else {
        // Not settled, so the estimate is refunded.
        return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response());
    };
    let used = (prompt.split_whitespace().count() + answer.split_whitespace().count()) as u64;
    let decision = reservation.settle(used).await?;
    let left = decision.remaining().unwrap_or_default();
    let headers = [("x-tokens-used", used.to_string()), ("x-tokens-left", left.to_string())];
    Ok((headers, answer).into_response())
}

/// The tokens that the caller has left.
async fn left(State(limiter): State<Limiter>, headers: HeaderMap) -> Result<String, Rejection> {
    let api_key = headers.get(API_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let decision = limiter.peek(&tokens(), &Key::new(api_key), 0).await?;
    Ok(format!("{}\n", decision.remaining().unwrap_or_default()))
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let limiter = limiter.into();
    // A hundred requests a minute, and the tokens of each: an estimate until the answer is known.
    let requests = Policy::new("requests", Quota::per_minute(100));
    let estimated = Rule::new(tokens(), Header::new(API_KEY))
        .cost(|request| max_tokens(&request.headers))
        .reserve_or_refund();
    let layer = RateLimitLayer::new(limiter.clone(), requests, Header::new(API_KEY)).rule(estimated);
    Router::new()
        .route("/complete", post(complete).layer(layer))
        .route("/left", get(left))
        .with_state(limiter)
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
