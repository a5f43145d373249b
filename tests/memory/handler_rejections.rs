//! A rejection that a handler returns is answered by the layer in front of it, in the layer's format.

use std::time::Duration;

use axum::{
    Json, Router,
    body::Body,
    extract::Query,
    handler::Handler,
    response::IntoResponse,
    routing::{get, post},
};
use http::{Request, Response, StatusCode, request::Parts};
use serde_json::{Value, json};
use support::inner::text;
use tower::ServiceExt as _;
use tower_http::compression::CompressionLayer;
use tower_ratelimit::{
    Charge, Decision, Error, ErrorKind, Key, Limiter, MemoryStore, Policy, PolicySource, Quota,
    RateLimitHeaders, RateLimitLayer, Rejection, Rule,
    policy::Enforcement,
    response::{Dialect, GrpcStatus, ProblemDetails, RejectionBody, ResponseMapper},
    store::ManualClock,
};

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

/// The same by a limiter of the handler, which no layer makes admit.
fn export_by(store: MemoryStore) -> impl Handler<((),), ()> {
    let limiter = Limiter::new(store);
    move || export(limiter)
}

/// A custom format that shows parts of the request and of the rejection.
fn ours(rejection: &Rejection, request: &Parts) -> impl IntoResponse + use<> {
    let agent = request.headers.get("user-agent").map(|agent| agent.to_str().unwrap().to_owned());
    let user = request.extensions.get::<u32>().copied();
    Json(json!({ "path": request.uri.path(), "agent": agent, "user": user, "why": rejection.to_string() }))
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
async fn a_handlers_rejection_is_answered_by_the_mapper_of_the_layer() {
    let app = Router::new().route("/export", get(export)).layer(layer("api").response(ours));
    assert_eq!(text(ask(&app, request("GET")).await).await, "exported");
    let rejection = ask(&app, request("GET")).await;
    assert_eq!(rejection.status(), 429);
    assert_eq!(values(&rejection, "content-type"), ["application/json"]);
    assert_eq!(values(&rejection, "retry-after"), ["3600"]);
    assert_eq!(values(&rejection, "cache-control"), ["no-store"]);
    assert_eq!(values(&rejection, "ratelimit"), [r#""api";r=98, "exports";r=0;t=3600"#]);
    assert_eq!(values(&rejection, "ratelimit-policy"), [r#""api";q=100;w=60, "exports";q=1;w=3600"#]);
    assert!(!rejection.extensions().get::<Decision>().unwrap().is_admitted());
    let said: Value = serde_json::from_str(&text(rejection).await).unwrap();
    let why = "over the rate limit; try again in 1 hour";
    assert_eq!(said, json!({ "path": "/export", "agent": "tester", "user": 7, "why": why }));
}

#[tokio::test]
async fn each_kind_of_rejection_has_its_status_and_body() {
    let table = [
        (ErrorKind::MissingIdentity, 400, "no key", "no key"),
        (ErrorKind::UnknownIdentity, 401, "no account", "no account"),
        (
            ErrorKind::StoreTimeout,
            503,
            "redis://10.0.0.7 is slow",
            "The rate limit is temporarily unavailable.",
        ),
        (ErrorKind::IdentityUnavailable, 500, "sessions", "The client could not be identified."),
        (ErrorKind::MissingSetup, 500, "add program::Layer", "The rate limit is misconfigured."),
        (ErrorKind::InvalidConfig, 500, "twice", "The rate limit is misconfigured."),
    ];
    for (kind, status, message, detail) in table {
        let handler = async move || Rejection::from(Error::new(kind, message));
        let custom = Router::new().route("/export", get(handler)).layer(layer("api").response(ours));
        let response = ask(&custom, request("GET")).await;
        assert_eq!(response.status(), status, "{kind:?}");
        // An unavailable store is queried again sooner than `t`, which is then left out.
        let limit = if status == 503 { r#""api";r=99"# } else { r#""api";r=99;t=60"# };
        assert_eq!(values(&response, "ratelimit"), [limit], "{kind:?}");
        assert_eq!(response.headers().contains_key("retry-after"), status == 503, "{kind:?}");
        // The text for clients has nothing of the store and of the program. The cause is the source.
        let said: Value = serde_json::from_str(&text(response).await).unwrap();
        let why = said["why"].as_str().unwrap();
        assert_eq!(why.to_lowercase(), detail.trim_end_matches('.').to_lowercase(), "{kind:?}");
        let rejection = Rejection::from(Error::new(kind, message));
        let source = std::error::Error::source(&rejection).map(ToString::to_string);
        assert_eq!(source.as_deref(), Some(message), "{kind:?}");

        let default = Router::new().route("/export", get(handler)).layer(layer("api"));
        let response = ask(&default, request("GET")).await;
        assert_eq!(response.status(), status, "{kind:?}");
        let problem: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(problem["detail"], detail, "{kind:?}");
    }
}

#[tokio::test]
async fn without_a_layer_a_handlers_rejection_is_a_problem() {
    let denied = || async {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
        limiter.check(&exports(), &Key::new("alice"), 1).await?.into_result()?;
        limiter.check(&exports(), &Key::new("alice"), 1).await?.into_result()
    };
    let app = Router::new().route("/export", get(async move || denied().await.map(|_| "exported")));
    let response = ask(&app, request("GET")).await;
    assert_eq!(response.status(), 429);
    assert_eq!(values(&response, "content-type"), ["application/problem+json"]);
    assert_eq!(values(&response, "retry-after"), ["3600"]);
    assert_eq!(values(&response, "cache-control"), ["no-store"]);
}

#[tokio::test]
async fn only_the_innermost_layer_answers() {
    let named = |name: &'static str| {
        layer(name)
            .response(move |rejection: &Rejection, _: &Parts| format!("{name}: {}", rejection.status()))
    };
    let app = Router::new().route("/export", get(export)).layer(named("inner")).layer(named("outer"));
    ask(&app, request("GET")).await;
    let rejection = ask(&app, request("GET")).await;
    assert_eq!(rejection.status(), 429);
    assert_eq!(
        values(&rejection, "ratelimit"),
        [r#""inner";r=98, "exports";r=0;t=3600"#, r#""outer";r=98;t=59"#]
    );
    assert_eq!(values(&rejection, "retry-after"), ["3600"]);
    assert_eq!(text(rejection).await, "inner: 429 Too Many Requests");
}

#[tokio::test]
async fn a_mapper_that_returns_the_rejection_is_not_answered_by_an_outer_layer() {
    let policy = Policy::new("inner", Quota::per_minute(100));
    let inner = layer("inner").with_same_settings(Rule::new(policy, Key::new("all")).cost(|_| 101));
    let inner = inner.response(|rejection: &Rejection, _: &Parts| rejection.clone());
    let app = Router::new().route("/export", get(export)).layer(inner).layer(layer("outer").response(ours));
    let rejection = ask(&app, request("GET")).await;
    assert_eq!(rejection.status(), 429);
    assert_eq!(values(&rejection, "content-type"), ["application/problem+json"]);
}

#[tokio::test]
async fn an_exempt_and_a_reported_request_are_answered_in_the_format_of_the_layer() {
    let exempt = layer("api").exempt_if(|_| true).response(ours);
    let rows = [
        ("exempt", exempt, r#""exports";r=0;t=3600"#),
        (
            "exempt and report only",
            layer("api").enforcement(Enforcement::ReportOnly).exempt_if(|_| true).response(ours),
            r#""exports";r=0;t=3600"#,
        ),
        (
            "report only",
            layer("api").enforcement(Enforcement::ReportOnly).response(ours),
            r#""api";r=98, "exports";r=0;t=3600"#,
        ),
    ];
    for (name, layer, limits) in rows {
        let app = Router::new().route("/export", get(export_by(MemoryStore::new()))).layer(layer);
        assert_eq!(ask(&app, request("GET")).await.status(), 200, "{name}");
        let rejection = ask(&app, request("GET")).await;
        assert_eq!(rejection.status(), 429, "{name}");
        assert_eq!(values(&rejection, "retry-after"), ["3600"], "{name}");
        assert_eq!(values(&rejection, "ratelimit"), [limits], "{name}");
        assert!(!rejection.headers().contains_key("x-ratelimit-exceeded"), "{name}");
        assert_eq!(values(&rejection, "content-type"), ["application/json"], "{name}");
    }
}

#[tokio::test]
async fn a_head_request_gets_the_headers_of_get_and_no_content() {
    for mapped in [layer("api").response(ours), layer("api")] {
        let service = mapped.clone();
        let app = tower::Layer::layer(
            &service,
            tower::service_fn(async |_: Request<Body>| {
                let rejection = Rejection::from(Error::new(ErrorKind::MissingIdentity, "no key"));
                Ok::<_, std::convert::Infallible>(rejection.into_http())
            }),
        );
        let to_get = app.clone().oneshot(request("GET")).await.unwrap().map(Body::new);
        let to_head = app.oneshot(request("HEAD")).await.unwrap().map(Body::new);
        assert_eq!((to_get.status(), to_head.status()), (StatusCode::BAD_REQUEST, StatusCode::BAD_REQUEST));
        assert_eq!(values(&to_head, "content-type"), values(&to_get, "content-type"));
        let length = text(to_get).await.len().to_string();
        assert_eq!(values(&to_head, "content-length"), [length]);
        assert_eq!(text(to_head).await, "");
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

/// Another code than the default one.
fn aborted(rejection: &Rejection, call: &Parts) -> Response<RejectionBody> {
    let mut response = GrpcStatus::default().response(rejection, call);
    response.headers_mut().insert("grpc-status", 10.into());
    response
}

#[tokio::test]
async fn a_grpc_call_is_answered_by_the_grpc_mapper() {
    let rows = [
        ("default", layer("api").response(ours), "8"),
        ("adjusted", layer("api").grpc_response(aborted), "10"),
    ];
    for (name, layer, status) in rows {
        let app = Router::new().route("/export", post(export)).layer(layer);
        for kind in ["application/grpc", "application/grpc-web-text"] {
            let call = || {
                let mut call = request("POST");
                call.headers_mut().insert("content-type", kind.parse().unwrap());
                call
            };
            ask(&app, call()).await;
            let rejection = ask(&app, call()).await;
            assert_eq!(rejection.status(), 200, "{name}");
            assert_eq!(values(&rejection, "grpc-status"), [status], "{name}");
            assert_eq!(values(&rejection, "content-type"), [kind], "{name}");
            assert_eq!(values(&rejection, "retry-after"), ["3600"], "{name}");
            assert_eq!(text(rejection).await, "", "{name}");
        }
    }
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

#[tokio::test]
async fn a_status_that_the_handler_set_does_not_break_a_grpc_rejection() {
    let handler =
        async || (StatusCode::FORBIDDEN, Rejection::from(Error::new(ErrorKind::StoreTimeout, "slow")));
    let app = Router::new().route("/export", post(handler)).layer(layer("api"));
    let mut call = request("POST");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let rejection = ask(&app, call).await;
    assert_eq!((rejection.status().as_u16(), values(&rejection, "grpc-status")), (200, vec!["14".into()]));
}

/// A mapper whose `reads_request` returns `false`.
struct Blind;

impl ResponseMapper for Blind {
    fn response(&self, _: &Rejection, request: &Parts) -> Response<RejectionBody> {
        Response::new(RejectionBody::new(format!("{} {}", request.method, request.headers.len())))
    }

    fn reads_request(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_mapper_that_does_not_read_the_request_gets_no_copy_of_it() {
    let app = Router::new().route("/export", get(export)).layer(layer("api").response(Blind));
    ask(&app, request("GET")).await;
    assert_eq!(text(ask(&app, request("GET")).await).await, "GET 0");
    assert!(!ProblemDetails::default().reads_request());
    assert!(!GrpcStatus::default().reads_request());
    assert!(ours.reads_request());
}

#[tokio::test]
async fn settings_apply_to_every_sibling_and_its_own_settings_win() {
    let store = MemoryStore::with_clock(ManualClock::new());
    let limits = RateLimitLayer::new(store, Policy::new("first", Quota::per_hour(1)), Key::new("all"))
        .response(ours)
        .grpc_response(aborted)
        .headers(RateLimitHeaders::new(Dialect::LegacyDelta))
        .exempt_if(|parts| parts.uri.path() == "/health")
        .block_if(|parts| parts.headers.contains_key("x-blocked"));
    let one = |name: &str| {
        limits.with_same_settings(Rule::new(Policy::new(name, Quota::per_hour(1)), Key::new("all")))
    };
    let health = get(async || "up");
    let app = |layer| {
        Router::new()
            .route("/health", health.clone())
            .route("/export", get(async || "").post(async || ""))
            .layer(layer)
    };

    let common = app(one("common"));
    assert_eq!(ask(&common, request("GET")).await.status(), 200);
    let rejection = ask(&common, request("GET")).await;
    assert_eq!(values(&rejection, "x-ratelimit-reset"), ["3600"]);
    assert!(!rejection.headers().contains_key("ratelimit"));
    assert!(text(rejection).await.contains("/export"));
    let mut call = request("POST");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    assert_eq!(values(&ask(&common, call).await, "grpc-status"), ["10"]);
    let health = || Request::get("/health").body(Body::empty()).unwrap();
    assert_eq!(ask(&common, health()).await.status(), 200);
    let mut blocked = health();
    blocked.headers_mut().insert("x-blocked", "1".parse().unwrap());
    assert_eq!(ask(&common, blocked).await.status(), 429);

    let own = app(one("own").response(|_: &Rejection, _: &Parts| "own").headers(RateLimitHeaders::off()));
    // The layers share a store, and each policy has its own counts.
    assert_eq!(ask(&own, request("GET")).await.status(), 200);
    let rejection = ask(&own, request("GET")).await;
    assert!(!rejection.headers().contains_key("x-ratelimit-reset"));
    assert_eq!(text(rejection).await, "own");
    let limiter = limits.limiter();
    let charge = Charge::new(&Policy::new("own", Quota::per_hour(1)), &Key::new("all"), 1);
    assert!(!limiter.peek_all(&[charge]).await.unwrap().is_admitted());
    let off =
        limits.clone().enforcement(Enforcement::Off).with_same_settings(Rule::new(exports(), Key::new("b")));
    assert_eq!(ask(&app(off), request("GET")).await.status(), 200);
}

#[derive(Clone)]
struct Plan(Policy);

#[tokio::test]
async fn a_policy_from_the_extensions_is_used_and_a_missing_one_is_an_error_of_the_server() {
    let app = |source: PolicySource| {
        let layer = RateLimitLayer::new(MemoryStore::with_clock(ManualClock::new()), source, Key::new("all"));
        Router::new().route("/export", get(async |_: Query<Value>| "exported")).layer(layer)
    };
    let with = |plan: Option<&str>| {
        let mut request = request("GET");
        if let Some(name) = plan {
            request.extensions_mut().insert(Plan(Policy::new(name, Quota::per_hour(5))));
        }
        request
    };
    let plans = || PolicySource::from_extension(|plan: &Plan| plan.0.clone());
    let strict = app(plans());
    assert_eq!(values(&ask(&strict, with(Some("gold"))).await, "ratelimit"), [r#""gold";r=4;t=2880"#]);
    let missing = ask(&strict, with(None)).await;
    assert_eq!(missing.status(), 500);
    let said = text(missing).await;
    assert!(said.contains("misconfigured") && !said.contains("Plan"), "{said}");

    let lenient = app(plans().or(Policy::new("free", Quota::per_hour(1))));
    assert_eq!(values(&ask(&lenient, with(Some("gold"))).await, "ratelimit"), [r#""gold";r=4;t=2880"#]);
    assert_eq!(values(&ask(&lenient, with(None)).await, "ratelimit"), [r#""free";r=0;t=3600"#]);

    // With several rules, a missing policy does not deny requests under the others.
    let several = RateLimitLayer::new(MemoryStore::new(), exports(), Key::new("all"))
        .rule(Rule::new(plans(), Key::new("all")));
    let several = Router::new().route("/export", get(async || "")).layer(several);
    assert_eq!(ask(&several, with(None)).await.status(), 500);
    assert_eq!(ask(&several, with(Some("gold"))).await.status(), 200);
}

/// A disabled layer does nothing: the handler's own response is sent.
#[tokio::test]
async fn a_disabled_layer_changes_no_response() {
    let export = get(export_by(MemoryStore::new()));
    let app = Router::new()
        .route("/export", export)
        .layer(layer("api").enforcement(Enforcement::Off).response(ours));
    assert_eq!(ask(&app, request("GET")).await.status(), 200);
    let rejection = ask(&app, request("GET")).await;
    assert_eq!(rejection.status(), 429);
    assert_eq!(values(&rejection, "retry-after"), ["3600"]);
    assert_eq!(values(&rejection, "content-type"), ["application/problem+json"]);
    assert!(!rejection.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn a_disabled_layer_leaves_a_rejection_to_the_layer_around_it() {
    let disabled = layer("inner").enforcement(Enforcement::Off);
    let outer = layer("outer").response(ours).headers(RateLimitHeaders::new(Dialect::LegacyDelta));
    let app = Router::new().route("/export", get(export)).layer(disabled).layer(outer);
    assert_eq!(ask(&app, request("GET")).await.status(), 200);
    let rejected = ask(&app, request("GET")).await;
    assert_eq!(rejected.status(), 429);
    assert!(!rejected.headers().contains_key("ratelimit"));
    let body: Value = serde_json::from_str(&text(rejected).await).unwrap();
    assert_eq!(body["path"], "/export");
}

#[tokio::test]
async fn headers_about_the_handlers_body_are_dropped_with_it() {
    let stamp = axum::middleware::map_response(async |mut response: Response<Body>| {
        for name in ["etag", "content-digest", "content-language", "last-modified"] {
            response.headers_mut().insert(name, "old".parse().unwrap());
        }
        response.headers_mut().insert("x-request-id", "7".parse().unwrap());
        response
    });
    let app = Router::new().route("/export", get(export)).layer(stamp).layer(layer("api").response(ours));
    ask(&app, request("GET")).await;
    let rejected = ask(&app, request("GET")).await;
    for name in ["etag", "content-digest", "content-language", "last-modified"] {
        assert!(!rejected.headers().contains_key(name), "{name}");
    }
    assert_eq!(rejected.headers()["x-request-id"], "7");
}

/// Without a layer in front of the handler.
#[test]
fn only_a_failure_that_waiting_helps_has_retry_after() {
    for (kind, status, has_retry_after) in [
        (ErrorKind::StoreTimeout, StatusCode::SERVICE_UNAVAILABLE, true),
        (ErrorKind::InvalidConfig, StatusCode::INTERNAL_SERVER_ERROR, false),
    ] {
        let response = Rejection::from(Error::new(kind, "a failure")).into_http();
        assert_eq!(response.status(), status, "{kind:?}");
        assert_eq!(response.headers().contains_key("retry-after"), has_retry_after, "{kind:?}");
        assert_eq!(response.headers()["cache-control"], "no-store", "{kind:?}");
    }
}
