//! The layer under and over layers of tower and tower-http, in the common orders, and requests that are dropped
//! before they are done.

use std::{
    convert::Infallible,
    fmt::Debug,
    future::pending,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum_extra::middleware::option_layer;
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderName, Method, Request, Response, request::Parts};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use support::{
    Fake,
    inner::{get, layer, text},
    on_redis, units_left,
};
use tokio::{task::JoinSet, time::Instant};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, load_shed::error::Overloaded,
    timeout::error::Elapsed,
};
use tower_http::{
    compression::CompressionLayer,
    cors::{Any, CorsLayer},
    decompression::DecompressionLayer,
};
use tower_ratelimit::{
    Answer, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rule,
    algorithm::LeakyBucket,
    store::{Action, ManualClock},
};

const HELLO: &str = "hello, which is long enough for tower-http to compress it, so it is said twice: hello";

/// A service that is ready for one call after each `poll_ready`. A clone starts unready. `/slow` never ends, and
/// `/fail` fails.
pub(crate) struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Strict {
    pub(crate) fn new() -> (Self, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        (Self { ready: false, calls: calls.clone() }, calls)
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, calls: self.calls.clone() }
    }
}

impl<B> Service<Request<B>> for Strict {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        if request.uri() == "/slow" {
            return pending().boxed();
        }
        if request.uri() == "/fail" {
            return async { Err("own error") }.boxed();
        }
        async { Ok(Response::builder().header("content-type", "text/plain").body(HELLO.into()).unwrap()) }
            .boxed()
    }
}

/// The statuses of `count` requests to `service`, one after the other.
async fn statuses<S, B>(mut service: S, count: usize) -> Vec<u16>
where
    S: Service<Request<String>, Response = Response<B>, Error: Debug>,
{
    let mut statuses = Vec::new();
    for _ in 0..count {
        let response = service.ready().await.unwrap().call(get()).await.unwrap();
        statuses.push(response.status().as_u16());
    }
    statuses
}

/// Waits until `service` is ready and calls it. The future of the response.
pub(crate) async fn when_ready<S>(service: &mut S, request: Request<String>) -> S::Future
where
    S: Service<Request<String>, Error: Debug>,
{
    service.ready().await.unwrap().call(request)
}

#[tokio::test]
async fn the_layer_works_over_and_under_towers_layers_and_denials_keep_no_permit() {
    macro_rules! orders {
        ($($name:literal: $stack:expr),* $(,)?) => {$(
            let (inner, calls) = Strict::new();
            let service = $stack.service(inner);
            let said = tokio::time::timeout(Duration::from_secs(5), statuses(service, 6)).await;
            assert_eq!(said.unwrap(), [200, 200, 429, 429, 429, 429], $name);
            assert_eq!(calls.load(Ordering::Relaxed), 2, $name);
        )*};
    }
    let soon = Duration::from_secs(60);
    orders! {
        "over buffer": ServiceBuilder::new().layer(layer(2)).buffer(1),
        "under buffer": ServiceBuilder::new().buffer(1).layer(layer(2)),
        "over timeout": ServiceBuilder::new().layer(layer(2)).timeout(soon),
        "under timeout": ServiceBuilder::new().timeout(soon).layer(layer(2)),
        "over load shed": ServiceBuilder::new().layer(layer(2)).load_shed(),
        "under load shed": ServiceBuilder::new().load_shed().layer(layer(2)),
        "over concurrency limit": ServiceBuilder::new().layer(layer(2)).concurrency_limit(1),
        "under concurrency limit": ServiceBuilder::new().concurrency_limit(1).layer(layer(2)),
        "among all": ServiceBuilder::new()
            .buffer(1).load_shed().layer(layer(2)).concurrency_limit(1).timeout(soon).buffer(1),
        "under buffer and over concurrency limit": ServiceBuilder::new().buffer(8).layer(layer(2)).concurrency_limit(1),
        "over and under all": ServiceBuilder::new()
            .layer(layer(9)).timeout(soon).load_shed().concurrency_limit(1).buffer(1).layer(layer(2)),
    }
}

#[tokio::test]
async fn load_is_shed_before_the_charge_outside_and_after_it_inside() {
    let slow = || Request::get("/slow").body(String::new()).unwrap();
    macro_rules! orders {
        ($($name:literal: $stack:expr, charged $charged:literal),* $(,)?) => {$(
            let memory = Limiter::new(MemoryStore::new());
            let policy = Policy::new("p", Quota::per_hour(9));
            let limit = RateLimitLayer::new(memory.clone(), policy.clone(), Key::new("all"));
            let mut service = $stack(ServiceBuilder::new(), limit).service(Strict::new().0);
            let mut busy = Box::pin(when_ready(&mut service, slow()).await);
            assert!((&mut busy).now_or_never().is_none());
            let shed: BoxError = when_ready(&mut service, slow()).await.await.unwrap_err();
            assert!(shed.is::<Overloaded>(), $name);
            let remaining = memory.peek(&policy, &Key::new("all"), 0).await.unwrap().remaining();
            assert_eq!(remaining, Some(9 - $charged), $name);
        )*};
    }
    orders! {
        "outside": |builder: ServiceBuilder<_>, limit| builder.load_shed().layer(limit).concurrency_limit(1),
            charged 1,
        "inside": |builder: ServiceBuilder<_>, limit| builder.layer(limit).load_shed().concurrency_limit(1),
            charged 2,
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_on_either_side_releases_the_permits() {
    let slow = || Request::get("/slow").body(String::new()).unwrap();
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::concurrency("in-flight", 1);
    let limit = || RateLimitLayer::new(limiter.clone(), policy.clone(), Key::new("all"));
    let soon = Duration::from_secs(1);
    for _ in 0..3 {
        let outside = ServiceBuilder::new().timeout(soon).layer(limit()).service(Strict::new().0);
        assert!(outside.oneshot(slow()).await.unwrap_err().is::<Elapsed>());
        let inside = ServiceBuilder::new().layer(limit()).timeout(soon).service(Strict::new().0);
        assert!(inside.oneshot(slow()).await.unwrap_err().is::<Elapsed>());
    }
    assert_eq!(units_left(&limiter, &policy).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_leaves_the_inner_service_to_others() {
    let queue =
        Policy::new("p", Quota::per_hour(1)).algorithm(LeakyBucket::queue(Duration::from_secs(36_000)));
    let clock = ManualClock::new();
    let limit = RateLimitLayer::new(MemoryStore::with_clock(clock), queue, Header::new("x-api-key"));
    let (inner, calls) = Strict::new();
    let mut service = ServiceBuilder::new().layer(limit).concurrency_limit(2).service(inner);
    let by = |key: &str| Request::get("/").header("x-api-key", key).body(String::new()).unwrap();
    let started = Instant::now();
    when_ready(&mut service, by("a")).await.await.unwrap();
    let delayed: JoinSet<_> =
        [when_ready(&mut service, by("a")).await, when_ready(&mut service, by("a")).await]
            .into_iter()
            .collect();
    tokio::task::yield_now().await;
    assert_eq!(calls.load(Ordering::Relaxed), 1);

    let other = async { when_ready(&mut service, by("b")).await.await };
    let other = tokio::time::timeout(Duration::from_secs(10), other).await;
    assert_eq!(other.expect("another client waits for the delayed ones").unwrap().status(), 200);

    // They reach the service after their delay, when it is ready again.
    for response in delayed.join_all().await {
        assert_eq!(response.unwrap().status(), 200);
    }
    assert_eq!((started.elapsed().as_secs(), calls.load(Ordering::Relaxed)), (2 * 3600, 4));
}

/// A service that is ready once and then fails.
#[derive(Default)]
struct FailsLater(bool);

impl Clone for FailsLater {
    fn clone(&self) -> Self {
        Self(true)
    }
}

impl Service<Request<String>> for FailsLater {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(if self.0 { Err("it is gone") } else { Ok(()) })
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        std::future::ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_while_a_request_is_delayed_returns_its_own_error() {
    let queue =
        Policy::new("p", Quota::per_hour(1)).algorithm(LeakyBucket::queue(Duration::from_secs(36_000)));
    let limiter = Limiter::new(MemoryStore::new());
    assert!(!limiter.check(&queue, &Key::new("all"), 1).await.unwrap().verdict().is_denied());
    let layer = RateLimitLayer::new(limiter, queue, Key::new("all"));
    assert_eq!(layer.layer(FailsLater::default()).oneshot(get()).await.unwrap_err(), "it is gone");
}

fn cors() -> CorsLayer {
    let fields = ["ratelimit", "ratelimit-policy", "retry-after"].map(HeaderName::from_static);
    CorsLayer::new().allow_origin(Any).allow_methods([Method::GET]).expose_headers(fields)
}

fn from_page(method: Method) -> Request<axum::body::Body> {
    let request = Request::builder().method(method).uri("/").header("origin", "http://page.example");
    request.header("access-control-request-method", "GET").body(axum::body::Body::empty()).unwrap()
}

#[tokio::test]
async fn a_page_reads_rejections_only_inside_of_cors_and_pays_for_no_preflight() {
    for outside in [true, false] {
        let app = axum::Router::new().route("/", axum::routing::get(async || "hello"));
        let app = if outside { app.layer(layer(2)).layer(cors()) } else { app.layer(cors()).layer(layer(2)) };
        let ask = async |method| app.clone().oneshot(from_page(method)).await.unwrap();
        for _ in 0..2 {
            let preflight = ask(Method::OPTIONS).await;
            assert_eq!(preflight.status(), 200);
            assert_eq!(preflight.headers()["access-control-allow-origin"], "*");
            // A CORS layer outside of the limit answers it.
            assert_eq!(preflight.headers().contains_key("ratelimit"), !outside);
        }
        for left in [r#""p";r=1;t=1800"#, r#""p";r=0;t=1800"#] {
            let admitted = ask(Method::GET).await;
            assert_eq!(admitted.status(), 200);
            assert_eq!(admitted.headers()["ratelimit"], left);
            assert_eq!(admitted.headers()["access-control-allow-origin"], "*");
        }
        let denied = ask(Method::GET).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(ask(Method::OPTIONS).await.status(), if outside { 200 } else { 429 });
        let field = |name| denied.headers().get(name).map(|value| value.to_str().unwrap());
        let exposed = "ratelimit,ratelimit-policy,retry-after";
        assert_eq!(field("access-control-allow-origin"), outside.then_some("*"));
        assert_eq!(field("access-control-expose-headers"), outside.then_some(exposed));
        assert_eq!(field("retry-after"), Some("1800"));
    }
}

#[tokio::test]
async fn cors_takes_the_layer_s_body_in_one_service_builder() {
    let both = ServiceBuilder::new().layer(cors()).layer(layer(1));
    let app = axum::Router::new().route("/", axum::routing::get(async || "hello")).layer(both);
    for (status, origin) in [(200, "*"), (429, "*")] {
        let response = app.clone().oneshot(from_page(Method::GET)).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["access-control-allow-origin"], origin);
    }
}

#[tokio::test]
async fn compression_on_either_side_leaves_admitted_and_denied_bodies_intact() {
    let ask = || Request::get("/").header("accept-encoding", "gzip").body(String::new()).unwrap();
    macro_rules! orders {
        ($($name:literal: $stack:expr, denials compressed $compressed:literal),* $(,)?) => {$(
            let service = $stack.service(Strict::new().0);
            let admitted = service.clone().oneshot(ask()).await.unwrap();
            assert_eq!(admitted.headers()["content-encoding"], "gzip", $name);
            assert_eq!(admitted.headers()["ratelimit"], r#""p";r=1;t=1800"#, $name);
            let denials = ServiceBuilder::new().layer(DecompressionLayer::new()).service(service.clone());
            assert_eq!(text(denials.clone().oneshot(ask()).await.unwrap()).await, HELLO, $name);
            let denied = service.oneshot(ask()).await.unwrap();
            assert_eq!(denied.headers().contains_key("content-encoding"), $compressed, $name);
            let denied = denials.oneshot(ask()).await.unwrap();
            assert_eq!(denied.status(), 429, $name);
            assert_eq!(denied.headers()["retry-after"], "1800", $name);
            let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!(["p"]), $name);
        )*};
    }
    orders! {
        "outside": ServiceBuilder::new().layer(CompressionLayer::new()).layer(layer(2)),
            denials compressed true,
        "inside": ServiceBuilder::new().layer(layer(2)).layer(CompressionLayer::new()),
            denials compressed false,
    }
}

/// A body that panics when it is polled.
struct Untouchable;

impl Body for Untouchable {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body was polled")
    }
}

#[tokio::test]
async fn the_body_of_a_request_is_never_polled() {
    let service = layer(1).layer(Strict::new().0);
    for expected in [200, 429] {
        let response = service.clone().oneshot(Request::post("/").body(Untouchable).unwrap()).await.unwrap();
        assert_eq!(response.status(), expected);
        response.into_body().collect().await.unwrap();
    }
}

// Dropped requests.

/// Waits until `policy` has `expected` units left, with a time limit: permits are released in the background.
async fn comes_to(limiter: &Limiter, policy: &Policy, expected: u64) -> bool {
    for _ in 0..300 {
        if units_left(limiter, policy).await == expected {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

fn in_flight(units: u64) -> Policy {
    Policy::concurrency("in-flight", units)
}

/// An extractor whose key never arrives.
struct Unknown;

impl KeyExtractor for Unknown {
    fn extract(&self, _: &Parts) -> Answer<Key> {
        Answer::pending(pending())
    }
}

/// A store that charges immediately and returns the decision later.
fn late(store: MemoryStore) -> Fake {
    Fake::new(store, |store, action, charges| {
        let answer = store.decide(action, charges);
        if action != Action::Charge {
            return answer;
        }
        Answer::pending(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            answer.await
        })
    })
}

#[tokio::test]
async fn a_request_dropped_in_any_state_leaves_at_most_its_charge_and_no_permit() {
    struct Row {
        name: &'static str,
        known: bool,
        late: bool,
        policy: Policy,
        charged: u64,
    }
    let plain = || Policy::new("p", Quota::per_hour(5));
    let queue = LeakyBucket::queue(Duration::from_secs(36_000));
    let delayed = Policy::new("p", Quota::per_hour(5)).algorithm(queue);
    let rows = [
        Row { name: "waiting for its key", known: false, late: false, policy: plain(), charged: 0 },
        Row { name: "waiting for the store", known: true, late: true, policy: plain(), charged: 1 },
        Row { name: "delayed", known: true, late: false, policy: delayed, charged: 1 },
        Row { name: "in the service", known: true, late: false, policy: plain(), charged: 1 },
    ];
    for Row { name, known, late, policy, charged } in rows {
        let memory = MemoryStore::new();
        let counts = Limiter::new(memory.clone());
        let store = if late { Limiter::new(self::late(memory)) } else { Limiter::new(memory) };
        let layer = RateLimitLayer::new(store, in_flight(3), Key::new("all"));
        let layer = if known {
            layer.rule(Rule::new(policy.clone(), Key::new("all")))
        } else {
            layer.rule(Rule::new(policy.clone(), Unknown))
        };
        // So that the queue delays the next request.
        assert!(!counts.check(&policy, &Key::new("all"), 1).await.unwrap().verdict().is_denied(), "{name}");
        let before = units_left(&counts, &policy).await;

        let (inner, calls) = Strict::new();
        let request = Request::get("/slow").body(String::new()).unwrap();
        let mut dropped = Box::pin(layer.layer(inner).oneshot(request));
        assert!((&mut dropped).now_or_never().is_none(), "{name}");
        assert_eq!(calls.load(Ordering::Relaxed), usize::from(name == "in the service"), "{name}");
        let used = if known { 1 } else { 0 };
        assert_eq!(units_left(&counts, &in_flight(3)).await, 3 - used, "{name}");
        drop(dropped);

        assert!(comes_to(&counts, &in_flight(3), 3).await, "{name}");
        let left = before - charged;
        assert_eq!(units_left(&counts, &policy).await, left, "{name}");
        for _ in 0..left {
            let decision = counts.check(&policy, &Key::new("all"), 1).await.unwrap();
            assert!(!decision.verdict().is_denied(), "{name}");
        }
        assert!(counts.check(&policy, &Key::new("all"), 1).await.unwrap().verdict().is_denied(), "{name}");
    }
}

#[tokio::test]
async fn requests_dropped_at_any_moment_leave_redis_connections_in_step() {
    let (_server, limiter) = on_redis().await;
    let dropped = Policy::new("dropped", Quota::per_hour(1_000));
    let layer = RateLimitLayer::new(limiter.clone(), in_flight(500), Key::new("all"))
        .rule(Rule::new(dropped.clone(), Key::new("all")));
    let (inner, calls) = Strict::new();
    let service = layer.layer(inner);
    let slow = || Request::get("/slow").body(String::new()).unwrap();
    for i in 0..200 {
        // From before the command is sent until after the service is called. The service never answers.
        let patience = if i % 20 == 19 { 50_000 } else { 10 * i };
        let moment = tokio::time::sleep(Duration::from_micros(patience));
        let mut request = Box::pin(service.clone().oneshot(slow()));
        tokio::select! {
            biased;
            _ = &mut request => panic!("the service does not answer"),
            () = async { if i % 4 == 0 { tokio::task::yield_now().await } else { moment.await } } => {}
        }
        drop(request);
        // A reply to the dropped request would show the numbers of another policy.
        let own = Policy::new(&format!("own-{i}"), Quota::per_hour(10 + i));
        let decision = limiter.check(&own, &Key::new("all"), 1).await.unwrap();
        assert!(decision.failure().is_none(), "{:?}", decision.failure());
        assert_eq!((decision.outcomes().len(), decision.remaining()), (1, Some(9 + i)));
    }
    let called = calls.load(Ordering::Relaxed) as u64;
    assert!(called > 0 && called < 200, "{called} of 200 reached the service");
    assert!(comes_to(&limiter, &in_flight(500), 500).await);
    let left = units_left(&limiter, &dropped).await;
    assert!((800..=1_000 - called).contains(&left), "{left} left, {called} called");
    // Exactly the remaining units are admitted.
    assert!(limiter.check(&dropped, &Key::new("all"), left + 1).await.unwrap().verdict().is_denied());
    assert!(!limiter.check(&dropped, &Key::new("all"), left).await.unwrap().verdict().is_denied());
}

#[tokio::test]
async fn an_optional_layer_of_axum_extra_limits_a_router_if_there_is_one() {
    for (limit, second) in [(Some(layer(1)), 429), (None, 200)] {
        let route = axum::routing::get(async || HELLO);
        let app = axum::Router::new().route("/", route).layer(option_layer(limit));
        let ask = async || app.clone().oneshot(get().map(axum::body::Body::from)).await.unwrap();
        let first = ask().await;
        assert_eq!(first.status(), 200);
        assert_eq!(text(first).await, HELLO);
        assert_eq!(ask().await.status(), second);
    }
}
