//! The router for operators, over a real socket.

use std::{panic::AssertUnwindSafe, time::Duration};

use axum::{Router, routing::get};
use http::{Method, Request, request::Parts};
use serde_json::{Value, json};
use support::{
    Directory, Down, Fake, RedisServer, eventually,
    http::{Client, serve},
    settings, store,
};
use tower::ServiceExt as _;
use tower_ratelimit::{
    Error, ErrorKind, FailureMode, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, Quota,
    RateLimitLayer, RedisStore,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    policy::{Enforcement, EnforcementSwitch, Penalty},
    store::ManualClock,
};
use tower_ratelimit_extra::lookup::Lookup;
use tower_ratelimit_operate::{
    admin::{self, Admin, Policies},
    live::LivePolicies,
};

/// A client of one server.
pub(crate) struct Operator {
    client: Client,
    base: String,
}

/// The status, the type and the body of a response.
pub(crate) type Answer = (u16, String, Value);

impl Operator {
    pub(crate) async fn of(router: Router) -> Self {
        let base = format!("http://{}", serve(router).await);
        Self { client: Client::new(), base }
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<&str>) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let response = self.client.send(request.body(body.unwrap_or_default().to_owned()).unwrap()).await;
        let status = response.status().as_u16();
        let kind = response.headers().get("content-type");
        let kind = kind.map_or("", |kind| kind.to_str().unwrap()).to_owned();
        if status != 204 && status != 405 {
            assert_eq!(response.headers()["cache-control"], "no-store", "{path}");
        }
        let text = response.into_body();
        (status, kind, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() })
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, kind, body) = self.ask(Method::GET, path, None).await;
        assert_eq!((status, &*kind), (200, "application/json"), "{path}: {body}");
        body
    }

    /// Asserts that the answer is this problem.
    pub(crate) async fn problem(
        &self,
        method: Method,
        path: &str,
        body: Option<&str>,
        status: u16,
        detail: &str,
    ) {
        let (actual, kind, problem) = self.ask(method.clone(), path, body).await;
        let context = format!("{method} {path} {body:?}: {problem}");
        assert_eq!((actual, &*kind), (status, "application/problem+json"), "{context}");
        assert_eq!((&problem["type"], &problem["status"]), (&json!("about:blank"), &json!(status)));
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{context}");
    }
}

fn login() -> Policy {
    Policy::new("login", Quota::per_minute(5))
}

/// The answer of a switch that moves one instance.
fn here(enforcement: &str) -> Value {
    json!({"enforcement": enforcement, "applies_to": "this-instance"})
}

fn stopped() -> Limiter {
    Limiter::new(MemoryStore::with_clock(ManualClock::new()))
}

#[tokio::test]
async fn every_route_does_what_it_says_on_either_store() {
    let server = RedisServer::start();
    let redis = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    for (name, limiter, stored) in
        [("memory", stopped(), None), ("redis", Limiter::new(redis), Some("rl:login:gcra:{alice}"))]
    {
        let switch = EnforcementSwitch::default();
        let policies = [login(), Policy::concurrency("exports", 2)];
        let operator =
            Operator::of(Admin::new(limiter.clone(), policies).enforcement(&switch).router()).await;
        let (alice, path) = (Key::new("alice"), "/policies/login/keys/alice");

        let policies = operator.get("/policies").await;
        assert_eq!(policies["policies"][0], operator.get("/policies/login").await, "{name}");
        assert_eq!(policies["policies"][1]["algorithm"], "concurrency", "{name}");
        assert!(policies["warnings"][0].as_str().unwrap().contains("count it by SlidingLog"), "{name}");

        limiter.check(&login(), &alice, 5).await.unwrap();
        let denied = operator.get(path).await;
        assert_eq!((&denied["verdict"], &denied["retry_after"]), (&json!("denied"), &json!(12.0)), "{name}");
        let charge = &denied["charges"][0];
        assert_eq!((&charge["remaining"], &charge["reset_after"]), (&json!(0), &json!(60.0)), "{name}");
        assert_eq!(charge["stored_as"], json!(stored), "{name}");
        assert_eq!(operator.get(&format!("{path}?cost=6")).await["retry_after"], Value::Null, "{name}");
        assert_eq!(operator.get(&format!("{path}?cost=0")).await["verdict"], "admitted", "{name}");

        let refund = operator.ask(Method::POST, &format!("{path}/refund"), Some(r#"{"units": 2}"#)).await;
        assert_eq!(refund.0, 200, "{name}");
        assert_eq!(refund.2, json!({"remaining": 2, "capacity": 5, "reset_after": 36.0}), "{name}");
        assert!(limiter.check(&login(), &alice, 2).await.unwrap().is_admitted(), "{name}");
        // More than was charged.
        let refund = operator.ask(Method::POST, &format!("{path}/refund"), Some(r#"{"units": 99}"#)).await;
        assert_eq!(refund.2, json!({"remaining": 5, "capacity": 5, "reset_after": 0.0}), "{name}");

        limiter.check(&login(), &alice, 5).await.unwrap();
        let removed = operator.ask(Method::DELETE, path, None).await;
        assert_eq!(removed, (204, String::new(), Value::Null), "{name}");
        assert!(limiter.check(&login(), &alice, 5).await.unwrap().is_admitted(), "{name}");

        assert_eq!(operator.get("/enforcement").await, here("on"), "{name}");
        for (text, position) in
            [("off", Enforcement::Off), ("report-only", Enforcement::ReportOnly), ("on", Enforcement::On)]
        {
            let body = format!(r#"{{"enforcement": "{text}"}}"#);
            let (status, _, answer) = operator.ask(Method::PUT, "/enforcement", Some(&body)).await;
            assert_eq!((status, answer), (200, here(text)), "{name}");
            assert_eq!(switch.get(), position, "{name}");
        }
    }
}

#[tokio::test]
async fn a_switch_in_redis_moves_all_instances_or_none() {
    let mut server = RedisServer::start();
    let mut instances = Vec::new();
    for _ in 0..2 {
        let store = store(&server).await;
        let live = LivePolicies::redis(&store, [login()]).await.unwrap();
        let admin = Admin::new(Limiter::new(store), &live).enforcement(&live);
        instances.push((Operator::of(admin.router()).await, live));
    }
    let [(operator, here), (_, elsewhere)] = <[_; 2]>::try_from(instances).ok().unwrap();
    let all = |enforcement: &str| json!({"enforcement": enforcement, "applies_to": "all-instances"});
    assert_eq!(operator.get("/enforcement").await, all("on"));
    for (text, position) in [("off", Enforcement::Off), ("report-only", Enforcement::ReportOnly)] {
        let body = format!(r#"{{"enforcement": "{text}"}}"#);
        let (status, _, answer) = operator.ask(Method::PUT, "/enforcement", Some(&body)).await;
        assert_eq!((status, answer), (200, all(text)));
        assert_eq!(here.enforcement().get(), position);
        assert!(eventually(async || elsewhere.enforcement().get() == position).await);
        assert_eq!(server.command::<String>(&["HGET", "rl:policies", "@enforcement"]), text);
    }
    // An instance that was moved alone follows a move of all, even to the position that all others have.
    elsewhere.enforcement().set(Enforcement::Off);
    let same = Some(r#"{"enforcement": "report-only"}"#);
    assert_eq!(operator.ask(Method::PUT, "/enforcement", same).await.0, 200);
    assert!(eventually(async || elsewhere.enforcement().get() == Enforcement::ReportOnly).await);
    // Both, because one that follows later would end a move of itself alone.
    let both = [&here, &elsewhere];
    both.iter().for_each(|one| one.enforcement().set(Enforcement::Off));
    let () = server.command(&["HSET", "rl:policies", "@moved", "by hand"]);
    assert!(
        eventually(async || both.iter().all(|one| one.enforcement().get() == Enforcement::ReportOnly)).await
    );
    assert_eq!((here.last_error().is_none(), elsewhere.last_error().is_none()), (true, true));

    let only_here = r#"{"enforcement": "on", "applies_to": "this-instance"}"#;
    let (status, _, answer) = operator.ask(Method::PUT, "/enforcement", Some(only_here)).await;
    assert_eq!((status, answer["applies_to"].as_str()), (200, Some("this-instance")));
    assert_eq!(here.enforcement().get(), Enforcement::On);
    assert_eq!(server.command::<String>(&["HGET", "rl:policies", "@enforcement"]), "report-only");

    // Without Redis, no instance moves, unless it is meant alone.
    server.kill();
    let off = Some(r#"{"enforcement": "off"}"#);
    operator.problem(Method::PUT, "/enforcement", off, 503, "Redis").await;
    assert_eq!(here.enforcement().get(), Enforcement::On);
    let only_here = only_here.replace(r#""on""#, r#""off""#);
    assert_eq!(operator.ask(Method::PUT, "/enforcement", Some(&only_here)).await.0, 200);
    assert_eq!(here.enforcement().get(), Enforcement::Off);
}

#[tokio::test]
async fn a_switch_of_a_file_or_a_process_moves_one_instance() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    std::fs::write(&path, "[[policies]]\nname = 'login'\nquota = '5/min'\n").unwrap();
    let live = LivePolicies::file(&path).unwrap();
    let file = Operator::of(Admin::new(stopped(), &live).enforcement(&live).router()).await;
    // A fixed list would show the policies of the start.
    let stale = Operator::of(Admin::new(stopped(), login()).enforcement(&live).router()).await;
    let is_named = async |operator: &Operator| {
        let warnings = operator.get("/policies").await["warnings"].to_string();
        warnings.contains("pass the live policies to `Admin::new`")
    };
    assert_eq!([is_named(&file).await, is_named(&stale).await], [false, true]);
    let switch = EnforcementSwitch::default();
    let process = Operator::of(Admin::new(stopped(), login()).enforcement(&switch).router()).await;
    for (name, operator) in [("file", file), ("process", process)] {
        let (status, _, answer) =
            operator.ask(Method::PUT, "/enforcement", Some(r#"{"enforcement": "off"}"#)).await;
        assert_eq!((status, answer), (200, here("off")), "{name}");
        let all = Some(r#"{"enforcement": "on", "applies_to": "all-instances"}"#);
        operator.problem(Method::PUT, "/enforcement", all, 409, "moves this instance only").await;
        assert_eq!(operator.get("/enforcement").await, here("off"), "{name}");
    }
    assert_eq!((live.enforcement().get(), switch.get()), (Enforcement::Off, Enforcement::Off));
}

#[tokio::test]
async fn keys_are_banned_listed_and_unbanned_on_either_store() {
    let server = RedisServer::start();
    let redis = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    for (name, limiter) in [("memory", stopped()), ("redis", Limiter::new(redis))] {
        let policy = login().penalty(Penalty::manual());
        let policies = [policy.clone(), Policy::new("plain", Quota::per_hour(1))];
        let operator = Operator::of(admin::router(limiter.clone(), policies)).await;
        let ban = "/policies/login/keys/Jos%C3%A9/ban";
        for (path, seconds) in [(ban, 600), ("/policies/login/keys/bob/ban", 90), (ban, 700)] {
            let body = format!(r#"{{"seconds": {seconds}}}"#);
            assert_eq!(operator.ask(Method::POST, path, Some(&body)).await.0, 204, "{name}");
        }
        let decision = limiter.check(&policy, &Key::new("José"), 1).await.unwrap();
        assert_eq!(decision.banned_for(), Some(Duration::from_secs(700)), "{name}");
        let charge = operator.get("/policies/login/keys/Jos%C3%A9").await["charges"][0].clone();
        assert_eq!((&charge["banned_for"], &charge["verdict"]), (&json!(700.0), &json!("denied")), "{name}");
        let bans = operator.get("/policies/login/bans").await;
        let expected = json!({"bans": [
            {"key": "Jos%C3%A9", "identity": "José", "key_hash": charge["key_hash"], "banned_for": 700.0},
            {"key": "bob", "identity": "bob", "key_hash": bans["bans"][1]["key_hash"], "banned_for": 90.0},
        ], "is_complete": true});
        assert_eq!(bans, expected, "{name}");

        assert_eq!(operator.ask(Method::DELETE, ban, None).await.0, 204, "{name}");
        assert!(limiter.check(&policy, &Key::new("José"), 1).await.unwrap().is_admitted(), "{name}");
        assert_eq!(operator.get("/policies/login/bans").await["bans"].as_array().unwrap().len(), 1, "{name}");

        let seconds = |text: &str| format!(r#"{{"seconds": {text}}}"#);
        let post = Method::POST;
        for wrong in ["0", "315360001"] {
            operator.problem(post.clone(), ban, Some(&seconds(wrong)), 400, "from 1 to 315360000").await;
        }
        for wrong in ["-1", "1e9", "99999999999999999999", "\"10\""] {
            let example = r#"such as {"seconds": 600}"#;
            operator.problem(post.clone(), ban, Some(&seconds(wrong)), 400, example).await;
        }
        operator.problem(post.clone(), ban, None, 415, "application/json").await;
        let add = "add `.penalty(Penalty::manual())` to it";
        let plain = "/policies/plain/keys/a/ban";
        operator.problem(post, plain, Some(&seconds("9")), 409, add).await;
        operator.problem(Method::DELETE, plain, None, 409, add).await;
        operator.problem(Method::GET, "/policies/plain/bans", None, 409, add).await;
    }
    let policy = login().penalty(Penalty::manual());
    let operator = Operator::of(admin::router(Down, policy)).await;
    let time = Some(r#"{"seconds": 9}"#);
    operator.problem(Method::POST, "/policies/login/keys/a/ban", time, 503, "secret of the store").await;
    operator.problem(Method::DELETE, "/policies/login/keys/a/ban", None, 503, "secret of the store").await;
}

#[tokio::test]
async fn a_locked_out_client_is_unlocked_by_one_request_on_either_store() {
    let server = RedisServer::start();
    let redis = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    for (name, limiter) in [("memory", stopped()), ("redis", Limiter::new(redis))] {
        let policy = login().algorithm(SlidingLog::new());
        let policy = policy.penalty(Penalty::after(1, Duration::from_secs(600)));
        let policies = [policy.clone(), Policy::new("plain", Quota::per_hour(1))];
        let operator = Operator::of(admin::router(limiter.clone(), policies)).await;
        let ann = Key::new("ann@example.com");
        for _ in 0..6 {
            limiter.check(&policy, &ann, 1).await.unwrap();
        }
        assert!(limiter.check(&policy, &ann, 1).await.unwrap().banned_for().is_some(), "{name}");
        let unlock = "/policies/login/keys/ann@example.com/unlock";
        // A web page of another origin can send these.
        operator.problem(Method::POST, unlock, None, 415, "application/json").await;
        operator.problem(Method::POST, unlock, Some("[]"), 400, "such as {}").await;
        operator.problem(Method::POST, unlock, Some(r#"{"units": 5}"#), 400, "units").await;
        assert_eq!(operator.ask(Method::POST, unlock, Some("{}")).await.0, 204, "{name}");
        let decision = limiter.check(&policy, &ann, 1).await.unwrap();
        assert_eq!((decision.is_admitted(), decision.remaining()), (true, Some(4)), "{name}");
        let changes = operator.get("/changes").await;
        assert_eq!(changes["changes"][0]["kind"], "unlock", "{name}: {changes}");
        assert_eq!(changes["changes"][0]["key_hash"], json!(ann.digest()), "{name}: {changes}");
        assert_eq!(changes["changes"].as_array().unwrap().len(), 1, "{name}: {changes}");

        let plain = Policy::new("plain", Quota::per_hour(1));
        limiter.check(&plain, &ann, 1).await.unwrap();
        let path = "/policies/plain/keys/ann@example.com/unlock";
        assert_eq!(operator.ask(Method::POST, path, Some("{}")).await.0, 204, "{name}");
        assert!(limiter.check(&plain, &ann, 1).await.unwrap().is_admitted(), "{name}");
    }
    let operator = Operator::of(admin::router(Down, login())).await;
    operator
        .problem(Method::POST, "/policies/login/keys/a/unlock", Some("{}"), 503, "secret of the store")
        .await;
}

#[tokio::test]
async fn any_key_can_be_named() {
    let limiter = stopped();
    let operator = Operator::of(admin::router(limiter.clone(), login())).await;
    let secret = Header::new("x-api-key").hashed("0123456789abcdef");
    let keys = [
        ("alice", Key::new("alice")),
        ("203.0.113.7", Key::new("203.0.113.7")),
        ("2001:db8::%2F64", Key::new("2001:db8::/64")),
        ("Jos%C3%A9%20Ortega", Key::new("José Ortega")),
        ("a%2Fb%3Fc%23", Key::new("a/b?c#")),
        ("100%2525", Key::new("100%")),
        ("%25", Key::new("")),
        ("%25FF", Key::new(b"\xff")),
        ("%25(acme%25%7Calice%25)", Key::from(("acme", "alice"))),
        ("%25%3E203.0.113.7", Key::from_stored("%>203.0.113.7").unwrap()),
        (&"x".repeat(3_000), Key::new("x".repeat(3_000))),
        (
            "%25*a6949588618bfddffa881161bfd2fd6d",
            secret.keys_of(&Key::new("user-4")).await.unwrap().remove(0),
        ),
    ];
    for (segment, key) in keys {
        limiter.check(&login(), &key, 3).await.unwrap();
        let explanation = operator.get(&format!("/policies/login/keys/{segment}")).await;
        assert_eq!(explanation["charges"][0]["key"], key.as_str(), "{segment}");
        assert_eq!(explanation["charges"][0]["remaining"], 2, "{segment}");
    }
}

#[tokio::test]
async fn an_extractor_finds_the_key_of_an_identity() {
    let limiter = stopped();
    let policies = ["per-ip", "per-key", "either"].map(|name| Policy::new(name, Quota::per_hour(5)));
    let hashed = || Header::new("x-api-key").hashed("0123456789abcdef");
    let either = || Header::new("x-api-key").or(PeerIp::new());
    let admin = Admin::new(limiter, policies)
        .keys_of("per-ip", PeerIp::new())
        .keys_of("per-key", hashed())
        .keys_of("either", either());
    let operator = Operator::of(admin.router()).await;
    let stored = "%25*a6949588618bfddffa881161bfd2fd6d";
    let rows = [
        ("per-ip/keys/2001:db8::1", "2001:db8::/64", json!("2001:db8::/64")),
        ("per-ip/keys/2001:db8::%2F64", "2001:db8::/64", json!("2001:db8::/64")),
        ("per-ip/keys/%25%5E203.0.113.7", "%^203.0.113.7", json!("203.0.113.7")),
        ("per-key/keys/user-4", "%*a6949588618bfddffa881161bfd2fd6d", json!("user-4")),
        (&format!("per-key/keys/{stored}"), "%*a6949588618bfddffa881161bfd2fd6d", Value::Null),
        ("either/keys/%25%3E203.0.113.7", "%>203.0.113.7", json!("203.0.113.7")),
        // No address.
        ("either/keys/k-ann", "k-ann", json!("k-ann")),
    ];
    for (path, key, identity) in rows {
        let charge = operator.get(&format!("/policies/{path}")).await["charges"][0].clone();
        assert_eq!((&charge["key"], &charge["identity"]), (&json!(key), &identity), "{path}");
    }
    let problem = async |path: &str, status, detail| {
        operator.problem(Method::GET, &format!("/policies/{path}"), None, status, detail).await;
    };
    problem("per-ip/keys/alice", 400, "is not an IP address").await;
    problem("either/keys/203.0.113.7", 409, "name one of `203.0.113.7`, `%>203.0.113.7`").await;
}

#[tokio::test]
async fn a_looked_up_key_is_found_by_the_identity_that_clients_send() {
    let accounts = Lookup::new(|api_key: String| async move {
        match &*api_key {
            "k-ann" => Ok(7),
            "k-down" => Err(Error::new(ErrorKind::IdentityUnavailable, "the database is down")),
            "k-panic" => panic!("a bug of the user's"),
            _ => Err(Error::new(ErrorKind::UnknownIdentity, "no account has this API key")),
        }
    });
    let account = move || {
        let accounts = accounts.clone();
        Header::new("x-api-key").map(move |api_key| accounts.get(api_key).map(Key::new))
    };
    let hashed = |_: &Parts| Key::new(7);
    let hashed = hashed.hashed("0123456789abcdef").extract(&Request::new(()).into_parts().0).await.unwrap();
    let limiter = stopped();
    let policies = ["account", "hashed", "either"].map(|name| Policy::new(name, Quota::per_hour(5)));
    let admin = Admin::new(limiter.clone(), policies)
        .keys_of("account", account())
        .keys_of("hashed", account().hashed("0123456789abcdef"))
        .keys_of("either", account().or(PeerIp::new()));
    let operator = Operator::of(admin.router()).await;
    // The second time, the value is cached.
    for _ in 0..2 {
        for (policy, key) in [("account", "7"), ("hashed", hashed.as_str()), ("either", "7")] {
            let charge = operator.get(&format!("/policies/{policy}/keys/k-ann")).await["charges"][0].clone();
            assert_eq!(charge["key"], key, "{policy}");
        }
        let get = |key: &str| (Method::GET, format!("/policies/account/keys/{key}"));
        let (method, path) = get("k-bob");
        operator.problem(method, &path, None, 400, "no request has this identity: no account has").await;
        for (key, detail) in [("k-down", "the database is down"), ("k-panic", "the lookup panicked")] {
            let (method, path) = get(key);
            operator.problem(method, &path, None, 503, detail).await;
            operator.problem(Method::DELETE, &path, None, 503, detail).await;
        }
    }
    let units = Some(r#"{"units": 1}"#);
    assert_eq!(operator.ask(Method::POST, "/policies/account/keys/k-ann/refund", units).await.0, 200);
}

/// Has no `keys_of`.
struct Own;

impl KeyExtractor for Own {
    fn extract(&self, _: &Parts) -> tower_ratelimit::Answer<Key> {
        tower_ratelimit::Answer::ready(Ok(Key::new("own")))
    }
}

#[test]
fn an_extractor_without_keys_of_is_rejected_when_the_router_is_made() {
    let header = || Header::new("x-api-key");
    let looked_up =
        (|_: &Parts| "alice").map(|_: &str| tower_ratelimit::Answer::<Key>::pending(std::future::pending()));
    let extractors: [Box<dyn KeyExtractor>; 9] = [
        Box::new(Own),
        Box::new(looked_up.or(Own)),
        Box::new(Own.hashed([7; 32])),
        Box::new(Own.map(|_: &str| -> u8 { panic!("not called when the service starts") })),
        Box::new(Own.or(header())),
        Box::new(header().or(Own)),
        Box::new((header(), Own)),
        Box::new((header(), header(), Own.hashed([7; 32]))),
        Box::new(Box::new(header().or(Own)) as Box<dyn KeyExtractor>),
    ];
    for (row, extractor) in extractors.into_iter().enumerate() {
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| {
            Admin::new(MemoryStore::new(), login()).keys_of("login", extractor)
        }));
        let panic = made.map(drop).expect_err(&format!("row {row}"));
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(
            message.contains("the extractor of the policy \"login\" finds no keys: `operate::admin::router::Own` does not implement \
                              `KeyExtractor::keys_of`"),
            "row {row}: {message}"
        );
    }
    // Its function is not called, and no lookup begins.
    let admin = Admin::new(MemoryStore::new(), login());
    let _ = admin.keys_of("login", (header(), PeerIp::new().map(|_: &str| -> u8 { panic!("called") })));
}

#[tokio::test]
async fn an_empty_key_is_an_error_on_every_route_and_changes_nothing() {
    let limiter = stopped();
    let policy = login().penalty(Penalty::manual());
    let admin = Admin::new(limiter.clone(), [policy.clone(), Policy::new("per-ip", Quota::per_hour(5))]);
    let operator = Operator::of(admin.keys_of("per-ip", PeerIp::new()).router()).await;
    limiter.check(&policy, &Key::new(""), 3).await.unwrap();
    let (units, seconds) = (Some(r#"{"units": 1}"#), Some(r#"{"seconds": 9}"#));
    for policy in ["login", "per-ip"] {
        for (method, rest, body) in [
            (Method::GET, "", None),
            (Method::GET, "?cost=2", None),
            (Method::DELETE, "", None),
            (Method::POST, "/refund", units),
            (Method::POST, "/ban", seconds),
            (Method::DELETE, "/ban", None),
        ] {
            let path = format!("/policies/{policy}/keys/{rest}");
            let detail = "the path has no key: write `%25` for the empty identity";
            operator.problem(method, &path, body, 400, detail).await;
        }
    }
    operator.problem(Method::GET, "/policies/logn/keys/", None, 404, "the policies: `login`, `per-ip`").await;
    // A part of a key, too.
    for (key, detail) in [
        ("%25(acme%25%7C%25)", "its parts cannot be told apart"),
        ("%25%3E", "it is empty: write `%` for the empty identity"),
    ] {
        operator.problem(Method::DELETE, &format!("/policies/login/keys/{key}"), None, 400, detail).await;
    }
    let state = operator.get("/policies/login/keys/%25").await["charges"][0].clone();
    assert_eq!((&state["remaining"], &state["banned_for"]), (&json!(2), &Value::Null));
}

#[tokio::test]
async fn a_value_of_another_program_is_a_conflict_that_a_reset_ends() {
    let server = RedisServer::start();
    let operator =
        Operator::of(admin::router(store(&server).await, login().penalty(Penalty::manual()))).await;
    let path = "/policies/login/keys/alice";
    let mine = || {
        let _: redis::Value = server.command(&["SET", "rl:login:gcra:{alice}", "mine"]);
    };
    mine();
    let detail = "reset the key, or end its ban, to remove its value: the command failed in Redis";
    operator.problem(Method::GET, path, None, 409, detail).await;
    operator.problem(Method::POST, &format!("{path}/refund"), Some(r#"{"units": 1}"#), 409, detail).await;
    assert_eq!(operator.ask(Method::DELETE, path, None).await.0, 204);
    assert_eq!(operator.get(path).await["charges"][0]["remaining"], 5);
}

#[tokio::test]
async fn no_valid_setup_and_no_mistake_of_an_operator_counts_as_a_failure_of_the_server() {
    let server = RedisServer::start();
    let redis = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    let hour = || Quota::per_hour(5);
    let policies = || {
        let plain = |name: &str| Policy::new(name, hour());
        vec![
            plain("gcra"),
            plain("fixed").algorithm(FixedWindow::anchored()),
            plain("sliding").algorithm(SlidingWindow::new()),
            plain("log").algorithm(SlidingLog::new()),
            plain("token").algorithm(TokenBucket::new().starting_at(0)),
            plain("meter").algorithm(LeakyBucket::meter()),
            plain("queue").algorithm(LeakyBucket::queue(Duration::from_secs(5))),
            Policy::concurrency("permits", 5).penalty(Penalty::manual()),
            plain("debt").max_debt(1_000),
            plain("leased").max_lease(2),
            plain("shadow").shadow().penalty(Penalty::after(2, Duration::from_secs(60))),
            plain("closed").failure_mode(FailureMode::Closed),
        ]
    };
    for (store, limiter) in [("memory", stopped()), ("redis", Limiter::new(redis))] {
        for policy in policies() {
            limiter.check(&policy, &Key::new("a"), 1).await.unwrap();
        }
        let names: Vec<String> = policies().iter().map(|policy| policy.name().to_owned()).collect();
        let operator = Operator::of(admin::router(limiter, policies())).await;
        for name in names {
            let base = format!("/policies/{name}");
            let long = "x".repeat(20_000);
            for key in
                ["a", "unknown", "%25", "%25(a%25%7Cb%25)", "%25FF", "%25%5Ea", "%00", "%F0%9F%92%A9", &long]
            {
                let path = format!("{base}/keys/{key}");
                for cost in [
                    "",
                    "?cost=0",
                    "?cost=6",
                    "?cost=18446744073709551615",
                    "?cost=",
                    "?cost=1&cost=2",
                    "?=",
                    "?%FF",
                ] {
                    let (status, _, body) = operator.ask(Method::GET, &format!("{path}{cost}"), None).await;
                    assert!(status < 500, "{store} {path}{cost}: {status} {body}");
                }
                for (suffix, body) in [
                    ("/refund", r#"{"units": 1}"#),
                    ("/refund", r#"{"units": 17592186044416}"#),
                    ("/refund", r#"{"units": 18446744073709551615}"#),
                    ("/refund", "nul"),
                    ("/ban", r#"{"seconds": 1}"#),
                    ("/ban", r#"{"seconds": 315360000}"#),
                    ("/ban", r#"{"seconds": 18446744073709551615}"#),
                    ("/ban", "\u{feff}{}"),
                ] {
                    let path = format!("{path}{suffix}");
                    let (status, _, answer) = operator.ask(Method::POST, &path, Some(body)).await;
                    assert!(status < 500, "{store} {path} {body}: {status} {answer}");
                }
                for path in [format!("{path}/ban"), path] {
                    let (status, _, answer) = operator.ask(Method::DELETE, &path, None).await;
                    assert!(status < 500, "{store} DELETE {path}: {status} {answer}");
                }
            }
            for path in ["", "/", "/bans", "/keys", "/keys/", "/keys//", "/keys//ban", "/bans/"] {
                for method in [Method::GET, Method::DELETE, Method::POST, Method::PUT, Method::OPTIONS] {
                    let path = format!("{base}{path}");
                    let request =
                        Request::builder().method(method.clone()).uri(format!("{}{path}", operator.base));
                    let response = operator.client.send(request.body(String::new()).unwrap()).await;
                    let status = response.status();
                    assert!(status.as_u16() < 500, "{store} {method} {path}: {status}");
                }
            }
        }
    }
}

#[tokio::test]
async fn every_mistake_is_answered_with_the_remedy() {
    let limiter = stopped();
    let policies = [login(), Policy::concurrency("exports", 2)];
    let operator = Operator::of(admin::router(limiter.clone(), policies)).await;
    limiter.check(&login(), &Key::new("alice"), 5).await.unwrap();
    let key = "/policies/login/keys/alice";
    let refund = "/policies/login/keys/alice/refund";
    let units = |text: &str| format!(r#"{{"units": {text}}}"#);
    let get = Method::GET;
    let post = Method::POST;
    let rows: [(Method, &str, Option<String>, u16, &str); 21] = [
        (
            get.clone(),
            "/policies/logn/keys/alice",
            None,
            404,
            "no policy of this name; the policies: `login`, `exports`",
        ),
        (get.clone(), "/policies/logn", None, 404, "the policies: `login`, `exports`"),
        (Method::DELETE, "/policies/%F0%9F%92%A9/keys/a", None, 404, "the policies: `login`"),
        (get.clone(), "/policies/login/keys/100%25", None, 400, "write `%25` for a percent sign"),
        (get.clone(), "/policies/login/keys/%25(a", None, 400, "its parts cannot be told apart"),
        (get.clone(), "/policies/login/keys/%FF", None, 400, "write a byte that is not UTF-8 as %25FF"),
        (
            get.clone(),
            "/policies/login/keys/alice?cost=-1",
            None,
            400,
            "a whole number of units: write `?cost=5`",
        ),
        (get.clone(), "/policies/login/keys/alice?cost=99999999999999999999", None, 400, "`?cost=5`"),
        (get.clone(), "/policies/login/keys/alice?unit=1", None, 400, "the only parameter is `cost`"),
        (post.clone(), refund, Some(units("0")), 400, "`units` must be from 1 to 17592186044416"),
        (
            post.clone(),
            refund,
            Some(units("-5")),
            400,
            r#"JSON such as {"units": 5}: invalid value: integer `-5`"#,
        ),
        (post.clone(), refund, Some(units("99999999999999")), 400, "from 1 to 17592186044416"),
        (post.clone(), refund, Some(units("99999999999999999999")), 400, r#"such as {"units": 5}"#),
        (post.clone(), refund, Some(units("1.5")), 400, r#"such as {"units": 5}"#),
        (post.clone(), refund, Some("{}".into()), 400, "missing field `units`"),
        (post.clone(), refund, Some(r#"{"units": 1, "unit": 1}"#.into()), 400, "unknown field `unit`"),
        (post.clone(), refund, Some(" [5]".into()), 400, r#"such as {"units": 5}: it is a list"#),
        (post.clone(), refund, Some("units=5".into()), 400, r#"such as {"units": 5}"#),
        (post.clone(), refund, None, 415, "send the header `content-type: application/json`"),
        (post.clone(), "/policies/exports/keys/a/refund", Some(units("1")), 409, "reset the key to release"),
        (get.clone(), "/enforcement", None, 404, "`Admin::enforcement`"),
    ];
    for (method, path, body, status, detail) in rows {
        operator.problem(method, path, body.as_deref(), status, detail).await;
    }
    let too_long = format!(r#"{{"units": 1, "x": "{}"}}"#, "x".repeat(3 << 20));
    let (status, ..) = operator.ask(Method::POST, refund, Some(&too_long)).await;
    assert_eq!(status, 413);
    // None of them has changed anything.
    assert_eq!(operator.get(key).await["charges"][0]["remaining"], 0);
    let (status, ..) = operator.ask(Method::PUT, key, Some("{}")).await;
    assert_eq!(status, 405);

    let operator =
        Operator::of(Admin::new(limiter, login()).enforcement(&EnforcementSwitch::default()).router()).await;
    let wrong = Some(r#"{"enforcement": "maybe"}"#);
    operator.problem(Method::PUT, "/enforcement", wrong, 400, "write `on`, `report-only` or `off`").await;
}

#[tokio::test]
async fn a_store_that_is_unavailable_is_answered_with_503() {
    for mode in [FailureMode::default(), FailureMode::Open, FailureMode::Closed] {
        let operator = Operator::of(admin::router(Down, login().failure_mode(mode))).await;
        let key = "/policies/login/keys/alice";
        operator.problem(Method::GET, key, None, 503, "secret of the store").await;
        let units = Some(r#"{"units": 1}"#);
        operator.problem(Method::POST, &format!("{key}/refund"), units, 503, "secret of the store").await;
        if mode != FailureMode::Closed {
            let detail = format!("the failure mode `{mode}` decides until then");
            operator.problem(Method::GET, key, None, 503, &detail).await;
        }
    }
    let mut server = RedisServer::start();
    let store = settings().deadline(Duration::from_millis(500)).connect(&server.url()).await.unwrap();
    let operator = Operator::of(admin::router(store, login())).await;
    server.kill();
    let key = "/policies/login/keys/alice";
    operator.problem(Method::DELETE, key, None, 503, "Redis").await;
    operator.problem(Method::GET, key, None, 503, "the failure mode `local` decides until then").await;
    server.restart();
    let answers = eventually(async || operator.ask(Method::GET, key, None).await.0 == 200).await;
    assert!(answers);
}

#[tokio::test]
async fn a_frozen_redis_is_not_called_busy() {
    let server = RedisServer::start();
    // As operators have it: with the default deadline, and few connections.
    let store = RedisStore::builder().pool_size(2).connect(&server.url()).await.unwrap();
    let policy = login().penalty(Penalty::manual()).failure_mode(FailureMode::Closed);
    let operator = Operator::of(admin::router(store, policy)).await;
    server.signal("STOP");
    let key = "/policies/login/keys/alice";
    let mut details = Vec::new();
    for _ in 0..6 {
        for (method, path) in [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/ban")] {
            let body = Some(r#"{"seconds": 600}"#).filter(|_| method == Method::POST);
            let (status, _, problem) = operator.ask(method.clone(), &format!("{key}{path}"), body).await;
            assert_eq!(status, 503, "{method}: {problem}");
            details.push(format!("{method}: {}", problem["detail"]));
        }
    }
    server.signal("CONT");
    let busy: Vec<_> = details.iter().filter(|detail| detail.contains("reduce the load")).collect();
    assert!(busy.is_empty(), "{busy:#?}\nof\n{details:#?}");
}

#[tokio::test]
async fn a_failed_change_says_whether_it_may_have_been_made() {
    let rows = [
        (ErrorKind::StoreTimeout, true),
        (ErrorKind::StoreDisconnected, true),
        (ErrorKind::StoreReply, true),
        (ErrorKind::StoreSuspended, false),
        (ErrorKind::StoreUnreachable, false),
        (ErrorKind::StoreFailed, false),
        (ErrorKind::ForeignValue, false),
    ];
    let key = "/policies/login/keys/alice";
    let (refund, ban) = (format!("{key}/refund"), format!("{key}/ban"));
    let requests = [
        (Method::GET, key, None, false),
        (Method::DELETE, key, None, true),
        (Method::POST, &refund, Some(r#"{"units": 1}"#), true),
        (Method::POST, &ban, Some(r#"{"seconds": 1}"#), true),
        (Method::DELETE, &ban, None, true),
    ];
    for (kind, may_have_charged) in rows {
        for mode in [FailureMode::default(), FailureMode::Open, FailureMode::Closed] {
            let policy = login().penalty(Penalty::manual()).failure_mode(mode);
            let operator = Operator::of(admin::router(Fake::failing(kind), policy)).await;
            for (method, path, body, is_change) in requests.clone() {
                let (status, _, problem) = operator.ask(method.clone(), path, body).await;
                let detail = problem["detail"].as_str().unwrap();
                let is_foreign = kind == ErrorKind::ForeignValue;
                assert_eq!(status, if is_foreign { 409 } else { 503 }, "{kind:?}, {method} {path}");
                let end = if is_change && may_have_charged {
                    "secret of the store; the change may have been made"
                } else {
                    "secret of the store"
                };
                assert!(detail.ends_with(end), "{kind:?}, {mode}, {method} {path}: {detail}");
            }
        }
    }
}

#[tokio::test]
async fn it_administers_the_active_policies() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let write = |quota: &str| {
        std::fs::write(&path, format!("[[policies]]\nname = 'login'\nquota = '{quota}'\n")).unwrap();
    };
    write("5/min");
    let live = LivePolicies::file(&path).unwrap().poll_every(Duration::from_millis(20));
    let limiter = stopped();
    let operator = Operator::of(admin::router(limiter.clone(), live)).await;
    let quota = async || operator.get("/policies").await["policies"][0]["quota"].clone();
    assert_eq!(quota().await, "5/min");
    write("7/min");
    assert!(eventually(async || quota().await == "7/min").await);
    assert_eq!(operator.get("/policies/login/keys/a").await["charges"][0]["remaining"], 7);
    write("many");
    let error = async || operator.get("/policies").await["error"].clone();
    assert!(eventually(async || !error().await.is_null()).await);
    assert!(error().await.as_str().unwrap().contains("invalid quota `many`"));
    assert_eq!(quota().await, "7/min");

    let function = Policies::from_fn(|| vec![Policy::new("api", Quota::per_hour(1))]);
    let operator = Operator::of(admin::router(limiter, function)).await;
    assert_eq!(operator.get("/policies").await["policies"][0]["name"], "api");

    let operator = Operator::of(admin::router(stopped(), Policies::from_fn(Vec::new))).await;
    operator.problem(Method::GET, "/policies/api", None, 404, "has no policies to administer").await;
}

#[tokio::test]
async fn it_can_be_nested_and_merged_into_any_app() {
    let limiter = stopped();
    let layer = RateLimitLayer::new(limiter.clone(), login(), PeerIp::new());
    let app = Router::new().route("/", get(async || "hello")).layer(layer).fallback(async || "not here");
    let router = || admin::router(limiter.clone(), login());
    let app = app.nest("/admin/{tenant}", router()).nest("/of/{policy}/{key}", router()).merge(router());
    let operator = Operator::of(app).await;
    let client = Client::new();
    assert_eq!(client.get(&operator.base).await.status(), 200);
    for prefix in ["", "/admin/acme", "/of/other/bob"] {
        let charge = operator.get(&format!("{prefix}/policies/login/keys/127.0.0.1")).await;
        assert_eq!(charge["charges"][0]["remaining"], 4, "{prefix}");
    }
}

#[test]
#[should_panic(expected = "two policies to administer are named \"login\"")]
fn two_policies_of_one_name_are_rejected_when_the_router_is_made() {
    let _ = admin::router(MemoryStore::new(), [login(), login()]);
}

#[test]
#[should_panic(expected = "no policy to administer is named \"logn\": name one of [\"login\"]")]
fn an_extractor_for_an_unknown_policy_is_rejected_when_the_router_is_made() {
    let _ = Admin::new(MemoryStore::new(), login()).keys_of("logn", PeerIp::new());
}

#[test]
#[should_panic(expected = "the keys of the policy \"login\" already have an extractor")]
fn a_second_extractor_for_a_policy_is_rejected_when_the_router_is_made() {
    // Of these, policies may come later.
    let admin = Admin::new(MemoryStore::new(), Policies::from_fn(Vec::new)).keys_of("login", PeerIp::new());
    let _ = admin.keys_of("other", PeerIp::new()).keys_of("login", PeerIp::new());
}

/// The functions of the router for operators.
#[tokio::test]
async fn a_function_that_lists_policies_panics_through_its_own_request() {
    let limiter = Limiter::new(MemoryStore::new());
    let policies = Policies::from_fn(|| panic!("foreign code panics on purpose"));
    let router = Admin::new(limiter, policies).router();
    for _ in 0..2 {
        let request = Request::get("/policies").body(axum::body::Body::empty()).unwrap();
        let asked = tokio::spawn(router.clone().oneshot(request)).await;
        assert!(asked.is_err_and(|error| error.is_panic()));
    }
}
