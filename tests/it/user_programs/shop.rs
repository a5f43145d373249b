//! A service with a limit for each address, a strict one for logins, plans by API key, and a switch.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{State, connect_info::MockConnectInfo},
    response::{IntoResponse, Json},
    routing::{get, post},
};
use http::{Request, Response, request::Parts};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_ratelimit::{
    FailureMode, Header, Key, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota, RateLimitLayer,
    Rejection, Rule, algorithm::SlidingLog, policy::Enforcement, store::ManualClock,
};

mod program {
    use std::{collections::HashMap, sync::Arc};

    use super::*;

    #[derive(Clone)]
    pub(super) struct Shop {
        /// From the configuration.
        pub(super) enforcement: Enforcement,
        pub(super) plans: Arc<HashMap<String, Policy>>,
        pub(super) imports: Policy,
    }

    pub(super) fn app(shop: Shop, limiter: impl Into<Limiter>) -> Router {
        let per_ip = Policy::new("per-ip", Quota::per_minute(60).burst(5));
        let per_ip = RateLimitLayer::new(limiter, per_ip, PeerIp::new())
            .enforcement(shop.enforcement)
            .response(error_format);
        // At most two logins a minute. Logins are rejected while the store is unavailable.
        let login = Policy::new("login", Quota::per_minute(2))
            .algorithm(SlidingLog::new())
            .failure_mode(FailureMode::Closed);
        let login = per_ip.with_same_settings(Rule::new(login, PeerIp::new()));

        let (plans, free) = (shop.plans.clone(), Policy::new("free", Quota::per_hour(1)));
        let plan = PolicySource::per_request(move |_: &Parts, key: &Key| {
            key.identity().and_then(|api_key| plans.get(&*api_key)).unwrap_or(&free).clone()
        });
        let plan = per_ip.with_same_settings(Rule::new(plan, Header::new("x-api-key")));

        Router::new()
            .route("/", get(async || "home"))
            .route("/login", post(async || "welcome").layer(login))
            .route("/reports", get(async || "report").layer(plan))
            .route("/import", post(import))
            .layer(per_ip.exempt_if(|parts| parts.uri.path() == "/health"))
            .route("/health", get(async || "ok"))
            .with_state(shop)
    }

    /// The error format of the whole service.
    fn error_format(rejection: &Rejection, _: &Parts) -> Json<Value> {
        Json(json!({ "error": rejection.to_string(), "retry_after": rejection.retry_after_seconds() }))
    }

    /// Charges a unit for each line, to all clients together.
    async fn import(
        State(shop): State<Shop>,
        limiter: Limiter,
        body: String,
    ) -> Result<impl IntoResponse, Rejection> {
        let lines = body.lines().count() as u64;
        let decision = limiter.check(&shop.imports, &Key::new("all"), lines).await?.into_result()?;
        Ok((decision, format!("{lines} lines")))
    }
}

fn shop(enforcement: Enforcement) -> (Router, ManualClock) {
    let clock = ManualClock::new();
    let plans = [("key-of-acme".to_owned(), Policy::new("paid", Quota::per_hour(2)))];
    let imports = Policy::new("imports", Quota::per_day(3));
    let shop = program::Shop { enforcement, plans: std::sync::Arc::new(plans.into()), imports };
    (program::app(shop, MemoryStore::with_clock(clock.clone())), clock)
}

/// A request of a client with this last byte of its address.
async fn ask(app: &Router, peer: u8, line: &str, body: &'static str) -> Response<Body> {
    let app = app.clone().layer(MockConnectInfo(SocketAddr::from(([203, 0, 113, peer], 4711))));
    let [method, path, key] = [0, 1, 2].map(|at| line.split(' ').nth(at));
    let mut request = Request::builder().method(method.unwrap()).uri(path.unwrap());
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    app.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
}

const ALICE: u8 = 7;
const BOB: u8 = 8;

/// Asserts the statuses of as many requests.
async fn check(app: &Router, peer: u8, line: &str, statuses: &[u16]) {
    for status in statuses {
        assert_eq!(ask(app, peer, line, "a").await.status(), *status, "{peer}: {line}");
    }
}

/// `retry-after` of a denial, which states it in its body too.
async fn wait_of(denied: Response<Body>) -> Value {
    let header = denied.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
    assert_eq!(denied.headers()["content-type"], "application/json");
    assert_eq!(denied.headers()["cache-control"], "no-store");
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["retry_after"], header.map_or(Value::Null, |wait: u64| json!(wait)));
    assert!(body["error"].is_string(), "{body}");
    body["retry_after"].clone()
}

#[tokio::test]
async fn each_address_has_its_own_limit_and_health_has_none() {
    let (app, clock) = shop(Enforcement::On);
    check(&app, ALICE, "GET /", &[200, 200, 200, 200, 200, 429]).await;
    assert_eq!(wait_of(ask(&app, ALICE, "GET /", "").await).await, 1);
    check(&app, BOB, "GET /", &[200]).await;
    check(&app, ALICE, "GET /health", &[200]).await;
    clock.advance(Duration::from_secs(1));
    check(&app, ALICE, "GET /", &[200]).await;
}

#[tokio::test]
async fn no_minute_admits_more_logins_than_the_limit() {
    let (app, clock) = shop(Enforcement::On);
    check(&app, ALICE, "POST /login", &[200]).await;
    clock.advance(Duration::from_secs(50));
    check(&app, ALICE, "POST /login", &[200]).await;
    let denied = ask(&app, ALICE, "POST /login", "").await;
    assert_eq!(denied.status(), 429);
    assert!(denied.headers()["ratelimit"].to_str().unwrap().contains("\"login\""));
    assert_eq!(wait_of(denied).await, 10);
    clock.advance(Duration::from_secs(10));
    check(&app, ALICE, "POST /login", &[200, 429]).await;
}

#[tokio::test]
async fn a_plan_is_chosen_by_the_api_key() {
    let (app, _) = shop(Enforcement::On);
    check(&app, ALICE, "GET /reports key-of-acme", &[200, 200, 429]).await;
    check(&app, ALICE, "GET /reports stranger", &[200, 429]).await;
}

#[tokio::test]
async fn layers_and_handlers_answer_in_one_format() {
    let (app, _) = shop(Enforcement::On);
    check(&app, BOB, "POST /login", &[200, 200]).await;
    assert_eq!(ask(&app, ALICE, "POST /import", "a\nb").await.status(), 200);
    let rows = [
        ("layer", ask(&app, BOB, "POST /login", "").await, 429, json!(60)),
        ("handler", ask(&app, ALICE, "POST /import", "c\nd").await, 429, json!(28_800)),
        ("no identity", ask(&app, ALICE, "GET /reports", "").await, 400, Value::Null),
    ];
    for (name, response, status, retry_after) in rows {
        assert_eq!(response.status(), status, "{name}");
        assert_eq!(wait_of(response).await, retry_after, "{name}");
    }
}

#[tokio::test]
async fn the_switch_turns_every_limit_off() {
    let (app, _) = shop(Enforcement::Off);
    check(&app, ALICE, "GET /", &[200; 20]).await;
    check(&app, ALICE, "POST /login", &[200; 20]).await;
    // A handler still has its limiter.
    check(&app, ALICE, "POST /import", &[200]).await;
}
