//! A stream of a language model's tokens: a client that closes its connection is charged what it was sent.
//!
//! Run with
//!
//! ```text
//! cargo run --example llm_stream --features axum
//! ```
//!
//! and, in another terminal, run the lines right after each other. An API key may use 1,000 tokens per hour.
//! A word is a token. Every 50 ms, the model repeats the last word of the prompt, `x-max-tokens` times
//! (default 100).
//!
//! ```text
//! curl -N -H 'x-api-key: k-ann' -H 'x-max-tokens: 3' -d 'say hello' http://127.0.0.1:3000/stream
//!     200
//!     hello hello hello
//! curl -H 'x-api-key: k-ann' http://127.0.0.1:3000/left
//!     200
//!     995
//! curl -H 'x-api-key: k-ann' -H 'x-max-tokens: 996' -d 'say hello' http://127.0.0.1:3000/stream
//!     429
//! ```
//!
//! The first request reserves five tokens, two of them for its prompt. The last one could need more than are
//! left. Press Ctrl-C during a longer stream: `/left` shows that the words sent so far are charged and the
//! rest of the estimate is refunded.
//!
//! Press Ctrl-C in the first terminal: the service finishes running streams and charges them before it ends.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{convert::Infallible, env, error::Error as StdError, net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::HeaderMap,
    routing::{get, post},
};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::{net::TcpListener, signal, time::sleep};
use tower_ratelimit::{
    Header, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule,
};

const API_KEY: &str = "x-api-key";

fn tokens() -> Policy {
    Policy::new("tokens", Quota::per_hour(1_000))
}

/// The most tokens that the answer may have.
fn max_tokens(headers: &HeaderMap) -> u64 {
    let max = headers.get("x-max-tokens").and_then(|value| value.to_str().ok()?.parse().ok());
    max.unwrap_or(100)
}

/// A language model.
fn answer(prompt: &str, max_tokens: u64) -> impl Stream<Item = String> + Send + 'static {
    let word = prompt.split_whitespace().last().unwrap_or_default().to_owned();
    stream::iter(0..max_tokens).then(move |_| {
        let word = format!("{word} ");
        async move {
            sleep(Duration::from_millis(50)).await;
            word
        }
    })
}

async fn complete(reservation: Reservation, headers: HeaderMap, prompt: String) -> Body {
    let mut used = prompt.split_whitespace().count() as u64;
    reservation.record(used);
    let words = answer(&prompt, max_tokens(&headers)).map(move |word| {
        used += 1;
        // The stream has a handle on the reservation. It settles at this number when the stream ends, whether
        // the client stays or not.
        reservation.record(used);
        Ok::<_, Infallible>(word)
    });
    Body::from_stream(words)
}

/// The tokens that the caller has left.
async fn left(State(limiter): State<Limiter>, headers: HeaderMap) -> Result<String, Rejection> {
    let api_key = headers.get(API_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let decision = limiter.peek(&tokens(), &Key::new(api_key), 0).await?;
    Ok(format!("{}\n", decision.remaining().unwrap_or_default()))
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let limiter = limiter.into();
    // A hundred requests a minute, and the tokens of each. The estimate: a short prompt and the longest
    // answer.
    let requests = Policy::new("requests", Quota::per_minute(100));
    let estimated = Rule::new(tokens(), Header::new(API_KEY))
        .cost(|request| 2 + max_tokens(&request.headers))
        .reserve_or_refund();
    let layer = RateLimitLayer::new(limiter.clone(), requests, Header::new(API_KEY)).rule(estimated);
    Router::new().route("/stream", post(complete).layer(layer)).route("/left", get(left)).with_state(limiter)
}

/// Serves until Ctrl-C, then until all responses have ended.
#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let limiter = Limiter::new(MemoryStore::new());
    let service = app(limiter.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let stop = async {
        // Without the signal, it stops too.
        drop(signal::ctrl_c().await);
    };
    axum::serve(listener, service).with_graceful_shutdown(stop).await?;
    // On Redis, the last settlements may be under way.
    limiter.drain(Duration::from_secs(5)).await?;
    Ok(())
}
