//! A proxy in front of a language model's vendor: each API key has a budget, and pays what its answers report.
//!
//! Run with
//!
//! ```text
//! cargo run -p tower-ratelimit-gateway --example llm_prices
//! ```
//!
//! and, in another terminal, run the lines right after each other. An API key may spend a dollar a day. The
//! vendor is part of this program: a word is a token, and it repeats the prompt.
//!
//! ```text
//! curl -i -H 'x-api-key: k-ann' -d '{ "model": "small", "max_tokens": 50, "messages": [{ "role": "user", "content": "say hello to the world" }] }' http://127.0.0.1:3000/v1/chat/completions
//!     200
//!     {"choices":[{"message":{"content":"say hello to the world","role":"assistant"}}],"usage":{"completion_tokens":5,"prompt_tokens":5}}
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/left
//!     200
//!     999996 micro-dollars
//! curl -i -H 'x-api-key: k-ann' -d '{ "model": "small-2025-06-01", "stream": true, "messages": [{ "role": "user", "content": "say hello to the world" }] }' http://127.0.0.1:3000/v1/chat/completions
//!     200
//!     content-type: text/event-stream
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/left
//!     200
//!     999992 micro-dollars
//! curl -i -H 'x-api-key: k-ann' -d '{ "model": "large", "max_tokens": 20000, "messages": [] }' http://127.0.0.1:3000/v1/chat/completions
//!     429
//! curl -i -H 'x-api-key: k-ann' -d '{ "model": "large", "messages": [{ "role": "user", "content": "fail" }] }' http://127.0.0.1:3000/v1/chat/completions
//!     503
//! curl -i -H 'x-api-key: k-ann' -d '{ "model": "huge", "messages": [] }' http://127.0.0.1:3000/v1/chat/completions
//!     400
//!     the model "huge" is not available
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/left
//!     200
//!     999992 micro-dollars
//! ```
//!
//! Five tokens of a prompt at 0.15 dollars a million and five of an answer at 0.60 are 3.75 micro-dollars,
//! rounded up. The answer to the large model could cost 1.5 dollars, so its request is denied before it is
//! sent. What fails is refunded.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{convert::Infallible, env, error::Error as StdError, net::SocketAddr};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response, StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_ratelimit::{
    Header, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule,
};
use tower_ratelimit_gateway::prices::{Api, Price, Prices, UsageMeter};

const API_KEY: &str = "x-api-key";

/// A dollar a day. What an answer costs above its estimate is paid later.
fn budget() -> Policy {
    Policy::new("budget", Quota::per_day(1_000_000)).max_debt(100_000)
}

/// `LivePrices` of `tower-ratelimit-operate` reads them from a file instead, and follows it.
fn prices() -> Prices {
    // It sends all tokens that it bills, so a client that leaves is charged what it got.
    let small = Price::new("0.15", "0.60").cached_input("0.075").count_text();
    Prices::new("2025-06")
        .model("small", small)
        // The names with a date.
        .model("small-20*", small)
        .model("large", Price::new("15", "75"))
}

/// Stands for the vendor. A proxy sends the request with its own HTTP client.
async fn vendor(_headers: HeaderMap, body: Bytes) -> Result<Response<Body>, Infallible> {
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let prompt = request["messages"][0]["content"].as_str().unwrap_or_default();
    if prompt == "fail" {
        return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
    }
    let words = prompt.split_whitespace().count();
    let usage = json!({ "completion_tokens": words, "prompt_tokens": words });
    if request["stream"] != json!(true) {
        let message = json!({ "content": prompt, "role": "assistant" });
        return Ok(axum::Json(json!({ "choices": [{ "message": message }], "usage": usage })).into_response());
    }
    let words =
        prompt.split_inclusive(' ').map(|word| json!({ "choices": [{ "delta": { "content": word } }] }));
    let asks = request["stream_options"]["include_usage"] == json!(true);
    let last = asks.then(|| json!({ "choices": [], "usage": usage }));
    let events =
        words.chain(last).map(|event| format!("data: {event}\n\n")).chain(["data: [DONE]\n\n".to_owned()]);
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], events.collect::<String>()).into_response())
}

async fn complete(
    State((_, meter)): State<(Limiter, UsageMeter)>,
    reservation: Reservation,
    mut headers: HeaderMap,
    mut body: Bytes,
) -> Result<Response<Body>, Rejection> {
    let prepared = meter.call(Api::OpenAiChat, &body).and_then(|mut call| {
        // Asks for an answer that can be metered. The client gets what it has asked for.
        call.prepare(&mut headers, &mut body)?;
        Ok(call)
    });
    let call = match prepared {
        Ok(call) => call,
        Err(error) => return Ok((StatusCode::BAD_REQUEST, error.to_string()).into_response()),
    };
    // Charges what the call may cost, or rejects the request.
    call.charge(&reservation).await?.into_result()?;
    match call.metered(reservation, vendor(headers, body)).await {
        Ok(answer) => Ok(answer.map(Body::new)),
        Err(_) => Ok(StatusCode::BAD_GATEWAY.into_response()),
    }
}

/// What is left of the caller's budget.
async fn left(
    State((limiter, _)): State<(Limiter, UsageMeter)>,
    headers: HeaderMap,
) -> Result<String, Rejection> {
    let api_key = headers.get(API_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let decision = limiter.peek(&budget(), &Key::new(api_key), 0).await?;
    Ok(format!("{} micro-dollars\n", decision.remaining().unwrap_or_default()))
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let limiter = limiter.into();
    // A hundred requests a minute, and the money of each. Its cost is known once the handler has read the
    // body.
    let requests = Policy::new("requests", Quota::per_minute(100));
    let money =
        Rule::new(budget(), Header::new(API_KEY)).cost(|_| 0).unit("micro-dollars").reserve_or_refund();
    let layer = RateLimitLayer::new(limiter.clone(), requests, Header::new(API_KEY)).rule(money);
    let meter = UsageMeter::new(prices()).tokens_unit(None);
    Router::new()
        .route("/v1/chat/completions", post(complete).layer(layer))
        .route("/left", get(left))
        .with_state((limiter, meter))
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
