//! A service with a limit for each address, a strict one for logins, plans by API key, and a switch.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{State, connect_info::MockConnectInfo},
    response::{IntoResponse, Json},
    routing::{get, post},
};
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_ratelimit::{
    FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota,
    RateLimitLayer, Rejection, Rule, algorithm::SlidingLog, key::GrpcMethod, policy::Enforcement,
    store::ManualClock,
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

async fn ask(
    app: &Router,
    peer: [u8; 4],
    request: http::request::Builder,
    body: &'static str,
) -> Response<Body> {
    let app = app.clone().layer(MockConnectInfo(SocketAddr::from((peer, 4711))));
    app.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
}

async fn json_of(response: Response<Body>) -> Value {
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

const ALICE: [u8; 4] = [203, 0, 113, 7];
const BOB: [u8; 4] = [203, 0, 113, 8];

#[tokio::test]
async fn each_address_has_its_own_limit_and_health_has_none() {
    let (app, clock) = shop(Enforcement::On);
    for _ in 0..5 {
        assert_eq!(ask(&app, ALICE, Request::get("/"), "").await.status(), 200);
    }
    let denied = ask(&app, ALICE, Request::get("/"), "").await;
    assert_eq!(
        (denied.status(), &denied.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    assert_eq!(json_of(denied).await["retry_after"], 1);
    assert_eq!(ask(&app, BOB, Request::get("/"), "").await.status(), 200);
    assert_eq!(ask(&app, ALICE, Request::get("/health"), "").await.status(), 200);

    clock.advance(Duration::from_secs(1));
    assert_eq!(ask(&app, ALICE, Request::get("/"), "").await.status(), 200);
}

#[tokio::test]
async fn no_minute_admits_more_logins_than_the_limit() {
    let (app, clock) = shop(Enforcement::On);
    let login = async || ask(&app, ALICE, Request::post("/login"), "").await;
    assert_eq!(login().await.status(), 200);
    clock.advance(Duration::from_secs(50));
    assert_eq!(login().await.status(), 200);
    let denied = login().await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "10");
    assert!(denied.headers()["ratelimit"].to_str().unwrap().contains("\"login\""));
    clock.advance(Duration::from_secs(10));
    assert_eq!(login().await.status(), 200);
    assert_eq!(login().await.status(), 429);
}

#[tokio::test]
async fn a_plan_is_chosen_by_the_api_key() {
    let (app, _) = shop(Enforcement::On);
    let report = async |key: &str| {
        ask(&app, ALICE, Request::get("/reports").header("x-api-key", key), "").await.status()
    };
    assert_eq!([report("key-of-acme").await, report("key-of-acme").await], [200, 200]);
    assert_eq!(report("key-of-acme").await, 429);
    assert_eq!([report("stranger").await, report("stranger").await], [200, 429]);
}

#[tokio::test]
async fn layers_and_handlers_answer_in_one_format() {
    let (app, _) = shop(Enforcement::On);
    // Denied by the layer, by the handler, and without an identity.
    ask(&app, BOB, Request::post("/login"), "").await;
    ask(&app, BOB, Request::post("/login"), "").await;
    let by_layer = ask(&app, BOB, Request::post("/login"), "").await;
    assert_eq!(ask(&app, ALICE, Request::post("/import"), "a\nb").await.status(), 200);
    let by_handler = ask(&app, ALICE, Request::post("/import"), "c\nd").await;
    let anonymous = ask(&app, ALICE, Request::get("/reports"), "").await;
    let rows = [
        ("layer", by_layer, 429, json!(60)),
        ("handler", by_handler, 429, json!(28_800)),
        ("no identity", anonymous, 400, Value::Null),
    ];
    for (name, response, status, retry_after) in rows {
        assert_eq!(response.status(), status, "{name}");
        assert_eq!(response.headers()["content-type"], "application/json", "{name}");
        let header = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(header, retry_after.as_u64().map(|seconds| seconds.to_string()), "{name}");
        assert_eq!(response.headers()["cache-control"], "no-store", "{name}");
        let body = json_of(response).await;
        assert_eq!(body["retry_after"], retry_after, "{name}");
        assert!(body["error"].is_string(), "{name}");
    }
}

#[tokio::test]
async fn the_switch_turns_every_limit_off() {
    let (app, _) = shop(Enforcement::Off);
    for _ in 0..20 {
        assert_eq!(ask(&app, ALICE, Request::get("/"), "").await.status(), 200);
        assert_eq!(ask(&app, ALICE, Request::post("/login"), "").await.status(), 200);
    }
    // A handler still has its limiter.
    assert_eq!(ask(&app, ALICE, Request::post("/import"), "a").await.status(), 200);
}

#[tokio::test]
async fn health_checks_over_grpc_are_not_limited() {
    let health = GrpcMethod::service().any_of(["grpc.health.v1.Health"]);
    let policy = Policy::new("calls", Quota::per_day(1));
    let layer = RateLimitLayer::new(MemoryStore::new(), policy, GrpcMethod::new()).exempt_if(health);
    let call = async |path: &str| {
        let service = tower::service_fn(async |_: Request<String>| {
            Ok::<_, std::convert::Infallible>(Response::new(String::new()))
        });
        let request = Request::post(path).header("content-type", "application/grpc").body(String::new());
        let response = tower::Layer::layer(&layer, service).oneshot(request.unwrap()).await.unwrap();
        let headers: HeaderMap = response.headers().clone();
        headers.get("grpc-status").map(|status| status.to_str().unwrap().to_owned())
    };
    for _ in 0..3 {
        assert_eq!(call("/grpc.health.v1.Health/Check").await, None);
    }
    assert_eq!(call("/greeter.Greeter/SayHello").await, None);
    assert_eq!(call("/greeter.Greeter/SayHello").await.as_deref(), Some("8"));
}
