//! A gateway to a language model: a stream is charged the tokens that were sent, even if the client leaves.

use std::{convert::Infallible, time::Duration};

use axum::{Router, body::Body, routing::post};
use futures_util::{StreamExt as _, stream};
use http::Request;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use tower_ratelimit::{
    Header, Key, Limiter, ManualClock, MemoryStore, Policy, Quota, RateLimitLayer, Reservation, Rule,
};

fn tokens() -> Policy {
    Policy::new("tokens", Quota::per_hour(1_000)).debt(1_000)
}

fn app(limiter: impl Into<Limiter>) -> Router {
    // 100 is the estimate.
    let tokens = Rule::new(tokens(), Header::new("x-api-key")).cost(|_| 100).reserve();
    let limit = RateLimitLayer::with_rules(limiter, tokens);
    Router::new().route("/chat", post(chat)).layer(limit)
}

async fn chat(reservation: Reservation, prompt: String) -> Body {
    let asked = prompt.split_whitespace().count() as u64;
    reservation.record(asked);
    let answer = stream::iter(1..=20).map(move |token: u64| {
        // The last number counts, regardless of who ends the stream.
        reservation.record(asked + token);
        Ok::<_, Infallible>(format!("data: {token}\n\n"))
    });
    Body::from_stream(answer)
}

#[tokio::test]
async fn a_stream_costs_what_was_sent_also_to_a_client_that_leaves() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let alice = Key::new("alice");
    let left = async || limiter.peek(&tokens(), &alice, 0).await.unwrap().remaining();
    let ask = async || {
        let request = Request::post("/chat").header("x-api-key", "alice").body(Body::from("say some words"));
        app(limiter.clone()).oneshot(request.unwrap()).await.unwrap()
    };
    let response = ask().await;
    assert_eq!(left().await, Some(900));
    response.into_body().collect().await.unwrap();
    limiter.drain(Duration::from_secs(5)).await.unwrap();
    assert_eq!(left().await, Some(1_000 - 3 - 20));

    let mut gone = ask().await.into_body();
    for _ in 0..7 {
        gone.frame().await.unwrap().unwrap();
    }
    drop(gone);
    limiter.drain(Duration::from_secs(5)).await.unwrap();
    assert_eq!(left().await, Some(1_000 - 3 - 20 - 3 - 7));
}
