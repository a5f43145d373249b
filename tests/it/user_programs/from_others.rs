//! Programs that come from other limiters.

use std::time::Duration;

use axum::{Router, routing::get};
use support::http::{Client, serve};
use tower_ratelimit::{
    FailureMode, MemoryStore, PeerIp, Policy, Quota, RateLimitHeaders, RateLimitLayer, Rule,
    algorithm::FixedWindow,
    response::Dialect,
    store::{ManualClock, Store},
};

/// `GovernorConfigBuilder::default().per_second(2).burst_size(5)`: a request every two seconds.
fn from_tower_governor(store: impl Store) -> RateLimitLayer {
    let policy = Policy::new("api", "1/2s burst 5".parse::<Quota>().unwrap());
    RateLimitLayer::new(store, policy, PeerIp::new()).headers(RateLimitHeaders::new(Dialect::LegacyDelta))
}

/// `rateLimit({ windowMs: 15 * 60 * 1000, limit: 100, skipSuccessfulRequests: true, passOnStoreError: true, skip })`.
fn from_express(store: impl Store) -> RateLimitLayer {
    let policy = Policy::new("default", "100/15min".parse::<Quota>().unwrap())
        .algorithm(FixedWindow::anchored())
        .failure_mode(FailureMode::Open);
    let rule = Rule::new(policy, PeerIp::new()).count_if(|response| response.status.is_client_error());
    RateLimitLayer::with_rules(store, rule)
        .exempt_if(|request| request.uri.path() == "/health")
        .headers(RateLimitHeaders::new(Dialect::IetfDraft06))
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "hello")).route("/health", get(async || "ok")).layer(layer)
}

#[tokio::test]
async fn the_limits_and_headers_match_the_other_limiters() {
    let clock = ManualClock::new();
    let client = Client::new();
    let governor = serve(app(from_tower_governor(MemoryStore::with_clock(clock.clone())))).await;
    let ask = async |path: &str| client.get(&format!("http://{governor}{path}")).await;
    for _ in 0..5 {
        assert_eq!(ask("/").await.status(), 200);
    }
    let denied = ask("/").await;
    assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"2".parse().unwrap()));
    assert_eq!(denied.headers()["x-ratelimit-remaining"], "0");
    clock.advance(Duration::from_secs(2));
    assert_eq!(ask("/").await.status(), 200);

    let express = serve(app(from_express(MemoryStore::with_clock(clock.clone())))).await;
    let ask = async |path: &str| client.get(&format!("http://{express}{path}")).await;
    for _ in 0..150 {
        // Successful requests are not counted.
        assert_eq!(ask("/").await.status(), 200);
    }
    for _ in 0..100 {
        assert_eq!(ask("/nowhere").await.status(), 404);
    }
    let denied = ask("/").await;
    assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"900".parse().unwrap()));
    assert_eq!(denied.headers()["ratelimit-policy"], "100;w=900");
    assert_eq!(ask("/health").await.status(), 200);
}
