//! The layer and the service below it: when it calls the service, and with which request.

use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, routing::get};
use http::{Request, Response};
use http_body::Body as _;
use support::{
    Counted, Fake, Says,
    http::serve,
    inner::{ask, ask_for, get as get_request, layer, text},
};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer,
};
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Header, Key, Limiter, MemoryStore, PeerIp,
    Policy, PolicySource, Quota, RateLimitLayer, RedisStore, Rule,
    decision::{Outcome, Verdict},
    keyed,
    layer::{self, RateLimit, ResponseBody},
    policy::Enforcement,
    store::Store,
};

// Two uses that users of other crates ask for: a function that returns a layer, and a struct with a layer.

fn limiter(store: RedisStore) -> RateLimitLayer {
    RateLimitLayer::new(store, Policy::new("per-ip", Quota::per_second(10)), PeerIp::new())
}

#[derive(Clone, Debug)]
struct Middleware {
    limit: RateLimitLayer,
}

#[tokio::test]
async fn a_layer_can_be_returned_and_stored() {
    let store = RedisStore::builder().connect_lazy("redis://127.0.0.1:1").unwrap();
    let middleware = Middleware { limit: limiter(store) };
    let _: Router = Router::new().route("/", get(async || "")).layer(middleware.limit);
}

#[test]
fn public_types_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<RateLimitLayer>();
    shared::<RateLimit<Router>>();
    shared::<Limiter>();
    shared::<MemoryStore>();
    shared::<RedisStore>();
    shared::<Policy>();
    shared::<PolicySource>();
    shared::<Key>();
    shared::<Charge>();
    shared::<Decision>();
    shared::<Error>();
    sent::<<RateLimit<Router> as Service<Request<axum::body::Body>>>::Future>();
    sent::<layer::future::ResponseFuture<Router, axum::body::Body>>();
    sent::<keyed::future::ResponseFuture<String>>();
    sent::<ResponseBody<axum::body::Body>>();
    sent::<Answer<Decision>>();
}

#[test]
fn the_inner_service_can_be_read_changed_and_taken_out() {
    let policy = Policy::new("p", Quota::per_hour(1));
    let mut http = RateLimitLayer::new(MemoryStore::new(), policy.clone(), Key::new("all")).layer(1);
    let mut keyed =
        keyed::KeyedRateLimitLayer::new(MemoryStore::new(), policy, |(): &()| Key::new("all")).layer(1);
    *http.get_mut() += 1;
    *keyed.get_mut() += 1;
    assert_eq!((*http.get_ref(), http.into_inner()), (2, 2));
    assert_eq!((*keyed.get_ref(), keyed.into_inner()), (2, 2));
}

#[test]
fn the_plug_ins_are_object_safe() {
    fn object<T: ?Sized>() {}
    object::<dyn Store>();
    object::<dyn tower_ratelimit::KeyExtractor>();
    object::<dyn tower_ratelimit::response::ResponseMapper>();
    object::<dyn tower_ratelimit::algorithm::Algorithm>();
}

/// A service that is ready for one call after each `poll_ready`. A clone starts unready.
struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, calls: self.calls.clone() }
    }
}

#[derive(Debug)]
struct OwnError;

impl fmt::Display for OwnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("own error")
    }
}

impl std::error::Error for OwnError {}

impl Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = OwnError;
    type Future = Ready<Result<Self::Response, OwnError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OwnError>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(if request.uri() == "/fail" { Err(OwnError) } else { Ok(Response::new("hello".into())) })
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_called_once_and_keeps_its_error() {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut service = layer(3).layer(Strict { ready: false, calls: calls.clone() });
    for expected in [200, 200] {
        let response = service.ready().await.unwrap().call(get_request()).await.unwrap();
        assert_eq!(response.status(), expected);
    }
    let fail = Request::get("/fail").body(String::new()).unwrap();
    let error: OwnError = service.ready().await.unwrap().call(fail).await.unwrap_err();
    assert_eq!(error.to_string(), "own error");
    let denied = service.ready().await.unwrap().call(get_request()).await.unwrap();
    assert_eq!(denied.status(), 429);
    // A denied request did not call the service, and no request called it twice.
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

fn admit(charge: &Charge) -> Outcome {
    Outcome::new(charge, Verdict::Admit, 1, Duration::ZERO)
}

#[tokio::test]
async fn a_request_is_charged_once_however_often_it_is_polled() {
    let store = Counted::new(Says(admit));
    let layer = RateLimitLayer::new(store.clone(), Policy::new("p", Quota::per_hour(9)), Key::new("all"));
    ask(&layer, get_request()).await;
    assert_eq!(store.asked(), 1);
}

#[tokio::test]
async fn no_store_is_called_when_nothing_is_charged() {
    let store = Counted::new(Says(admit));
    let limiter = Limiter::new(store.clone());
    // The same as after a store failure.
    let nothing = Decision::new([]);
    assert!(limiter.charge_more(&nothing, 5).await.unwrap().is_admitted());
    assert!(limiter.refund(&nothing, 5).await.unwrap().is_admitted());
    assert!(limiter.check_all(&[]).await.unwrap().is_admitted());
    assert_eq!(store.asked(), 0);
}

#[tokio::test]
async fn the_decision_is_in_the_extensions_of_the_request_and_if_one_was_of_the_response() {
    let handler = async |decision: Decision| decision.outcomes()[0].remaining().to_string();
    let app = Router::new().route("/", get(handler)).layer(layer(2));
    for (is_read, status, remaining) in [(false, 200, 1), (true, 200, 0), (false, 429, 0), (true, 429, 0)] {
        let mut request = Request::get("/").body(axum::body::Body::empty()).unwrap();
        if is_read {
            request.extensions_mut().insert(Decision::new([]));
        }
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        let decision = response.extensions().get::<Decision>();
        assert_eq!(decision.map(|decision| decision.outcomes()[0].remaining()), is_read.then_some(remaining));
        if status == 200 {
            let seen = axum::body::to_bytes(response.into_body(), 10).await.unwrap();
            assert_eq!(seen, remaining.to_string());
        }
    }
}

#[tokio::test]
async fn the_limiter_of_a_request_is_the_one_that_decided() {
    let layer = |store: &MemoryStore, name| {
        RateLimitLayer::new(store.clone(), Policy::new(name, Quota::per_hour(9)), Key::new("all"))
    };
    let (outside, inside) = (MemoryStore::new(), MemoryStore::new());
    let undecided = Policy::new("inner", Quota::per_hour(9));
    let inner_layers = [
        ("exempt", layer(&inside, "inner").exempt_if(|_| true)),
        (
            "report only",
            RateLimitLayer::new(inside.clone(), undecided, Header::new("x-api-key"))
                .enforcement(Enforcement::ReportOnly),
        ),
    ];
    let outer = Policy::new("outer", Quota::per_hour(9));
    for (left, (name, inner)) in [6, 3].into_iter().zip(inner_layers) {
        let handler = async |decision: Decision, limiter: Limiter| {
            assert!(limiter.charge_more(&decision, 2).await.unwrap().is_admitted());
        };
        let app = Router::new().route("/", get(handler)).layer(inner).layer(layer(&outside, "outer"));
        let request = Request::get("/").body(axum::body::Body::empty()).unwrap();
        assert_eq!(app.oneshot(request).await.unwrap().status(), 200, "{name}");
        let counted = Limiter::new(outside.clone()).peek(&outer, &Key::new("all"), 0).await.unwrap();
        assert_eq!(counted.remaining(), Some(left), "{name}");
    }
}

#[tokio::test]
async fn exempt_requests_are_not_counted_and_get_no_headers() {
    let layer = layer(1).exempt_if(|parts| parts.uri.path() == "/health");
    let health = || Request::get("/health").body(String::new()).unwrap();
    ask(&layer, get_request()).await;
    assert_eq!(ask(&layer, get_request()).await.status(), 429);
    let exempt = ask(&layer, health()).await;
    assert_eq!(exempt.status(), 200);
    assert!(!exempt.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn a_layer_of_one_rule_charges_no_request_that_the_rule_skips() {
    let limiter = Limiter::new(MemoryStore::new());
    let (policy, key) = (Policy::new("p", Quota::per_day(9)), Key::new("all"));
    let rule = Rule::new(policy.clone(), key.clone()).skip_if(|request| request.uri.path() == "/public");
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule);
    for (path, left) in [("/", 8), ("/public", 8), ("/", 7)] {
        ask(&layer, Request::get(path).body(String::new()).unwrap()).await;
        assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(left), "{path}");
    }
}

#[tokio::test]
async fn a_server_sees_whether_a_body_is_empty() {
    for text in ["", "hello"] {
        let response = ask_for(&layer(1), get_request(), || Response::new(text.to_owned())).await;
        let body = response.body();
        assert_eq!(
            (body.is_end_stream(), body.size_hint().exact()),
            (text.is_empty(), Some(text.len() as u64))
        );
    }
}

#[tokio::test]
async fn the_layer_works_among_towers_own_layers() {
    let service =
        tower::service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let mut service = ServiceBuilder::new()
        .layer(BufferLayer::<Request<String>>::new(8))
        .layer(layer(2))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(service);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let response: Result<_, BoxError> = service.ready().await.unwrap().call(get_request()).await;
        statuses.push(response.unwrap().status().as_u16());
    }
    // If a denial kept the permit of the concurrency limit, the fourth request would hang.
    assert_eq!(statuses, [200, 200, 429, 429]);
}

#[tokio::test]
async fn each_route_has_its_own_limit_on_one_store() {
    let store = MemoryStore::new();
    let limit = |name, limit| {
        RateLimitLayer::new(store.clone(), Policy::new(name, Quota::per_hour(limit)), PeerIp::new())
    };
    let app = Router::new()
        .route("/login", get(async || "").layer(limit("login", 1)))
        .route("/search", get(async || "").layer(limit("search", 2)))
        .route("/health", get(async || ""));
    let address = serve(app).await;
    let (client, mut statuses) = (support::http::Client::new(), Vec::new());
    for path in ["login", "login", "search", "search", "search", "health"] {
        statuses.push(client.get(&format!("http://{address}/{path}")).await.status().as_u16());
    }
    assert_eq!(statuses, [200, 429, 200, 200, 429, 200]);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_waits_and_then_reaches_the_service() {
    let delay =
        |charge: &Charge| Outcome::new(charge, Verdict::Delay(Duration::from_secs(3)), 0, Duration::ZERO);
    let layer = RateLimitLayer::new(Says(delay), Policy::new("p", Quota::per_hour(1)), Key::new("all"));
    let started = tokio::time::Instant::now();
    let response = ask(&layer, get_request()).await;
    assert_eq!(response.status(), 200);
    assert!((3_000..3_010).contains(&started.elapsed().as_millis()));
}

#[test]
#[should_panic(expected = "two policies named \"p\"")]
fn two_policies_of_one_name_panic_when_the_layer_is_built() {
    let _ = layer(1).rule(Rule::new(Policy::new("p", Quota::per_hour(2)), PeerIp::new()));
}

#[tokio::test]
async fn every_error_of_a_store_is_503_and_shows_nothing_of_it() {
    let rows =
        [(ErrorKind::MissingSetup, 500), (ErrorKind::InvalidIdentity, 503), (ErrorKind::StoreReply, 503)];
    for (kind, status) in rows {
        let policy = Policy::new("api", Quota::per_day(1)).failure_mode(FailureMode::Closed);
        let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(
            Fake::failing(kind),
            policy,
            Key::new("all"),
        ));
        let request = Request::get("/").body(axum::body::Body::empty()).unwrap();
        let response = ServiceExt::oneshot(app, request).await.unwrap();
        assert_eq!(response.status(), status, "{kind:?}");
        assert!(!text(response).await.contains("secret"), "{kind:?}");
    }
}
