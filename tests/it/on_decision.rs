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
    Charge, Decision, Error, ErrorKind, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore,
    Policy, Quota, RateLimitLayer, Rejection, Rule,
    algorithm::LeakyBucket,
    decision::DecisionSource,
    layer::{DecisionEvent, DecisionKind, ResponseBody, Rules},
    policy::Enforcement,
    response::RejectionBody,
    store::{ManualClock, Store},
};

/// What a test compares of an event.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    kind: DecisionKind,
    is_rejected: bool,
    policy: Option<String>,
    source: Option<DecisionSource>,
    error: Option<ErrorKind>,
    path: Option<String>,
}

/// An event of the policy `api`, decided by the store, at `/`.
fn decided(kind: DecisionKind, is_rejected: bool) -> Seen {
    let source = Some(DecisionSource::Store);
    Seen { policy: Some("api".into()), source, ..undecided(kind, is_rejected) }
}

fn undecided(kind: DecisionKind, is_rejected: bool) -> Seen {
    Seen { kind, is_rejected, policy: None, source: None, error: None, path: Some("/".into()) }
}

#[tokio::test]
async fn a_layer_with_the_same_settings_reports_to_the_same_function() {
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let seen = kinds.clone();
    let rule = |name| Rule::new(Policy::new(name, Quota::per_hour(9)), Key::new("all"));
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule("one"))
        .on_decision(move |event: &DecisionEvent<'_>| seen.lock().unwrap().push(event.kind));
    let service = layer
        .with_same_settings(rule("other"))
        .layer(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    service.oneshot(Request::new(String::new())).await.unwrap();
    assert_eq!(*kinds.lock().unwrap(), [DecisionKind::Admitted]);
}

#[tokio::test]
async fn an_event_that_is_kept_holds_no_permit() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let limiter = Limiter::new(MemoryStore::new());
    let exports = Rule::new(Policy::concurrency("exports", 1), Key::new("all"));
    let users = Rule::new(Policy::new("users", Quota::per_hour(9)), Header::new("x-user"));
    let events = kept.clone();
    let layer = RateLimitLayer::with_rules(limiter, Rules::new().always(exports).always(users))
        .on_decision(move |event: &DecisionEvent<'_>| events.lock().unwrap().extend(event.decision.cloned()));
    let service = layer
        .layer(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    // The second request has no identity for the other rule, and is charged under this one.
    for user in [Some("alice"), None, Some("bob")] {
        let mut request = Request::get("/");
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        let response = service.clone().oneshot(request.body(String::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), if user.is_some() { 200 } else { 400 }, "{user:?}");
    }
    assert_eq!(kept.lock().unwrap().len(), 3);
}

const SECRET: &str = "sixteen bytes or more";

#[tokio::test]
async fn an_event_has_the_hash_of_the_key_that_explanations_have() {
    let hashes = Arc::new(Mutex::new(Vec::new()));
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let policy = Policy::new("api", Quota::per_hour(1));
    let layer = RateLimitLayer::new(limiter.clone(), policy.clone(), Header::new("x-user").hashed(SECRET))
        .exempt_if(|parts| parts.uri.path() == "/health")
        .on_decision({
            let hashes = hashes.clone();
            move |event: &DecisionEvent<'_>| hashes.lock().unwrap().push((event.kind, event.key_hash()))
        });
    let request = || Request::get("/").header("x-user", "alice").body(String::new()).unwrap();
    let service = layer
        .layer(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    let key = Header::new("x-user").hashed(SECRET).extract(&request().into_parts().0).await.unwrap();
    let digest = key.digest();
    service.clone().oneshot(request()).await.unwrap();
    service.clone().oneshot(request()).await.unwrap();
    service.oneshot(Request::get("/health").body(String::new()).unwrap()).await.unwrap();
    let expected = [
        (DecisionKind::Admitted, Some(digest.clone())),
        (DecisionKind::Denied, Some(digest)),
        (DecisionKind::Exempt, None),
    ];
    assert_eq!(*hashes.lock().unwrap(), expected);
}

#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Seen>>>);

impl Events {
    fn function(&self) -> impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static {
        let events = self.0.clone();
        move |event| {
            assert!(!format!("{event:?}").contains("alice"), "an identity is in {event:?}");
            events.lock().unwrap().push(Seen {
                kind: event.kind,
                is_rejected: event.is_rejected,
                policy: event.policy().map(String::from),
                source: event.decision.map(Decision::source),
                error: event.error.map(Error::kind),
                path: event.request.map(|request| request.uri.path().to_owned()),
            });
        }
    }

    fn take(&self) -> Vec<Seen> {
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

async fn send<S, B>(service: &S, path: &str, user: Option<&str>) -> u16
where
    S: Service<Request<()>, Response = Response<ResponseBody<B>>, Error = Infallible> + Clone,
{
    let mut request = Request::get(path);
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    service.clone().oneshot(request.body(()).unwrap()).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn each_kind_of_result_is_seen_once_per_request() {
    let events = Events::default();
    let service = layer(memory(), policy(1)).on_decision(events.function()).layer(service_fn(answer));
    let at = |path: &str, seen: Seen| Seen { path: Some(path.into()), ..seen };
    let missing =
        Seen { error: Some(ErrorKind::MissingIdentity), ..undecided(DecisionKind::Unidentified, true) };
    let rows = [
        ("admitted", "/", Some("alice"), 200, decided(DecisionKind::Admitted, false)),
        ("denied", "/", Some("alice"), 429, decided(DecisionKind::Denied, true)),
        ("blocked", "/blocked", Some("bob"), 429, at("/blocked", undecided(DecisionKind::Blocked, true))),
        ("exempt", "/exempt", None, 200, at("/exempt", undecided(DecisionKind::Exempt, false))),
        ("unidentified", "/", None, 400, missing),
    ];
    for (name, path, user, status, expected) in rows {
        assert_eq!(send(&service, path, user).await, status, "{name}");
        assert_eq!(events.take(), [expected], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_is_seen_once_before_its_delay() {
    let events = Events::default();
    let policy =
        Policy::new("api", Quota::per_minute(60)).algorithm(LeakyBucket::queue(Duration::from_secs(9)));
    let service = layer(memory(), policy).on_decision(events.function()).layer(service_fn(answer));
    assert_eq!(send(&service, "/", Some("alice")).await, 200);
    assert_eq!(events.take(), [decided(DecisionKind::Admitted, false)]);
    let mut delayed = Box::pin(send(&service, "/", Some("alice")));
    let early = tokio::time::timeout(Duration::from_millis(1), &mut delayed).await;
    assert!(early.is_err(), "the service is not called yet");
    assert_eq!(events.take(), [decided(DecisionKind::Delayed, false)]);
    assert_eq!(delayed.await, 200);
    assert_eq!(events.take(), []);
}

#[tokio::test]
async fn a_store_that_fails_is_seen_as_what_the_failure_mode_makes_of_it() {
    for later in [false, true] {
        let failed = Some(ErrorKind::StoreTimeout);
        let open = Seen {
            source: Some(DecisionSource::FailureMode),
            error: failed,
            ..undecided(DecisionKind::Admitted, false)
        };
        let closed = Seen { error: failed, ..undecided(DecisionKind::Unavailable, true) };
        let rows = [(FailureMode::Open, 200, open), (FailureMode::Closed, 503, closed)];
        for (mode, status, expected) in rows {
            let events = Events::default();
            let layer = layer(broken(later), policy(1).failure_mode(mode));
            let service = layer.on_decision(events.function()).layer(service_fn(answer));
            assert_eq!(send(&service, "/", Some("alice")).await, status, "{mode:?}, later: {later}");
            assert_eq!(events.take(), [expected], "{mode:?}, later: {later}");
        }
    }
}

#[tokio::test]
async fn report_only_changes_only_whether_the_client_is_rejected() {
    let events = Events::default();
    let reporting = layer(memory(), policy(1))
        .enforcement(Enforcement::ReportOnly)
        .on_decision(events.function())
        .layer(service_fn(answer));
    for status in [send(&reporting, "/", Some("alice")).await, send(&reporting, "/", Some("alice")).await] {
        assert_eq!(status, 200);
    }
    assert_eq!(send(&reporting, "/", None).await, 200);
    assert_eq!(send(&reporting, "/blocked", None).await, 429);
    let missing = Some(ErrorKind::MissingIdentity);
    let blocked = Seen { path: Some("/blocked".into()), ..undecided(DecisionKind::Blocked, true) };
    let expected = [
        decided(DecisionKind::Admitted, false),
        decided(DecisionKind::Denied, false),
        Seen { error: missing, ..undecided(DecisionKind::Unidentified, false) },
        blocked,
    ];
    assert_eq!(events.take(), expected);

    let closed = layer(broken(true), policy(1).failure_mode(FailureMode::Closed));
    let closed =
        closed.enforcement(Enforcement::ReportOnly).on_decision(events.function()).layer(service_fn(answer));
    assert_eq!(send(&closed, "/", Some("alice")).await, 200);
    let failed = Some(ErrorKind::StoreTimeout);
    assert_eq!(events.take(), [Seen { error: failed, ..undecided(DecisionKind::Unavailable, false) }]);
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

    assert_eq!(send(&service, "/", Some("alice")).await, 200);
    assert_eq!(inner.take(), [decided(DecisionKind::Admitted, false)]);
    assert_eq!(send(&service, "/", Some("alice")).await, 429);
    let rejected =
        Seen { policy: Some("exports".into()), path: None, ..decided(DecisionKind::RejectedByService, true) };
    assert_eq!(inner.take(), [decided(DecisionKind::Admitted, false), rejected]);
    // The inner layer answers it, so the outer one sees a response like any other.
    let admitted = Seen { policy: Some("outer".into()), ..decided(DecisionKind::Admitted, false) };
    assert_eq!(outer.take(), [admitted.clone(), admitted]);
}

#[tokio::test]
async fn a_layer_that_is_off_decides_nothing_and_a_second_function_replaces_the_first() {
    let (first, second) = (Events::default(), Events::default());
    let layer = layer(memory(), policy(9)).on_decision(first.function()).on_decision(second.function());
    let off = layer.clone().enforcement(Enforcement::Off).layer(service_fn(answer));
    assert_eq!(send(&off, "/", None).await, 200);
    assert_eq!(second.take(), []);
    assert_eq!(send(&layer.layer(service_fn(answer)), "/", Some("alice")).await, 200);
    assert_eq!(second.take(), [decided(DecisionKind::Admitted, false)]);
    assert_eq!(first.take(), []);
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
