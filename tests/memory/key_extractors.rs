//! Key extractors, separately and in a layer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Extension, Router, body::Body, extract::FromRequestParts, extract::State, routing::get};
use http::{Method, Request, StatusCode, Uri, request::Parts};
use proptest::prelude::*;
use support::{
    Counted, Down,
    inner::{ask, text},
    script::{check, check_app, check_with, request},
};
use tower::{Layer as _, ServiceExt};
use tower_ratelimit::{
    Answer, Charge, ClientIp, Decision, Error, ErrorKind, FailureMode, Header, Key, KeyExtractor, Limiter,
    MemoryStore, PeerIp, Policy, Quota, RateLimitHeaders, RateLimitLayer, Rejection, Rule,
    decision::Outcome,
    key::{Bearer, Cookie, GrpcMethod, MatchedRoute, TrustedProxies, from_extension, from_extractor},
    store::ManualClock,
};

fn limit(name: &str, limit: u64, key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Policy::new(name, Quota::per_hour(limit)), key)
}

fn head(request: http::request::Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
}

#[test]
fn an_invalid_cookie_name_panics_when_the_extractor_is_built() {
    for name in ["", "a b", "a=b", "a;b", "a,b", "a\tb", "\u{fc}"] {
        assert!(std::panic::catch_unwind(|| Cookie::new(name)).is_err(), "{name:?}");
    }
    let _ = Cookie::new("__Host-session.id");
}

#[test]
fn an_invalid_value_of_a_configuration_is_an_error_or_a_panic_with_the_same_message() {
    fn client() -> ClientIp {
        ClientIp::behind(TrustedProxies::hops(1))
    }
    type Row = (&'static str, fn(), fn() -> Result<(), Error>);
    const COOKIE: &str = "\"a;b\" is not the name of a cookie";
    const HEADER: &str = "\"x:y\" is not a header name";
    const PREFIX: &str = "an IPv6 prefix must have 1 to 128 bits";
    const HOPS: &str = "the number of trusted proxies must be 1 to 64";
    const SECRET: &str = "a secret must have at least 16 bytes: use 32 random ones";
    let rows: [Row; 14] = [
        ("\"a b\" is not a header name", || drop(Header::new("a b")), || Header::try_new("a b").map(drop)),
        ("\"\" is not a header name", || drop(Header::new("")), || Header::try_new("").map(drop)),
        (COOKIE, || drop(Cookie::new("a;b")), || Cookie::try_new("a;b").map(drop)),
        ("\"\" is not the name of a cookie", || drop(Cookie::new("")), || Cookie::try_new("").map(drop)),
        (HEADER, || drop(client().header("x:y")), || client().try_header("x:y").map(drop)),
        (HOPS, || drop(TrustedProxies::hops(0)), || TrustedProxies::try_hops(0).map(drop)),
        (HOPS, || drop(TrustedProxies::hops(65)), || TrustedProxies::try_hops(65).map(drop)),
        (PREFIX, || drop(PeerIp::new().ipv6_prefix(0)), || PeerIp::new().try_ipv6_prefix(0).map(drop)),
        (PREFIX, || drop(PeerIp::new().ipv6_prefix(129)), || PeerIp::new().try_ipv6_prefix(129).map(drop)),
        (PREFIX, || drop(client().ipv6_prefix(0)), || client().try_ipv6_prefix(0).map(drop)),
        (SECRET, || drop(Key::new("all").hashed([7; 15])), || Key::new("all").try_hashed([7; 15]).map(drop)),
        (
            SECRET,
            || drop(RateLimitHeaders::default().partition_key("short")),
            || RateLimitHeaders::default().try_partition_key("short").map(drop),
        ),
        (
            "identity 1: no request has this identity: it must be the value of a header, without whitespace around it",
            || drop(Header::new("x").any_of([""])),
            || Header::new("x").try_any_of([""]).map(drop),
        ),
        (
            "identity 2: no request has this identity: it must be a bearer token without whitespace",
            || drop(Bearer::new().any_of(["a", "b c"])),
            || Bearer::new().try_any_of(["a", "b c"]).map(drop),
        ),
    ];
    for (message, panicking, fallible) in rows {
        let panic = std::panic::catch_unwind(panicking).expect_err(message);
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(message));
        let error = fallible().expect_err(message);
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidConfig, message));
    }
    assert!(Header::try_new("x-api-key").is_ok() && Cookie::try_new("s").is_ok());
    assert!(TrustedProxies::try_hops(64).is_ok() && client().try_header("forwarded").is_ok());
    assert!(PeerIp::new().try_ipv6_prefix(128).is_ok() && client().try_ipv6_prefix(1).is_ok());
    assert!(Key::new("all").try_hashed([7; 16]).is_ok());
    assert!(RateLimitHeaders::default().try_partition_key([7; 16]).is_ok());
}

/// Converts identities to lower case, and does not implement `keys_of`.
struct Lower;

impl KeyExtractor for Lower {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let name = request.headers.get("x-name").and_then(|name| name.to_str().ok());
        Answer::ready(Ok(Key::new(name.unwrap_or_default().to_lowercase())))
    }
}

#[tokio::test]
async fn an_extractor_type_without_keys_of_cannot_be_used_in_a_ban() {
    let message = "identity 1: `memory::key_extractors::Lower` does not implement `KeyExtractor::keys_of`, which `any_of` needs";
    let header = || Header::new("x-api-key");
    let extractors: [Box<dyn Fn() -> Box<dyn KeyExtractor>>; 7] = [
        Box::new(|| Box::new(Lower)),
        Box::new(|| Box::new(Lower.hashed([7; 32]))),
        Box::new(|| Box::new(Lower.map(|name: &str| name.to_owned()))),
        Box::new(|| Box::new(Lower.or(Lower))),
        // Not only the identities of the other side.
        Box::new(move || Box::new(Lower.or(header()))),
        Box::new(move || Box::new(header().or(Lower))),
        Box::new(move || Box::new(header().or(Lower.hashed([7; 32])))),
    ];
    for extractor in extractors {
        let error = extractor().try_any_of(["Mallory"]).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidConfig, message));
    }
    // A key that the extractor returned does not need `keys_of`.
    let request = head(Request::get("/").header("x-name", "Mallory"));
    let hashed = Lower.hashed([7; 32]).extract(&request).await.unwrap();
    assert!(Lower.hashed([7; 32]).any_of([hashed])(&request).await.unwrap());
}

#[tokio::test]
async fn looked_up_keys_of_an_identity_are_awaited_and_any_of_says_it_does_not_wait() {
    let lookup = |id: &str| {
        let id = id.to_owned();
        Answer::pending(async move {
            match &*id {
                "k-ann" => Ok(Key::new(7)),
                "k-down" => Err(Error::new(ErrorKind::IdentityUnavailable, "the database is down")),
                _ => Err(Error::new(ErrorKind::UnknownIdentity, "no account has this API key")),
            }
        })
    };
    let account = move || Header::new("x-api-key").map(lookup);
    let keys = async |extractor: &dyn KeyExtractor, named: Key| {
        let keys = extractor.keys_of(&named).await.map_err(|error| (error.kind(), error.to_string()))?;
        Ok(keys.iter().map(|key| key.as_str().to_owned()).collect::<Vec<_>>())
    };
    let unknown = "no request has this identity: no account has this API key".to_owned();
    let down = || Err((ErrorKind::IdentityUnavailable, "the database is down".to_owned()));
    assert_eq!(keys(&account(), Key::new("k-ann")).await, Ok(vec!["7".to_owned()]));
    assert_eq!(keys(&account(), Key::new("k-bob")).await, Err((ErrorKind::InvalidIdentity, unknown)));
    assert_eq!(keys(&account(), Key::new("k-down")).await, down());
    // A failure of the server is not taken for an identity of the other extractor.
    let either = account().or(PeerIp::new());
    assert_eq!(keys(&either, Key::new("k-down")).await, down());
    assert_eq!(keys(&either, Key::new("192.0.2.1")).await, Ok(vec!["%>192.0.2.1".to_owned()]));
    let twice = account().map(lookup).or(account());
    assert_eq!(keys(&twice, Key::new("k-ann")).await, Ok(vec!["%>7".to_owned()]));
    let both = (account(), Header::new("x-user"));
    assert_eq!(keys(&both, Key::new(("k-ann", "u"))).await, Ok(vec!["%(7%|u%)".to_owned()]));
    assert_eq!(keys(&both, Key::new(("k-down", "u"))).await, down());

    let extractors: [Box<dyn KeyExtractor>; 4] =
        [Box::new(account()), Box::new(account().hashed([7; 32])), Box::new(either), Box::new(twice)];
    for extractor in extractors {
        let error = extractor.try_any_of(["k-ann"]).map(drop).unwrap_err();
        let message = "identity 1: its key is looked up, and `any_of` does not wait for a lookup: call `any_of` before `map`";
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::InvalidConfig, message));
    }
    let error = both.try_any_of([("k-ann", "u")]).map(drop).unwrap_err();
    assert!(error.to_string().contains("call `any_of` before `map`"), "{error}");
}

#[tokio::test]
async fn a_tuple_of_values_is_the_key_of_a_tuple_of_extractors() {
    let request = head(Request::get("/").header("x-tenant", "acme").header("x-user", "7"));
    let both = (Header::new("x-tenant"), Header::new("x-user"));
    let returned = |_: &Parts| ("acme", 7);
    assert_eq!(both.extract(&request).await.unwrap(), returned.extract(&request).await.unwrap());
    assert!(both.clone().any_of([("acme", 7)])(&request).await.unwrap());
    assert!(!both.any_of([("acme", 8)])(&request).await.unwrap());
    let four = (|_: &Parts| ("a", "b", "c", 4), |_: &Parts| ("a", "b", "c"));
    assert_eq!(four.extract(&request).await.unwrap().as_str(), "%(%(a%|b%|c%|4%)%|%(a%|b%|c%)%)");
}

#[test]
fn every_public_type_of_keys_can_be_named_cloned_shown_and_shared() {
    fn holds<T: Clone + std::fmt::Debug + Send + Sync + 'static>() {}
    holds::<(Key, PeerIp, ClientIp, TrustedProxies, Header, Bearer, Cookie, GrpcMethod, MatchedRoute)>();
}

#[tokio::test]
async fn requests_that_match_no_route_share_a_separate_key() {
    let app = Router::new().route("/", get(async || "")).layer(limit("p", 1, MatchedRoute::new()));
    check_app("", &app, "/ 200; /nowhere 404; /elsewhere 429").await;
}

/// Otherwise all routes would share one limit.
#[tokio::test]
async fn a_matched_route_around_the_router_is_a_setup_error() {
    let router = || Router::new().route("/a", get(async || "")).route("/b", get(async || ""));
    for layer in
        [|| limit("p", 9, MatchedRoute::new()), || limit("p", 9, MatchedRoute::new().or(Key::new("all")))]
    {
        let in_another = Router::new().fallback_service(layer().layer(router()));
        check_app("there is a router around it", &in_another, "/a 200").await;
        check_app("`Router::layer`", &router().layer(layer()), "/a 200").await;
        let service = layer().layer(router());
        check_with("around the router", "/a 500; /b 500; /nowhere 500", async |request| {
            let response = service.clone().oneshot(request.map(Body::from)).await.unwrap();
            let status = response.status().as_u16();
            let body = text(response).await;
            assert!(body.starts_with('{') && body.contains("misconfigured"), "{body}");
            status
        })
        .await;
    }
    let error = MatchedRoute::new().extract(&head(Request::get("/a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingSetup);
    assert!(error.to_string().contains("Router::layer"), "{error}");
}

#[tokio::test]
async fn a_missing_extension_is_a_setup_error_unless_a_closure_reads_it() {
    let key = || from_extension(|user: &u64| *user);
    let error = key().extract(&head(Request::get("/"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingSetup);
    assert!(error.to_string().contains("`u64`"), "{error}");
    let user = |parts: &Parts| parts.extensions.get::<u64>().copied();
    let either = user.or(Key::new("anonymous"));
    assert!(either.extract(&head(Request::get("/"))).await.is_ok());
    assert_eq!(key().extract(&head(Request::get("/").extension(7_u64))).await.unwrap(), Key::new("7"));
}

/// The user with this token. The lookup is async.
struct User(String);

impl FromRequestParts<Vec<(&'static str, &'static str)>> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(
        request: &mut Parts,
        users: &Vec<(&'static str, &'static str)>,
    ) -> Result<Self, StatusCode> {
        tokio::task::yield_now().await;
        let token = request.headers.get("authorization").ok_or(StatusCode::UNAUTHORIZED)?;
        let user = users.iter().find(|(known, _)| token == known).ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self(user.1.into()))
    }
}

#[tokio::test]
async fn an_async_extractor_with_state_is_a_key_and_combines() {
    let users = vec![("t1", "alice"), ("t2", "bob"), ("t3", "alice")];
    let user = || from_extractor(users.clone(), |User(name)| name);
    let combined = (user().or(Key::new("anonymous")), |parts: &Parts| parts.method.to_string());
    let alice = Key::join([&Key::new("alice"), &Key::new("GET")]);
    let missing = Err(ErrorKind::MissingIdentity);
    for (token, name, is_alice) in
        [("t1", Ok("alice"), true), ("t3", Ok("alice"), true), ("t9", missing, false)]
    {
        let request = head(Request::get("/").header("authorization", token));
        let key = user().extract(&request).await.map_err(|error| error.kind());
        assert_eq!(key, name.map(Key::new), "{token}");
        assert_eq!(combined.extract(&request).await.unwrap() == alice, is_alice, "{token}");
    }
    let script = "authorization=t1 200; authorization=t3 429; authorization=t2 200; authorization=t9 400";
    check("alice's two tokens share a limit", &limit("per-user", 1, user()), script).await;
}

#[tokio::test]
async fn an_axum_extractor_that_fails_is_answered_500_without_details() {
    let broken = || from_extractor((), |Extension(name): Extension<String>| name);
    let error = broken().extract(&head(Request::get("/"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityUnavailable);
    let response = ask(&limit("p", 1, broken()), Request::get("/").body(String::new()).unwrap()).await;
    assert_eq!(response.status(), 500);
    let body = text(response).await;
    assert!(!body.contains("set up") && !body.contains("extractor"), "{body}");
}

#[tokio::test]
async fn an_extractor_sees_the_whole_head() {
    type Head = (Method, Uri, Extension<u8>);
    let key = from_extractor((), |(method, uri, Extension(n)): Head| format!("{method} {uri} {n}"));
    let request = head(Request::post("/a?b=c").extension(7_u8));
    assert_eq!(key.extract(&request).await.unwrap(), Key::new("POST /a?b=c 7"));
}

/// Denies every request with the status that is the state.
struct Denied;

impl FromRequestParts<StatusCode> for Denied {
    type Rejection = StatusCode;

    async fn from_request_parts(_: &mut Parts, status: &StatusCode) -> Result<Self, StatusCode> {
        Err(*status)
    }
}

#[tokio::test]
async fn the_status_of_an_axum_extractors_rejection_decides_between_400_and_500() {
    let (failure, missing) = (ErrorKind::IdentityUnavailable, ErrorKind::MissingIdentity);
    let failures = [303, 399, 500, 503].map(|status| (status, failure));
    for (status, kind) in [400, 404, 499].map(|status| (status, missing)).into_iter().chain(failures) {
        let key = from_extractor(StatusCode::from_u16(status).unwrap(), |_: Denied| "all");
        let error = key.extract(&head(Request::get("/"))).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{status}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
}

#[tokio::test]
async fn a_mapped_key_may_be_async_and_keeps_the_error_kind() {
    let shout = |identity: &str| identity.to_uppercase();
    let later = from_extractor(vec![("t1", "alice")], |User(name)| name).map(shout);
    let with = |token: &str| head(Request::get("/").header("authorization", token));
    assert_eq!(later.extract(&with("t1")).await.unwrap(), Key::new("ALICE"));
    assert_eq!(later.extract(&with("t9")).await.unwrap_err().kind(), ErrorKind::MissingIdentity);
    let no_layer = from_extension(|user: &u64| *user).map(shout);
    let error = no_layer.extract(&head(Request::get("/"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingSetup);
}

#[tokio::test]
async fn a_hashed_key_hides_the_identity_and_depends_on_the_secret() {
    let hashed = async |secret: &str, value: &str| {
        let request = head(Request::get("/").header("x-api-key", value));
        Header::new("x-api-key").hashed(secret).extract(&request).await.unwrap()
    };
    let one = hashed("0123456789abcdef", "secret-key").await;
    assert!(!one.as_str().contains("secret"), "{}", one.as_str());
    assert_eq!(one, hashed("0123456789abcdef", "secret-key").await);
    assert_ne!(one, hashed("0123456789abcdef", "secret-kez").await);
    assert_ne!(one, hashed("0123456789abcdeF", "secret-key").await);
    // No client can send that key as text.
    assert_ne!(one, Key::new(one.as_str()));
}

#[tokio::test]
async fn a_hashed_key_is_the_same_in_every_version() {
    // Instances of two versions share their counts during a rolling update.
    let key = Key::new("user-4").hashed(b"0123456789abcdef");
    let hashed = key.extract(&head(Request::get("/"))).await.unwrap();
    assert_eq!(hashed.as_str(), "%*a6949588618bfddffa881161bfd2fd6d");
}

#[test]
#[should_panic(expected = "at least 16 bytes")]
fn a_short_secret_panics_when_the_extractor_is_built() {
    let _ = Header::new("x-api-key").hashed("15 bytes of it!");
}

#[test]
fn a_secret_is_not_shown_by_debug() {
    let secret = "0123456789abcdef";
    let key = Header::new("x-api-key").hashed(secret);
    let fields = RateLimitHeaders::default().partition_key(secret);
    let layer = limit("p", 1, key).headers(fields.clone());
    let shown = format!("{fields:?} {layer:?}");
    // Neither as text nor as numbers.
    assert!(!shown.contains("0123") && !shown.contains("48, 49"), "{shown}");
}

#[tokio::test]
async fn identities_can_be_exempt_or_banned_and_a_ban_comes_first() {
    let api_key = || Header::new("x-api-key");
    let layer = limit("p", 1, Key::new("all"))
        .exempt_if(api_key().any_of(["d", "partner", "e", "c", "both"]))
        .exempt_if(from_extractor(vec![("t1", "admin")], |User(name)| name).any_of(["admin"]))
        .block_if(api_key().any_of(["mallory", "both"]))
        .block_if(|parts| parts.uri.path() == "/admin");
    check("the limit", &layer, "x-api-key=anyone 200 429").await;
    check("exempt", &layer, "x-api-key=partner 200 200 200; authorization=t1 200 200 200").await;
    check("any number in any order", &layer, "x-api-key=c 200; x-api-key=d 200; x-api-key=e 200").await;
    check("banned", &layer, "x-api-key=both 429; x-api-key=mallory 429; /admin authorization=t1 429").await;
    let banned = ask(&layer, request("x-api-key=both")).await;
    assert!(!banned.headers().contains_key("retry-after"));
    assert_eq!(banned.headers()["cache-control"], "no-store");
    let problem: serde_json::Value = serde_json::from_str(&text(banned).await).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
}

#[tokio::test]
async fn a_ban_may_depend_on_an_async_extractor() {
    let user = || from_extractor(vec![("t1", "mallory"), ("t2", "bob")], |User(name)| name);
    let layer = limit("p", 9, Key::new("all"))
        .block_if(user().any_of(["mallory"]))
        .exempt_if(|parts| parts.uri.path() == "/health");
    check("banned", &layer, "authorization=t1 429; /health authorization=t1 429").await;
    check("not", &layer, "authorization=t2 200; /health authorization=t2 200; authorization=t9 200").await;
}

#[tokio::test]
async fn a_ban_applies_to_preflights_too_even_if_it_is_async() {
    let immediate = |_: &Parts| Key::new("mallory");
    let later = |_: &Parts| Answer::pending(async { Ok(Key::new("mallory")) });
    let exempt = || limit("p", 1, Key::new("all")).exempt_if(|parts: &Parts| parts.method == Method::OPTIONS);
    for (named, script) in [("mallory", "PREFLIGHT / 429 429 429"), ("another", "PREFLIGHT / 200 200 200")] {
        for layer in [|| limit("p", 9, Key::new("all")), exempt] {
            check(named, &layer().block_if(immediate.any_of([named])), script).await;
            check(named, &layer().block_if(later.any_of([named])), script).await;
        }
    }
}

#[tokio::test]
async fn addresses_can_be_exempt_by_their_network() {
    let layer = limit("per-ip", 1, PeerIp::new())
        .exempt_if(PeerIp::new().within(["192.0.2.0/24", "2001:db8::/32"]).unwrap());
    let script = "from=192.0.2.9 200 200; from=2001:db8::9 200 200; from=198.51.100.1 200 429";
    check("", &layer, script).await;
}

#[tokio::test]
async fn a_closure_may_be_async() {
    let slow = |parts: &Parts| {
        let path = parts.uri.path().to_owned();
        Answer::pending(async move {
            tokio::task::yield_now().await;
            match path.as_str() {
                "/" => Err(Error::new(ErrorKind::MissingIdentity, "no user")),
                path => Ok(Key::new(path)),
            }
        })
    };
    check("", &limit("p", 1, slow), "/a 200 429; /b 200; / 400").await;
}

#[tokio::test]
async fn each_extractor_matcher_and_cost_function_runs_once_per_request() {
    let counts: [_; 5] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    let key = |of: usize, late: bool| {
        let count = counts[of].clone();
        move |_: &Parts| {
            count.fetch_add(1, Ordering::Relaxed);
            match late {
                true => Answer::pending(async { Ok(Key::new("all")) }),
                false => Answer::ready(Ok(Key::new("all"))),
            }
        }
    };
    for late in 0..32 {
        let is_late = |of: usize| late >> of & 1 == 1;
        let cost = counts[4].clone();
        let policy = |name: &str| Policy::new(name, Quota::per_hour(9));
        let first = Rule::new(policy("a"), key(2, is_late(2))).cost(move |_| {
            cost.fetch_add(1, Ordering::Relaxed);
            1
        });
        let layer = RateLimitLayer::with_rules(MemoryStore::with_clock(ManualClock::new()), first)
            .rule(Rule::new(policy("b"), key(3, is_late(3))))
            .block_if(key(0, is_late(0)).any_of(["no-client"]))
            .exempt_if(key(1, is_late(1)).any_of(["no-client"]));
        let response = ask(&layer, Request::get("/").body(String::new()).unwrap()).await;
        assert_eq!(response.headers()["ratelimit"], r#""a";r=8;t=3200, "b";r=8;t=3200"#);
        assert_eq!(counts.each_ref().map(|count| count.swap(0, Ordering::Relaxed)), [1; 5], "{late:b}");
    }
}

#[tokio::test]
async fn handlers_extract_the_decision_and_the_limiter_and_fail_if_they_are_missing() {
    async fn handler(State(()): State<()>, decision: Option<Decision>, limiter: Limiter) -> String {
        let more = match &decision {
            Some(decision) => limiter.charge_more(decision, 2).await.unwrap().remaining(),
            None => None,
        };
        format!("{:?} {more:?}", decision.and_then(|decision| decision.remaining()))
    }
    let app = Router::new()
        .route("/", get(handler))
        .route("/strict", get(async |_: Decision| "strict"))
        .layer(limit("p", 9, Key::new("all")).exempt_if(|parts| parts.uri.query().is_some()))
        .route("/bare", get(handler))
        .route("/bare-strict", get(async |_: Decision| "strict"));
    let ask = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 9_999).await.unwrap();
        (status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(ask("/").await, (200, "Some(8) Some(6)".into()));
    assert_eq!(ask("/?free").await, (200, "None None".into()));
    let (status, body) = ask("/bare").await;
    assert!(status == 500 && body.contains("misconfigured"), "{body}");
    // A layer that does not charge the request is not a mistake.
    assert_eq!(ask("/strict?free").await.0, 200);
    assert_eq!(ask("/strict").await.0, 200);
    assert_eq!(ask("/bare-strict").await.0, 500);
}

#[tokio::test]
async fn a_denial_by_a_handler_writes_the_headers_once_and_as_the_layer_does() {
    for (units, retry_after) in [(4, Some("900")), (5, None)] {
        let handler = async move |decision: Decision, limiter: Limiter| {
            limiter.charge_more(&decision, units).await?.into_result()?;
            Ok::<_, Rejection>("done")
        };
        let app = Router::new().route("/", get(handler)).layer(limit("p", 4, Key::new("all")));
        let response = app.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 429);
        let fields = |name| response.headers().get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(fields("ratelimit"), [r#""p";r=3"#]);
        assert_eq!(fields("retry-after"), retry_after.as_slice());
        assert_eq!(fields("cache-control"), ["no-store"]);
        assert!(!response.extensions().get::<Decision>().unwrap().is_admitted());
    }
}

#[tokio::test]
async fn a_handler_gets_the_limiter_and_the_decision_of_the_innermost_layer() {
    let handler = async |decision: Decision, limiter: Limiter| {
        limiter.charge_more(&decision, 2).await.unwrap().remaining().unwrap().to_string()
    };
    // Each layer has its own store.
    let (inner, outer) = (limit("inner", 5, Key::new("all")), limit("outer", 9, Key::new("all")));
    let app = Router::new().route("/", get(handler)).layer(inner).layer(outer);
    let response = app.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(axum::body::to_bytes(response.into_body(), 9).await.unwrap(), "2");
}

#[tokio::test]
async fn further_charges_and_refunds_apply_to_every_key_of_the_decision() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let (narrow, wide) = (Policy::new("narrow", Quota::per_hour(5)), Policy::new("wide", Quota::per_hour(9)));
    let charges =
        [Charge::new(&narrow, &Key::new("alice"), 1), Charge::new(&wide, &Key::new("everybody"), 1)];
    let left = |decision: &Decision| decision.outcomes().iter().map(Outcome::remaining).collect::<Vec<_>>();
    let decision = limiter.check_all(&charges).await.unwrap();
    assert_eq!(left(&decision), [4, 8]);
    let more = limiter.charge_more(&decision, 3).await.unwrap();
    assert_eq!(left(&more), [1, 5]);
    // The further charge is all or nothing.
    assert!(!limiter.charge_more(&decision, 2).await.unwrap().is_admitted());
    assert_eq!(left(&limiter.refund(&more, 2).await.unwrap()), [3, 7]);
    assert_eq!(left(&limiter.peek_all(&charges).await.unwrap()), [3, 7]);
}

#[tokio::test]
async fn no_further_charge_is_sent_after_a_store_failure() {
    let store = Counted::new(Down);
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("p", Quota::per_hour(5)).failure_mode(FailureMode::Open);
    let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    for later in [limiter.charge_more(&decision, 2).await, limiter.refund(&decision, 1).await] {
        let later = later.unwrap();
        assert!(later.is_admitted());
        // Nothing was refunded either.
        assert_eq!(later.failure().unwrap().kind(), ErrorKind::StoreUnreachable);
    }
    assert_eq!(store.asked(), 1);
}

#[tokio::test]
async fn a_handlers_charge_on_another_key_leaves_the_clients_own_item() {
    let policy = || Policy::new("p", Quota::per_hour(9));
    for (others, status) in [(2, 200), (10, 429)] {
        let handler = async move |limiter: Limiter| {
            let charged =
                limiter.check(&policy(), &Key::new("another-client"), others).await?.into_result()?;
            Ok::<_, Rejection>((charged, "done"))
        };
        for headers in [RateLimitHeaders::default(), RateLimitHeaders::default().binding_only()] {
            let layer = limit("p", 9, Key::new("all")).headers(headers);
            let app = Router::new().route("/", get(handler)).layer(layer);
            let response = app.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()["ratelimit-policy"], r#""p";q=9;w=3600"#);
            let fields: Vec<_> =
                response.headers().get_all("ratelimit").iter().map(|v| v.to_str().unwrap()).collect();
            assert_eq!(fields, [if status == 200 { r#""p";r=8;t=3200"# } else { r#""p";r=8"# }]);
            let decision = response.extensions().get::<Decision>().unwrap();
            assert_eq!((decision.outcomes().len(), decision.is_admitted()), (2, status == 200));
        }
    }
}

#[tokio::test]
async fn nested_layers_each_add_their_headers_once() {
    let inner = limit("inner", 5, Key::new("all"));
    let outer = limit("outer", 9, Key::new("all"));
    let app = Router::new().route("/", get(async || "").layer(inner)).layer(outer);
    let response = app.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
    let fields: Vec<_> =
        response.headers().get_all("ratelimit").iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(fields, [r#""inner";r=4;t=2880"#, r#""outer";r=8;t=3200"#]);
    assert_eq!(response.extensions().get::<Decision>().unwrap().outcomes().len(), 2);
}

proptest! {
    #[test]
    fn cookies_of_any_bytes_do_not_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(value) = http::HeaderValue::from_bytes(&line) {
            let parts = head(Request::get("/").header("cookie", value));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            if let Ok(key) = runtime.block_on(Cookie::new("s").extract(&parts)) {
                prop_assert!(key.as_str().len() <= 96);
            }
        }
    }
}
