//! The route on which clients see their own limits: the module `usage`.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Body, routing::get};
use http::{Method, Request, Response, Uri, request::Parts};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Header, Key, Limiter, MemoryStore, Policy,
    PolicySource, Quota, RateLimitLayer, Rejection, Rule,
    layer::Rules,
    policy::{Enforcement, Penalty, QuotaUnit},
    store::{Action, ManualClock, Store},
};
use tower_ratelimit_operate::usage::UsageRoute;

/// A store that notes what it does.
#[derive(Clone)]
struct Noted {
    store: MemoryStore,
    actions: Arc<Mutex<Vec<Action>>>,
}

impl Noted {
    fn new() -> Self {
        Self { store: MemoryStore::with_clock(ManualClock::new()), actions: Arc::default() }
    }

    fn take(&self) -> Vec<Action> {
        std::mem::take(&mut self.actions.lock().unwrap())
    }
}

impl Store for Noted {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        self.actions.lock().unwrap().push(action);
        self.store.decide(action, charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.store.reset(policy, key)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

fn rule(name: &str, limit: u64) -> Rule {
    Rule::new(Policy::new(name, Quota::per_minute(limit)), Header::new("x-api-key"))
}

fn request(path: &str, api_key: &str) -> Request<Body> {
    Request::get(path).header("x-api-key", api_key).body(Body::empty()).unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Response<Value> {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// The name of each limit that the client sees, what is used, and what remains.
async fn seen(app: &Router, api_key: &str) -> Vec<(String, u64, u64)> {
    let response = send(app, request("/usage", api_key)).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["cache-control"]),
        (200, &"no-store".parse().unwrap())
    );
    let limits = response.body()["limits"].as_array().unwrap().clone();
    let limit = |limit: &Value| {
        let number = |name: &str| limit[name].as_u64().unwrap();
        (limit["policy"].as_str().unwrap().to_owned(), number("used"), number("remaining"))
    };
    limits.iter().map(limit).collect()
}

fn entry(name: &str, used: u64, remaining: u64) -> (String, u64, u64) {
    (name.to_owned(), used, remaining)
}

/// An app whose route `/` is behind `layer`, and the usage beside it.
fn app(layer: &RateLimitLayer, usage: UsageRoute) -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .route("/search", get(async || "found"))
        .layer(layer.clone())
        .route("/usage", usage.into_route())
}

#[tokio::test]
async fn one_usage_request_reads_the_store_once() {
    let store = Noted::new();
    let layer =
        RateLimitLayer::with_rules(store.clone(), Rules::new().always(rule("a", 5)).always(rule("b", 9)));
    let app = app(&layer, UsageRoute::new(&layer));
    send(&app, request("/", "k1")).await;
    store.take();
    for _ in 0..3 {
        assert_eq!(seen(&app, "k1").await, [entry("a", 1, 4), entry("b", 1, 8)]);
        assert!(matches!(store.take()[..], [Action::Peek]));
    }
}

#[tokio::test]
async fn a_client_sees_its_own_counts_and_no_key() {
    let layer = RateLimitLayer::with_rules(Noted::new(), rule("a", 5));
    let app = app(&layer, UsageRoute::new(&layer));
    for _ in 0..3 {
        send(&app, request("/", "secret-1")).await;
    }
    send(&app, request("/", "secret-2")).await;
    assert_eq!(seen(&app, "secret-1").await, [entry("a", 3, 2)]);
    assert_eq!(seen(&app, "secret-2").await, [entry("a", 1, 4)]);
    assert_eq!(seen(&app, "secret-3").await, [entry("a", 0, 5)]);
    let response = send(&app, request("/usage", "secret-1")).await;
    assert_eq!(
        response.body(),
        &json!({ "limits": [{
            "policy": "a", "quota": "5/min", "unit": "requests", "capacity": 5, "used": 3, "remaining": 2,
            "owed": 0, "reset_after": 36.0, "banned_for": null,
        }] })
    );
}

#[tokio::test]
async fn the_limits_of_other_routes_are_shown_as_if_the_client_requested_them() {
    let rules = Rules::new()
        .always(rule("all", 60))
        .route("/search", rule("search", 10))
        .route("POST /orders/{id}", rule("orders", 3))
        .route("/usage", rule("usage", 100))
        .fallback(rule("rest", 7));
    let layer = RateLimitLayer::with_rules(Noted::new(), rules);
    let search = || UsageRoute::new(&layer).of(Method::GET, Uri::from_static("/search"));
    let own = app(&layer, UsageRoute::new(&layer));
    assert_eq!(seen(&own, "k1").await, [entry("all", 0, 60), entry("usage", 0, 100)]);
    let both = search().of(Method::POST, Uri::from_static("/orders/7"));
    let listed = app(&layer, both.clone());
    send(&listed, request("/search", "k1")).await;
    let expected = [entry("all", 1, 59), entry("search", 1, 9), entry("orders", 0, 3)];
    assert_eq!(seen(&listed, "k1").await, expected);

    // In a nested router, whose requests have a shorter path.
    let nested = Router::new().route("/usage", both.into_route());
    let nested = Router::new().nest("/account", nested);
    let response = send(&nested, request("/account/usage", "k1")).await;
    let names: Vec<_> =
        response.body()["limits"].as_array().unwrap().iter().map(|limit| &limit["policy"]).collect();
    assert_eq!(names, ["all", "search", "orders"]);
}

#[tokio::test]
async fn one_policy_with_two_keys_is_shown_for_each_key_and_a_shared_rule_once() {
    let policy = Policy::new("a", Quota::per_minute(5));
    let by_user = Rule::new(policy.clone(), Header::new("x-user"));
    let by_api_key = Rule::new(policy, Header::new("x-api-key"));
    let rules =
        Rules::new().route("/", by_user).route("/search", by_api_key.clone()).route("/find", by_api_key);
    let layer = RateLimitLayer::with_rules(Noted::new(), rules);
    let usage = ["/", "/search", "/find"]
        .into_iter()
        .fold(UsageRoute::new(&layer), |usage, path| usage.of(Method::GET, Uri::from_static(path)));
    let app = app(&layer, usage);
    let with_user = |path| {
        let mut request = request(path, "k1");
        request.headers_mut().insert("x-user", "ann".parse().unwrap());
        request
    };
    send(&app, with_user("/search")).await;
    let response = send(&app, with_user("/usage")).await;
    let limits = response.body()["limits"].as_array().unwrap();
    assert_eq!(limits.iter().map(|limit| limit["used"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
}

#[tokio::test]
async fn the_limits_of_several_layers_are_shown_and_those_left_out_are_not() {
    let limiter = Limiter::new(Noted::new());
    let shared = Rule::new(Policy::new("shared", Quota::per_hour(9)), Key::new("all"));
    let trial = Rule::new(Policy::new("trial", Quota::per_hour(9)).shadow(), Header::new("x-api-key"));
    let outer =
        RateLimitLayer::with_rules(limiter.clone(), Rules::new().always(rule("outer", 5)).always(shared));
    let inner = RateLimitLayer::with_rules(limiter, Rules::new().always(rule("inner", 5)).always(trial))
        .enforcement(Enforcement::ReportOnly);
    let usage = UsageRoute::new(&outer).and(&inner);
    let app = |usage: UsageRoute| Router::new().route("/usage", usage.into_route());
    let both = [entry("outer", 0, 5), entry("shared", 0, 9), entry("inner", 0, 5)];
    assert_eq!(seen(&app(usage.clone()), "k1").await, both);
    assert_eq!(seen(&app(usage.without("shared")), "k1").await, [both[0].clone(), both[2].clone()]);
}

#[tokio::test]
async fn a_client_that_the_layer_would_reject_gets_that_rejection() {
    let layer = RateLimitLayer::with_rules(Noted::new(), rule("a", 5))
        .exempt_if(|parts: &Parts| parts.headers.contains_key("x-exempt"))
        .block_if(|parts: &Parts| parts.headers.contains_key("x-blocked"));
    let app = app(&layer, UsageRoute::new(&layer));
    let missing = Request::get("/usage").body(Body::empty()).unwrap();
    let response = send(&app, missing).await;
    assert_eq!((response.status().as_u16(), &response.body()["type"]), (400, &json!("about:blank")));
    for (name, status) in [("x-blocked", 429), ("x-exempt", 200)] {
        let mut request = request("/usage", "k1");
        request.headers_mut().insert(name, "1".parse().unwrap());
        let response = send(&app, request).await;
        assert_eq!(response.status(), status, "{name}");
        if status == 200 {
            assert_eq!(response.body(), &json!({ "limits": [] }));
        }
    }
}

#[tokio::test]
async fn a_ban_is_shown_with_its_rest() {
    let policy = Policy::new("a", Quota::per_minute(5)).penalty(Penalty::manual());
    let layer = RateLimitLayer::new(Noted::new(), policy.clone(), Header::new("x-api-key"));
    let ban = std::time::Duration::from_secs(90);
    layer.limiter().operator().ban(&policy, &Key::new("k1"), ban).await.unwrap();
    let response = send(&app(&layer, UsageRoute::new(&layer)), request("/usage", "k1")).await;
    let limit = &response.body()["limits"][0];
    assert_eq!((&limit["banned_for"], &limit["remaining"]), (&json!(90.0), &json!(0)));
}

#[tokio::test]
async fn each_limit_has_the_unit_that_it_counts_and_what_is_owed() {
    let header = || Header::new("x-api-key");
    let tokens = Policy::new("tokens", Quota::per_hour(1_000)).max_debt(500);
    let bytes = Policy::new("bytes", Quota::per_hour(1_000)).quota_unit(QuotaUnit::ContentBytes);
    let money = Policy::new("money", Quota::per_month(9_000));
    let plans = PolicySource::per_request(move |_: &Parts, _: &Key| money.clone());
    let rules = Rules::new()
        .always(Rule::new(tokens.clone(), header()).cost(|_| 10).reserve().unit("tokens"))
        .always(Rule::new(plans, header()).cost(|_| 20).reserve().unit("micro-dollars"))
        .always(Rule::new(bytes, header()))
        .always(Rule::new(Policy::concurrency("exports", 3), header()))
        .always(rule("requests", 5));
    let layer = RateLimitLayer::with_rules(Noted::new(), rules);
    let app = app(&layer, UsageRoute::new(&layer));
    let limits = async || send(&app, request("/usage", "k1")).await.into_body()["limits"].clone();
    let of = |limit: &Value| [limit["policy"].clone(), limit["unit"].clone(), limit["quota"].clone()];
    let units: Vec<_> = limits().await.as_array().unwrap().iter().map(of).collect();
    let expected = [
        ["tokens", "tokens", "1000/h"],
        ["money", "micro-dollars", "9000/month"],
        ["bytes", "content-bytes", "1000/h"],
        ["exports", "concurrent-requests", "3 at a time"],
        ["requests", "requests", "5/min"],
    ];
    assert_eq!(units, expected.map(|row| row.map(|cell| json!(cell))));
    assert!(limits().await.as_array().unwrap().iter().all(|limit| limit["owed"] == 0));

    let limiter = layer.limiter();
    let charged = limiter.check(&tokens, &Key::new("k1"), 1).await.unwrap();
    limiter.debit(&charged, 1_299).await.unwrap();
    let limit = limits().await[0].clone();
    assert_eq!(
        (&limit["used"], &limit["remaining"], &limit["owed"]),
        (&json!(1_000), &json!(0), &json!(300))
    );
    assert!(limit["reset_after"].as_f64().unwrap() > 4_600.0, "{limit}");
}

/// A store that is down.
#[derive(Clone)]
struct Down;

impl Store for Down {
    fn decide(&self, _: Action, _: &[Charge]) -> Answer<Decision> {
        Answer::ready(Err(Error::new(ErrorKind::StoreTimeout, "redis.internal did not answer")))
    }

    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        Answer::ready(Ok(()))
    }
}

#[tokio::test]
async fn counts_that_the_store_does_not_know_are_not_shown() {
    for mode in [FailureMode::Open, FailureMode::Closed] {
        let policy = Policy::new("a", Quota::per_minute(5)).failure_mode(mode);
        let layer = RateLimitLayer::new(Down, policy, Header::new("x-api-key"));
        let response = send(&app(&layer, UsageRoute::new(&layer)), request("/usage", "k1")).await;
        assert_eq!(response.status(), 503, "{mode:?}");
        assert!(response.headers().contains_key("retry-after"), "{mode:?}");
        assert!(!response.body().to_string().contains("redis.internal"), "{mode:?}");
    }
}

/// Inside the layer, its mapper answers, as for any other route.
#[tokio::test]
async fn the_mapper_of_the_layer_answers_a_usage_request_inside_it() {
    let mapper = |rejection: &Rejection, _: &Parts| {
        let mut response = Response::new(json!({ "mapped": rejection.status().as_u16() }).to_string());
        *response.status_mut() = rejection.status();
        response
    };
    let strict = RateLimitLayer::with_rules(Noted::new(), rule("a", 5));
    let layer = RateLimitLayer::new(Noted::new(), Policy::new("all", Quota::per_minute(5)), Key::new("all"));
    let app =
        Router::new().route("/usage", UsageRoute::new(&strict).into_route()).layer(layer.response(mapper));
    let response = send(&app, Request::get("/usage").body(Body::empty()).unwrap()).await;
    assert_eq!((response.status().as_u16(), response.body()), (400, &json!({ "mapped": 400 })));
}

#[tokio::test]
async fn a_policy_that_is_left_out_cannot_fail_the_page() {
    // Its key is in the body, which a request for the usage does not have.
    let per_model = || {
        Rule::new(Policy::new("per-model", Quota::per_minute(5)), |parts: &Parts| {
            parts.extensions.get::<&'static str>().copied()
        })
    };
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule("all", 60)).rule(per_model());
    let page = |usage: UsageRoute| Router::new().route("/usage", usage.into_route());
    let failed = send(&page(UsageRoute::new(&layer)), request("/usage", "k1")).await;
    assert_eq!(
        (failed.status().as_u16(), &failed.body()["detail"]),
        (400, &json!("the request has no identity"))
    );
    let app = page(UsageRoute::new(&layer).without("per-model"));
    assert_eq!(seen(&app, "k1").await, [("all".to_owned(), 0, 60)]);
}
