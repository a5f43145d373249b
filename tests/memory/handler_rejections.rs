//! A rejection that a handler returns is answered by the layer in front of it, in the layer's format.

use std::time::Duration;

use axum::{Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use serde_json::Value;
use support::inner::text;
use tower::ServiceExt as _;
use tower_http::compression::CompressionLayer;
use tower_ratelimit::{
    Error, ErrorKind, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection,
    response::{GrpcStatus, ProblemDetails, ResponseMapper},
    store::ManualClock,
};

use crate::responses::{check, ours};

fn layer(name: &str) -> RateLimitLayer {
    let store = MemoryStore::with_clock(ManualClock::new());
    RateLimitLayer::new(store, Policy::new(name, Quota::per_minute(100)), Key::new("all"))
}

fn exports() -> Policy {
    Policy::new("exports", Quota::per_hour(1))
}

/// Admits one request an hour.
async fn export(limiter: Limiter) -> Result<&'static str, Rejection> {
    limiter.check(&exports(), &Key::new("alice"), 1).await?.into_result()?;
    Ok("exported")
}

async fn ask(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

fn request(method: &str) -> Request<Body> {
    let request = Request::builder().method(method).uri("/export?x=1").header("user-agent", "tester");
    request.extension(7_u32).body(Body::empty()).unwrap()
}

fn values(response: &Response<Body>, name: &str) -> Vec<String> {
    response.headers().get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn it_is_answered_in_the_format_of_the_innermost_layer_that_is_enabled() {
    check("responses-of-handlers.txt").await;
    assert!(!ProblemDetails::default().reads_request() && !GrpcStatus::default().reads_request());
    assert!(ours.reads_request());
}

#[test]
fn the_cause_of_a_rejection_is_its_source() {
    let kinds = [ErrorKind::MissingIdentity, ErrorKind::UnknownIdentity, ErrorKind::StoreTimeout];
    let others = [ErrorKind::IdentityUnavailable, ErrorKind::MissingSetup, ErrorKind::InvalidConfig];
    for kind in kinds.into_iter().chain(others) {
        let rejection = Rejection::from(Error::new(kind, "the cause"));
        let source = std::error::Error::source(&rejection).map(ToString::to_string);
        assert_eq!(source.as_deref(), Some("the cause"), "{kind:?}");
    }
}

#[tokio::test]
async fn the_status_and_headers_that_the_handler_set_are_kept() {
    let handler = async || {
        let rejection = Rejection::from(Error::new(ErrorKind::MissingIdentity, "no key"));
        (StatusCode::FORBIDDEN, [("set-cookie", "a=1"), ("x-request-id", "r1")], rejection)
    };
    // Between the layer and the handler, a layer that describes the body it has compressed.
    let app = Router::new()
        .route("/export", get(handler))
        .layer(CompressionLayer::new().compress_when(|_: StatusCode, _, _: &_, _: &_| true))
        .layer(layer("api").response(ours));
    let mut zipped = request("GET");
    zipped.headers_mut().insert("accept-encoding", "gzip".parse().unwrap());
    let rejection = ask(&app, zipped).await;
    assert_eq!(rejection.status(), 403);
    assert_eq!(values(&rejection, "set-cookie"), ["a=1"]);
    assert_eq!(values(&rejection, "x-request-id"), ["r1"]);
    assert_eq!(values(&rejection, "content-type"), ["application/json"]);
    assert!(!rejection.headers().contains_key("content-encoding"));
    assert!(text(rejection).await.contains("no key"));
}

#[tokio::test]
async fn the_jitter_of_the_layer_is_in_a_handlers_rejection() {
    let jittered = layer("api").retry_after_jitter(Duration::from_secs(1_000_000));
    let app = Router::new().route("/export", get(export)).layer(jittered);
    ask(&app, request("GET")).await;
    let rejection = ask(&app, request("GET")).await;
    let wait: u64 = values(&rejection, "retry-after")[0].parse().unwrap();
    // One in a million waits for a second at most.
    assert!(wait > 3_601, "{wait}");
    // The wait of the text is the same, rounded up.
    let said: Value = serde_json::from_str(&text(rejection).await).unwrap();
    let words: Vec<_> = said["detail"].as_str().unwrap().trim_end_matches('.').split(' ').skip(3).collect();
    let seconds = |name: &str| match name.trim_end_matches('s') {
        "day" => 86_400,
        "hour" => 3_600,
        "minute" => 60,
        _ => 1,
    };
    let stated: u64 = words.chunks(2).map(|pair| pair[0].parse::<u64>().unwrap() * seconds(pair[1])).sum();
    assert!((wait..wait + 3_600).contains(&stated), "{wait}: {said}");
}
