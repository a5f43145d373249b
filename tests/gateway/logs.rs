//! Log lines, and what they never contain.

use axum::{Router, body::Body, routing::post};
use http::Request;
use http_body_util::Full;
use support::{Lines, day};
use tower::ServiceExt as _;
use tower_ratelimit::{Key, Limiter, MemoryStore, RateLimitLayer, Reservation, layer::Rules};
use tower_ratelimit_gateway::{
    body::BufferBodyLayer,
    prices::{Api, Price, Prices, UsageMeter},
};

#[tokio::test]
async fn a_buffer_inside_the_limits_is_logged_with_what_is_missing() {
    let (lines, _guard) = Lines::listen();
    let meter = UsageMeter::new(Prices::new("1").model("model", Price::new("1", "1")));
    let rules = Rules::new()
        .always(meter.tokens_rule(day("tokens", 100), Key::new("all")))
        .always(meter.money_rule(day("money", 100), Key::new("all")));
    let limits = RateLimitLayer::with_rules(MemoryStore::new(), rules);
    let buffer = BufferBodyLayer::new(100).parse_with(meter.parser(Api::OpenAiChat));
    // In the wrong order.
    let app = Router::new().route("/", post(async || "")).layer(buffer).layer(limits);
    for _ in 0..3 {
        let request = Request::post("/").body(Body::from(r#"{ "model": "model" }"#)).unwrap();
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), 500);
    }
    assert_eq!(lines.with("misconfigured"), 1, "{}", lines.text());
    let missing = "the request's extensions do not contain `tower_ratelimit_gateway::prices::call::Call`";
    assert_eq!(lines.with(missing), 1, "{}", lines.text());
}

#[tokio::test]
async fn an_encoded_answer_is_one_warning_and_no_line_has_the_text_of_a_model_that_a_client_chose() {
    let (lines, _guard) = Lines::listen();
    let prices = Prices::new("1").model("gpt-*", Price::new("1", "1"));
    let meter = UsageMeter::new(prices).tokens_unit(None).money_unit(None);
    let limiter = Limiter::new(MemoryStore::new());
    for _ in 0..2 {
        let decision = limiter.check(&day("p", 9), &Key::new("all"), 1).await.unwrap();
        let call = meter.call(Api::OpenAiChat, br#"{ "model": "gpt-4\nERROR forged" }"#).unwrap();
        let answer = http::Response::builder()
            .header("content-encoding", "gzip")
            .body(Full::<bytes::Bytes>::from("x"))
            .unwrap();
        let sent = call.metered(Reservation::new(&limiter, &decision), async { Ok::<_, ()>(answer) });
        drop(sent.await.unwrap());
    }
    let text = lines.text();
    assert_eq!(lines.with("the usage of an encoded body cannot be read"), 1, "{text}");
    assert!(text.contains("gpt-") && !text.contains("forged"), "{text}");
}
