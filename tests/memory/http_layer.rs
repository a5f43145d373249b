//! The layer and the service below it: when it calls the service, and with which request.

use std::{sync::atomic::Ordering, time::Duration};

use axum::{Router, routing::get};
use http::{Request, Response};
use http_body::Body as _;
use support::{
    Counted, Says,
    http::serve,
    inner::{ask, ask_for, get as get_request, layer},
};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{
    Answer, Charge, Decision, Error, Header, Key, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota,
    RateLimitLayer, RedisStore, Rule,
    decision::{Outcome, Verdict},
    keyed,
    layer::{self, RateLimit, ResponseBody},
    policy::Enforcement,
    store::Store,
};

use crate::{
    composition::{Strict, when_ready},
    responses::check,
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

#[tokio::test]
async fn what_a_layer_charges_and_puts_into_extensions() {
    check("responses-extensions.txt").await;
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

#[tokio::test]
async fn the_service_that_was_ready_is_called_once_and_keeps_its_error() {
    let (inner, calls) = Strict::new();
    let mut service = layer(3).layer(inner);
    for expected in [200, 200] {
        let response = when_ready(&mut service, get_request()).await.await.unwrap();
        assert_eq!(response.status(), expected);
    }
    let fail = Request::get("/fail").body(String::new()).unwrap();
    let error: &str = when_ready(&mut service, fail).await.await.unwrap_err();
    assert_eq!(error, "own error");
    let denied = when_ready(&mut service, get_request()).await.await.unwrap();
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

/// Services count references in copies of the settings, which must not outlive a change.
#[tokio::test]
async fn a_layer_that_has_made_services_can_be_changed() {
    let layer = layer(1);
    assert_eq!(
        [ask(&layer, get_request()).await.status(), ask(&layer, get_request()).await.status()],
        [200, 429]
    );
    let layer = layer.enforcement(Enforcement::Off);
    assert_eq!(ask(&layer, get_request()).await.status(), 200);
}
