//! Log lines, and what they never contain.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use http_body_util::BodyExt as _;
use support::{
    Directory, Down, RedisServer, eventually,
    inner::{ask, get},
    listen_with, settings, store,
};
use tower::{Layer as _, ServiceExt as _};
use tower_ratelimit::{
    ClientIp, Error, ErrorKind, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore, PeerIp,
    Policy, PolicySource, Quota, RateLimitLayer, Rule, TrustedProxies,
    admin::Admin,
    algorithm::SlidingLog,
    key::{Constant, ForwardingHeader},
    policy::{EnforcementSwitch, LivePolicies, Lookup},
};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn with(&self, what: &str) -> usize {
        self.text().lines().filter(|line| line.contains(what)).count()
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn listen() -> (Lines, tracing::subscriber::DefaultGuard) {
    let lines = Lines::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(lines.clone()).finish();
    (lines, listen_with(subscriber))
}

#[tokio::test]
async fn an_eviction_policy_that_evicts_limits_is_one_warning_when_the_service_starts() {
    let rows = [
        (&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"][..], 1),
        (&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"], 1),
        (&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"], 0),
        (&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"], 0),
        // Nothing is evicted if memory is not limited.
        (&["--maxmemory-policy", "allkeys-lru"], 0),
    ];
    for (arguments, warnings) in rows {
        let server = RedisServer::with(arguments);
        let (lines, _guard) = listen();
        store(&server).await;
        assert_eq!(lines.with("volatile-ttl"), warnings, "{arguments:?}: {}", lines.text());
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_file_of_policies_is_one_warning_and_not_one_for_each_read() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let write = |quota: &str| {
        std::fs::write(&path, format!("[[policies]]\nname = \"api\"\nquota = \"{quota}\"\n")).unwrap();
    };
    let five_minutes = async || tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    let (lines, _guard) = listen();
    write("1/s");
    let _live = LivePolicies::file(&path).unwrap();
    let stay = "the policies stay as they are";
    for (quota, expected, changed) in [("many", 1, 0), ("more", 2, 0), ("2/s", 2, 1), ("3/s", 2, 2)] {
        write(quota);
        five_minutes().await;
        assert_eq!(
            (lines.with(stay), lines.with("policies changed")),
            (expected, changed),
            "{}",
            lines.text()
        );
    }
    // One that comes and goes.
    for _ in 0..10 {
        write("many");
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        write("3/s");
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    }
    assert_eq!(lines.with(stay), 3, "{}", lines.text());
    assert_eq!(lines.with("changed=api"), 2, "{}", lines.text());
    assert_eq!(lines.with("policy `api`: entry `quota`: invalid quota `many`"), 2, "{}", lines.text());
}

#[tokio::test]
async fn an_intermittent_outage_is_one_line() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = Policy::new("api", Quota::per_day(1));
    let (over, fresh) = (Key::new("secret-over"), Key::new("secret-fresh"));
    limiter.check(&policy, &over, 1).await.unwrap();
    let (lines, _guard) = listen();
    // Denials write nothing and succeed, admissions fail.
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..20 {
        assert!(limiter.check(&policy, &fresh, 1).await.unwrap().failure().is_some());
        assert!(limiter.check(&policy, &over, 1).await.unwrap().failure().is_none());
    }
    assert_eq!(lines.with("outage: Redis is unavailable"), 1, "{}", lines.text());
    assert_eq!(lines.with("the outage of Redis is over"), 0, "{}", lines.text());
    assert_eq!(lines.with("secret"), 0, "{}", lines.text());
}

#[tokio::test]
async fn an_outage_names_the_server_and_the_cause_and_says_when_the_cause_changes() {
    let mut server = RedisServer::start();
    let impatient = settings().deadline(std::time::Duration::from_millis(300));
    let limiter = Limiter::new(impatient.connect(&server.url()).await.unwrap());
    let policy = Policy::new("api", Quota::per_day(1_000));
    let key = Key::new("secret-key");
    limiter.check(&policy, &key, 1).await.unwrap();
    let (lines, _guard) = listen();
    server.signal("STOP");
    while lines.with("outage") == 0 {
        limiter.check(&policy, &key, 1).await.unwrap();
    }
    let begins = format!("server=127.0.0.1:{}", server.port());
    assert_eq!(lines.with(&begins), 1, "{}", lines.text());
    assert_eq!(lines.with("did not answer"), 1, "{}", lines.text());
    server.kill();
    let is_refused = async || {
        limiter.check(&policy, &key, 1).await.unwrap();
        lines.with("refused") == 1
    };
    assert!(eventually(is_refused).await, "{}", lines.text());
    assert_eq!(lines.with("the outage of Redis continues"), 1, "{}", lines.text());
    assert_eq!(lines.with("secret"), 0, "{}", lines.text());
}

#[tokio::test]
async fn a_setup_error_is_one_line_that_says_what_to_do() {
    let (lines, _guard) = listen();
    let layer = RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_day(1)), PeerIp::new());
    for _ in 0..5 {
        let response = ask(&layer, get()).await;
        assert_eq!(response.status(), 500);
        // The operator reads it in the log; a client does not.
        let body =
            String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
        assert!(!body.contains("connect_info"), "{body}");
    }
    assert_eq!(lines.with("into_make_service_with_connect_info"), 1, "{}", lines.text());
}

#[tokio::test]
async fn denials_are_logged_with_their_policy_and_without_the_identity() {
    let (lines, _guard) = listen();
    let key = Header::new("x-api-key");
    let layer = RateLimitLayer::new(MemoryStore::new(), Policy::new("api", Quota::per_day(1)), key);
    for _ in 0..3 {
        let mut request = get();
        request.headers_mut().insert("x-api-key", "secret-key".parse().unwrap());
        ask(&layer, request).await;
    }
    assert_eq!(lines.with("denied"), 2, "{}", lines.text());
    assert_eq!(lines.with("\"api\""), 3, "{}", lines.text());
    assert_eq!(lines.with("secret"), 0, "{}", lines.text());
}

#[tokio::test]
async fn two_layers_with_one_policy_are_one_warning_that_names_it() {
    let rows = [("one policy", "api", 1), ("two policies", "other", 0)];
    for (name, inner, warnings) in rows {
        let (lines, _guard) = listen();
        let store = MemoryStore::new();
        let layer = |name| {
            let policy = Policy::new(name, Quota::per_day(100));
            RateLimitLayer::new(store.clone(), policy, Header::new("x-api-key"))
        };
        let service = tower::service_fn(async |_: http::Request<String>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
        });
        let service = layer("api").layer(layer(inner).layer(service));
        for _ in 0..3 {
            let mut request = get();
            request.headers_mut().insert("x-api-key", "secret-key".parse().unwrap());
            service.clone().oneshot(request).await.unwrap();
        }
        assert_eq!(lines.with("charged twice"), warnings, "{name}: {}", lines.text());
        assert_eq!(lines.with("secret"), 0, "{}", lines.text());
    }
}

#[tokio::test]
async fn what_a_soft_limit_would_deny_is_logged_as_such() {
    let (lines, _guard) = listen();
    let layer =
        RateLimitLayer::new(MemoryStore::new(), Policy::new("api", Quota::per_day(1)), Constant::new("all"));
    let soft = layer.clone().soft();
    for _ in 0..3 {
        ask(&soft, get()).await;
    }
    ask(&layer, get()).await;
    assert_eq!((lines.with("soft=true"), lines.with("soft=false")), (2, 1), "{}", lines.text());
}

#[tokio::test]
async fn identities_that_are_temporarily_unavailable_are_one_warning_and_no_setup_error() {
    let (lines, _guard) = listen();
    let unavailable = |_: &http::request::Parts| -> Result<Key, Error> {
        Err(Error::new(ErrorKind::IdentityUnavailable, "the session store is unavailable"))
    };
    let layer = RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_day(1)), unavailable);
    for _ in 0..5 {
        assert_eq!(ask(&layer, get()).await.status(), 500);
    }
    let of = |level: &str| {
        lines.text().lines().filter(|line| line.contains(level) && line.contains("session store")).count()
    };
    assert_eq!([of("ERROR"), of("WARN"), of("DEBUG")], [0, 1, 4], "{}", lines.text());
}

/// A request with these extension and headers.
fn through(peer: &str, headers: &[(&'static str, &str)]) -> http::request::Parts {
    let (mut parts, _) = get().into_parts();
    parts.extensions.insert(peer.parse::<std::net::SocketAddr>().unwrap());
    for (name, value) in headers {
        parts.headers.insert(*name, value.parse().unwrap());
    }
    parts
}

#[tokio::test]
async fn the_peer_address_as_a_key_behind_a_proxy_is_one_warning_that_says_what_to_do() {
    let headers =
        [("x-forwarded-for", "203.0.113.7"), ("forwarded", "for=203.0.113.7"), ("x-real-ip", "203.0.113.7")];
    for (name, value) in headers {
        let (lines, _guard) = listen();
        let (key, direct) = (PeerIp::new(), through("10.0.0.1:80", &[]));
        key.extract(&direct).await.unwrap();
        assert_eq!(lines.text(), "");
        let clone = key.clone();
        for _ in 0..5 {
            key.extract(&through("10.0.0.1:80", &[(name, value)])).await.unwrap();
            clone.extract(&through("10.0.0.1:80", &[(name, value)])).await.unwrap();
        }
        let remedies = ["WARN tower_ratelimit: ", "Use `ClientIp`", "`PeerIp::without_warning`", name];
        assert_eq!(remedies.map(|text| lines.with(text)), [1; 4], "{name}: {}", lines.text());
        assert_eq!(
            ["203.0.113.7", "10.0.0.1"].map(|address| lines.with(address)),
            [0; 2],
            "{}",
            lines.text()
        );
        // Another extractor logs its own warning, unless it is turned off.
        PeerIp::new().extract(&through("10.0.0.1:80", &[(name, value)])).await.unwrap();
        assert_eq!(lines.with("WARN"), 2);
        PeerIp::new().without_warning().extract(&through("10.0.0.1:80", &[(name, value)])).await.unwrap();
        assert_eq!(lines.with("WARN"), 2);
    }
}

#[tokio::test]
async fn a_header_that_first_appears_after_a_thousand_requests_is_no_warning() {
    let (lines, _guard) = listen();
    let key = PeerIp::new();
    for _ in 0..1_000 {
        key.extract(&through("10.0.0.1:80", &[])).await.unwrap();
    }
    key.extract(&through("10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")])).await.unwrap();
    assert_eq!(lines.text(), "");
}

#[tokio::test]
async fn a_peer_that_the_server_does_not_provide_is_an_error_and_no_warning_of_a_proxy() {
    let (lines, _guard) = listen();
    let mut request = through("10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")]);
    request.extensions.clear();
    assert_eq!(PeerIp::new().extract(&request).await.unwrap_err().kind(), ErrorKind::MissingSetup);
    assert_eq!(lines.text(), "");
}

#[tokio::test]
async fn a_trusted_proxy_without_a_usable_forwarding_header_is_one_warning_that_says_what_to_do() {
    let networks = || ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap());
    let hops = || ClientIp::behind(TrustedProxies::hops(2));
    let real = || networks().header(ForwardingHeader::x_real_ip());
    type Headers = &'static [(&'static str, &'static str)];
    let rows: [(&str, ClientIp, &str, Headers, usize); 9] = [
        ("no header", networks(), "10.0.0.1:80", &[], 1),
        ("another header", networks(), "10.0.0.1:80", &[("x-real-ip", "203.0.113.7")], 1),
        ("an invalid header", networks(), "10.0.0.1:80", &[("x-forwarded-for", "unknown")], 1),
        ("no single header", real(), "10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")], 1),
        ("too few hops", hops(), "10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")], 1),
        ("a header", networks(), "10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")], 0),
        ("enough hops", hops(), "10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7, 10.0.0.2")], 0),
        ("no proxy", networks(), "203.0.113.7:80", &[], 0),
        ("turned off", networks().without_warning(), "10.0.0.1:80", &[], 0),
    ];
    for (name, key, peer, headers, warnings) in rows {
        let (lines, _guard) = listen();
        let clone = key.clone();
        for _ in 0..5 {
            key.extract(&through(peer, headers)).await.unwrap();
            clone.extract(&through(peer, headers)).await.unwrap();
        }
        let remedies = ["WARN tower_ratelimit: ", "`ClientIp::header`", "`ClientIp::without_warning`"];
        assert_eq!(remedies.map(|text| lines.with(text)), [warnings; 3], "{name}: {}", lines.text());
        let addresses = ["203.0.113.7", "10.0.0.1", "unknown"];
        assert_eq!(addresses.map(|address| lines.with(address)), [0; 3], "{name}: {}", lines.text());
    }
}

#[tokio::test]
async fn a_proxy_that_stops_sending_its_header_is_one_warning_at_any_time() {
    let (lines, _guard) = listen();
    let key = ClientIp::behind(TrustedProxies::hops(1));
    for _ in 0..2_000 {
        key.extract(&through("10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")])).await.unwrap();
    }
    key.extract(&through("10.0.0.1:80", &[])).await.unwrap();
    assert_eq!(lines.with("`ClientIp::header`"), 1);
}

#[tokio::test]
async fn two_layers_of_which_one_charges_nothing_are_no_warning() {
    let (lines, _guard) = listen();
    let store = MemoryStore::new();
    let policy = || Policy::new("api", Quota::per_day(1));
    let soft = RateLimitLayer::new(store.clone(), policy(), Constant::new("all")).soft();
    let free = RateLimitLayer::new(store, policy(), Constant::new("all")).cost(|_: &http::request::Parts| 0);
    let service = tower::service_fn(async |_: http::Request<String>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    });
    let service = soft.layer(free.layer(service));
    for _ in 0..3 {
        service.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(lines.with("charged twice"), 0, "{}", lines.text());
}

#[tokio::test]
async fn an_outage_of_a_lookup_and_of_its_policy_source_is_one_line_each_without_the_cause() {
    let accounts = Lookup::new(|_: String| async { Err::<Policy, _>("no row for secret-alice") });
    let tiers =
        PolicySource::per_request(move |_: &http::request::Parts, _: &Key| accounts.get("secret-alice"))
            .or_on_error(Policy::new("fallback", Quota::per_day(9)));
    // The second rule limits what the lookup cannot tell apart, so there is no warning of that.
    let rest = Rule::new(Policy::new("rest", Quota::per_day(9)), Constant::new("all"));
    let layer = RateLimitLayer::new(MemoryStore::new(), tiers, Constant::new("all")).and(rest);
    let (lines, _guard) = listen();
    for _ in 0..5 {
        assert_eq!(ask(&layer, get()).await.status(), 200);
    }
    for line in ["outage of a lookup;", "outage of a policy source;"] {
        assert_eq!(lines.with(line), 1, "{line}: {}", lines.text());
    }
    assert_eq!(lines.with("WARN"), 2, "{}", lines.text());
    assert!(!lines.text().contains("secret"), "{}", lines.text());
}

#[tokio::test]
async fn changes_by_an_administrator_are_one_line_each_without_the_key() {
    let (lines, _guard) = listen();
    let policy = Policy::new("login", Quota::per_minute(5));
    let admin = Admin::new(MemoryStore::new(), policy).enforcement(&EnforcementSwitch::default()).router();
    let key = "/policies/login/keys/alice-of-acme";
    let refund = format!("{key}/refund");
    let changes: [(&str, &str, &str, &[&str]); 3] = [
        ("DELETE", key, "", &["INFO", "reset a key", "policy=\"login\" key_hash=4dd3ca0d6f122dc7"]),
        ("POST", &refund, r#"{"units": 3}"#, &["INFO", "refunded a key", "policy=\"login\"", "units=3"]),
        (
            "PUT",
            "/enforcement",
            r#"{"enforcement": "off"}"#,
            &["WARN", "moved the switch", "enforcement=off"],
        ),
    ];
    for (method, path, body, expected) in changes {
        let before = lines.text().lines().count();
        let request =
            http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let response =
            admin.clone().oneshot(request.body(axum::body::Body::from(body)).unwrap()).await.unwrap();
        assert!(response.status().is_success(), "{method} {path}");
        let text = lines.text();
        let new: Vec<&str> = text.lines().skip(before).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        assert!(expected.iter().all(|part| new[0].contains(part)), "{new:?}");
    }
    // Looking changes nothing.
    let before = lines.text();
    let look = http::Request::get(key).body(axum::body::Body::empty()).unwrap();
    assert_eq!(admin.oneshot(look).await.unwrap().status(), 200);
    assert_eq!(lines.text(), before);
    assert!(!before.contains("alice"), "{before}");
}

#[tokio::test]
async fn what_a_layer_warns_of_is_logged_once() {
    let (lines, _guard) = listen();
    let login = Policy::new("login", Quota::per_minute(5));
    let layer = RateLimitLayer::new(MemoryStore::new(), login, Constant::new("all"));
    assert_eq!(lines.with("SlidingLog"), 0, "the layer may be changed before it wraps a service");
    for _ in 0..3 {
        ask(&layer, get()).await;
    }
    assert_eq!(lines.with("SlidingLog"), 1, "{}", lines.text());
}

#[tokio::test]
async fn a_redundant_policy_and_a_cost_that_is_never_admitted_are_logged_once() {
    let (lines, _guard) = listen();
    let day = || Policy::new("day", Quota::per_day(1_000_000)).algorithm(SlidingLog::new());
    let second = || Policy::new("second", Quota::per_second(10));
    let all = || Constant::new("all");
    let rarely = Policy::new("rarely", Quota::per_day(100_000));
    let same = Policy::new("same", Quota::per_second(10));
    let rows = [
        ("the same key", second(), Rule::new(day(), all()), 1),
        ("another key", second(), Rule::new(day(), Constant::new("others")), 0),
        ("another cost", second(), Rule::new(day(), all()).cost(|_| 3), 0),
        ("a limit that binds", second(), Rule::new(rarely, all()), 0),
        ("an equal policy", second(), Rule::new(same, all()), 1),
        (
            "a policy of the request",
            second(),
            Rule::new(PolicySource::per_request(move |_, _| day()), all()),
            0,
        ),
        // The smaller limit is enforced for a part of the keys. This one is among them.
        ("a rollout", day(), Rule::new(second().enforced_for(0.999_999), all()), 0),
    ];
    for (name, policy, rule, expected) in rows {
        let before = lines.with("never denies a request");
        let layer = RateLimitLayer::new(MemoryStore::new(), policy, all()).and(rule);
        for _ in 0..3 {
            ask(&layer, get()).await;
        }
        assert_eq!(lines.with("never denies a request") - before, expected, "{name}: {}", lines.text());
    }
    // The share of one instance is 5, and the policy admits 20.
    let local =
        Policy::new("local", Quota::per_second(20)).on_store_failure(FailureMode::Local { instances: 4 });
    let layer = RateLimitLayer::new(Down, local, all()).cost(|_| 6);
    assert_eq!(ask(&layer, get()).await.status(), 429);
    assert_eq!(lines.with("ever admits at once"), 0, "{}", lines.text());
    let layer = RateLimitLayer::new(MemoryStore::new(), second(), all()).cost(|_| 11);
    for _ in 0..3 {
        assert_eq!(ask(&layer, get()).await.status(), 429);
    }
    assert_eq!(lines.with("ever admits at once, which is 10"), 1, "{}", lines.text());
}
