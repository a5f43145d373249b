//! `on_decision` sees every request once, as what it is, with what decided it.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{Down, Fake, RedisServer, fails, fails_after, settings};
use tokio::task::yield_now;

use http::{Request, Response};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, Decision, ErrorKind, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore, Policy,
    Quota, RateLimitLayer, Rejection, Rule,
    algorithm::LeakyBucket,
    decision::DecisionSource,
    layer::{DecisionEvent, DecisionKind, ResponseBody, Rules},
    policy::Enforcement,
    response::RejectionBody,
    store::{ManualClock, Store},
};

/// What was reported: kind, whether the client is rejected, policy, source, kind of error and path, without those that are missing.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn function(&self) -> impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static {
        let events = self.0.clone();
        move |event| {
            assert!(!format!("{event:?}").contains("alice"), "an identity is in {event:?}");
            let parts = [
                Some(event.kind.to_string()),
                event.is_rejected.then(|| "rejected".to_owned()),
                event.policy().map(String::from),
                event.decision.map(|decision| format!("{:?}", decision.source())),
                event.error.map(|error| format!("{:?}", error.kind())),
                event.request.map(|request| request.uri.path().to_owned()),
            ];
            events.lock().unwrap().push(parts.into_iter().flatten().collect::<Vec<_>>().join(" "));
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A store that never decides, neither immediately nor later.
fn broken(later: bool) -> Fake {
    let kind = ErrorKind::StoreTimeout;
    Fake::new(Down, move |_, _, _| if later { fails_after(yield_now(), kind) } else { fails(kind) })
}

fn policy(limit: u64) -> Policy {
    Policy::new("api", Quota::per_hour(limit))
}

fn layer(store: impl Into<Limiter>, policy: Policy) -> RateLimitLayer {
    RateLimitLayer::new(store, policy, Header::new("x-user"))
        .block_if(|parts| parts.uri.path() == "/blocked")
        .exempt_if(|parts| parts.uri.path() == "/exempt")
}

fn memory() -> MemoryStore {
    MemoryStore::with_clock(ManualClock::new())
}

async fn answer(_: Request<()>) -> Result<Response<String>, Infallible> {
    Ok(Response::new(String::new()))
}

/// The status of a request of `user`, or of a client without an identity if it is empty.
async fn send<S, B>(service: &S, path: &str, user: &str) -> u16
where
    S: Service<Request<()>, Response = Response<ResponseBody<B>>, Error = Infallible> + Clone,
{
    let mut request = Request::get(path);
    if !user.is_empty() {
        request = request.header("x-user", user);
    }
    service.clone().oneshot(request.body(()).unwrap()).await.unwrap().status().as_u16()
}

/// Sends requests: name, path, user, status, and the only event.
async fn check(layer: RateLimitLayer, rows: &[(&str, &str, &str, u16, &str)]) {
    let events = Events::default();
    let service = layer.on_decision(events.function()).layer(service_fn(answer));
    for (name, path, user, status, event) in rows {
        let seen = (send(&service, path, user).await, events.take());
        assert_eq!(seen, (*status, vec![(*event).to_owned()]), "{name}");
    }
}

#[tokio::test]
async fn a_layer_with_the_same_settings_reports_to_the_same_function() {
    let events = Events::default();
    let rule = |name| Rule::new(Policy::new(name, Quota::per_hour(9)), Key::new("all"));
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule("one")).on_decision(events.function());
    let service = layer.with_same_settings(rule("other")).layer(service_fn(answer));
    assert_eq!(send(&service, "/", "").await, 200);
    assert_eq!(events.take(), ["admitted other Store /"]);
}

#[tokio::test]
async fn an_event_that_is_kept_holds_no_permit() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let exports = Rule::new(Policy::concurrency("exports", 1), Key::new("all"));
    let users = Rule::new(Policy::new("users", Quota::per_hour(9)), Header::new("x-user"));
    let events = kept.clone();
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), Rules::new().always(exports).always(users))
        .on_decision(move |event: &DecisionEvent<'_>| events.lock().unwrap().extend(event.decision.cloned()));
    let service = layer.layer(service_fn(answer));
    // The second request has no identity for the other rule, and is charged under this one.
    for (user, status) in [("alice", 200), ("", 400), ("bob", 200)] {
        assert_eq!(send(&service, "/", user).await, status, "{user:?}");
    }
    assert_eq!(kept.lock().unwrap().len(), 3);
}

const SECRET: &str = "sixteen bytes or more";

#[tokio::test]
async fn an_event_has_the_hash_of_the_key_that_explanations_have() {
    let hashes = Arc::new(Mutex::new(Vec::new()));
    let seen = hashes.clone();
    let key = Header::new("x-user").hashed(SECRET);
    let layer = RateLimitLayer::new(memory(), policy(1), key)
        .exempt_if(|parts| parts.uri.path() == "/health")
        .on_decision(move |event: &DecisionEvent<'_>| {
            seen.lock().unwrap().push((event.kind, event.key_hash()));
        });
    let service = layer.layer(service_fn(answer));
    let alice = Request::get("/").header("x-user", "alice").body(()).unwrap().into_parts().0;
    let digest = Header::new("x-user").hashed(SECRET).extract(&alice).await.unwrap().digest();
    for (path, user) in [("/", "alice"), ("/", "alice"), ("/health", "")] {
        send(&service, path, user).await;
    }
    let expected = [
        (DecisionKind::Admitted, Some(digest.clone())),
        (DecisionKind::Denied, Some(digest)),
        (DecisionKind::Exempt, None),
    ];
    assert_eq!(*hashes.lock().unwrap(), expected);
}

#[tokio::test]
async fn each_kind_of_result_is_seen_once_per_request() {
    let rows = [
        ("admitted", "/", "alice", 200, "admitted api Store /"),
        ("denied", "/", "alice", 429, "denied rejected api Store /"),
        ("blocked", "/blocked", "bob", 429, "blocked rejected /blocked"),
        ("exempt", "/exempt", "", 200, "exempt /exempt"),
        ("unidentified", "/", "", 400, "unidentified rejected MissingIdentity /"),
    ];
    check(layer(memory(), policy(1)), &rows).await;
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_is_seen_once_before_its_delay() {
    let events = Events::default();
    let policy =
        Policy::new("api", Quota::per_minute(60)).algorithm(LeakyBucket::queue(Duration::from_secs(9)));
    let service = layer(memory(), policy).on_decision(events.function()).layer(service_fn(answer));
    assert_eq!(send(&service, "/", "alice").await, 200);
    assert_eq!(events.take(), ["admitted api Store /"]);
    let mut delayed = Box::pin(send(&service, "/", "alice"));
    let early = tokio::time::timeout(Duration::from_millis(1), &mut delayed).await;
    assert!(early.is_err(), "the service is not called yet");
    assert_eq!(events.take(), ["delayed api Store /"]);
    assert_eq!(delayed.await, 200);
    assert!(events.take().is_empty());
}

#[tokio::test]
async fn a_store_that_fails_is_seen_as_what_the_failure_mode_makes_of_it() {
    let open = ("open", "/", "alice", 200, "admitted FailureMode StoreTimeout /");
    let closed = ("closed", "/", "alice", 503, "unavailable rejected StoreTimeout /");
    for later in [false, true] {
        for (mode, row) in [(FailureMode::Open, open), (FailureMode::Closed, closed)] {
            check(layer(broken(later), policy(1).failure_mode(mode)), &[row]).await;
        }
    }
}

#[tokio::test]
async fn report_only_changes_only_whether_the_client_is_rejected() {
    let rows = [
        ("admitted", "/", "alice", 200, "admitted api Store /"),
        ("denied", "/", "alice", 200, "denied api Store /"),
        ("unidentified", "/", "", 200, "unidentified MissingIdentity /"),
        ("blocked", "/blocked", "", 429, "blocked rejected /blocked"),
    ];
    check(layer(memory(), policy(1)).enforcement(Enforcement::ReportOnly), &rows).await;
    let closed = layer(broken(true), policy(1).failure_mode(FailureMode::Closed));
    let row = ("the store fails", "/", "alice", 200, "unavailable StoreTimeout /");
    check(closed.enforcement(Enforcement::ReportOnly), &[row]).await;
}

#[tokio::test]
async fn a_rejection_that_the_service_returns_is_seen_once_after_the_admission() {
    let (inner, outer) = (Events::default(), Events::default());
    let exports = Policy::new("exports", Quota::per_hour(1));
    let export = move |request: Request<()>| {
        let limiter = Limiter::from_extensions(request.extensions()).unwrap().clone();
        let exports = exports.clone();
        async move {
            let decision = limiter.check(&exports, &Key::new("alice"), 1).await.map_err(Rejection::from);
            Ok::<_, Infallible>(match decision.and_then(Decision::into_result) {
                Ok(_) => Response::new(RejectionBody::new(String::new())),
                Err(rejection) => rejection.into_http(),
            })
        }
    };
    let limits = |name: &str, events: &Events| {
        let policy = Policy::new(name, Quota::per_hour(9));
        RateLimitLayer::new(memory(), policy, Header::new("x-user")).on_decision(events.function())
    };
    let service = limits("outer", &outer).layer(limits("api", &inner).layer(service_fn(export)));

    assert_eq!(send(&service, "/", "alice").await, 200);
    assert_eq!(inner.take(), ["admitted api Store /"]);
    assert_eq!(send(&service, "/", "alice").await, 429);
    assert_eq!(inner.take(), ["admitted api Store /", "rejected_by_service rejected exports Store"]);
    // The inner layer answers it, so the outer one sees a response like any other.
    assert_eq!(outer.take(), ["admitted outer Store /"; 2]);
}

#[tokio::test]
async fn a_layer_that_is_off_decides_nothing_and_a_second_function_replaces_the_first() {
    let (first, second) = (Events::default(), Events::default());
    let layer = layer(memory(), policy(9)).on_decision(first.function()).on_decision(second.function());
    let off = layer.clone().enforcement(Enforcement::Off).layer(service_fn(answer));
    assert_eq!(send(&off, "/", "").await, 200);
    assert!(second.take().is_empty());
    assert_eq!(send(&layer.layer(service_fn(answer)), "/", "alice").await, 200);
    assert_eq!(second.take(), ["admitted api Store /"]);
    assert!(first.take().is_empty());
}

#[tokio::test]
async fn redis_the_deny_cache_and_leases_are_told_apart() {
    let server = RedisServer::start();
    let store = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store.clone());
    let source = async |policy: &Policy| {
        let decision = limiter.check(policy, &Key::new("alice"), 1).await.unwrap();
        (!decision.verdict().is_denied(), decision.source())
    };

    let single = policy(1);
    assert_eq!(source(&single).await, (true, DecisionSource::Store));
    assert_eq!(source(&single).await, (false, DecisionSource::Store));
    assert_eq!(source(&single).await, (false, DecisionSource::DenyCache));
    let both = [Charge::new(&single, &Key::new("alice"), 1), Charge::new(&policy(2), &Key::new("bob"), 1)];
    assert_eq!(limiter.check_all(&both[..1]).await.unwrap().source(), DecisionSource::DenyCache);
    assert_eq!(limiter.peek(&single, &Key::new("alice"), 1).await.unwrap().source(), DecisionSource::Store);

    let leased = Policy::new("leased", Quota::per_hour(1_000)).max_lease(100);
    // The clock stands still, so the key is hot from the third request on.
    for _ in 0..3 {
        assert_eq!(source(&leased).await, (true, DecisionSource::Store));
    }
    assert_eq!(source(&leased).await, (true, DecisionSource::Lease));
    store.drain().await.unwrap();
}

#[test]
fn each_kind_of_decision_has_a_name_for_labels() {
    use DecisionKind::{
        Admitted, Banned, Blocked, Delayed, Denied, Exempt, RejectedByService, Unavailable, Unidentified,
    };
    for (kind, name) in [
        (Admitted, "admitted"),
        (Delayed, "delayed"),
        (Denied, "denied"),
        (Banned, "banned"),
        (Blocked, "blocked"),
        (Exempt, "exempt"),
        (Unidentified, "unidentified"),
        (Unavailable, "unavailable"),
        (RejectedByService, "rejected_by_service"),
    ] {
        assert_eq!((kind.as_str(), kind.to_string().as_str()), (name, name));
    }
}
