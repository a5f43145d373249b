//! Log lines, and what they never contain.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    routing::{any, post},
};
use http::Request;
use support::{
    Down, Lines, RedisServer, eventually,
    inner::{ask, get, text},
    on_redis, settings, store,
};
use tokio::{net::TcpListener, time::sleep};
use tower::{Layer as _, ServiceExt as _};
use tower_ratelimit::{
    ClientIp, Error, ErrorKind, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore, PeerIp,
    Policy, Quota, RateLimitLayer, RedisStore, Rule, key::TrustedProxies, layer::Rules, policy::Enforcement,
};

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
        let (lines, _guard) = Lines::listen();
        store(&server).await;
        let seen = lines.with("set maxmemory-policy to volatile-ttl");
        assert_eq!(seen, warnings, "{arguments:?}: {}", lines.text());
    }
}

#[tokio::test]
async fn an_eviction_policy_that_the_user_may_not_see_is_a_warning_with_the_remedy() {
    let server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let rule = store(&server).await.acl_rule();
    for (name, more, unknown, harmful) in [("less", "", 1, 0), ("more", " +info", 0, 1)] {
        let url = server.user(name, &format!("{rule}{more}"));
        let (lines, _guard) = Lines::listen();
        settings().connect(&url).await.unwrap();
        let remedy = "the eviction policy of Redis is unknown, so it may forget exhausted limits: run ACL SETUSER <user> +info";
        assert_eq!(
            (lines.with(remedy), lines.with("set maxmemory-policy to volatile-ttl")),
            (unknown, harmful),
            "{name}: {}",
            lines.text()
        );
    }
}

#[tokio::test]
async fn an_intermittent_outage_is_one_line() {
    let (server, limiter) = on_redis().await;
    let policy = Policy::new("api", Quota::per_day(1));
    let (over, fresh) = (Key::new("secret-over"), Key::new("secret-fresh"));
    limiter.check(&policy, &over, 1).await.unwrap();
    let (lines, _guard) = Lines::listen();
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
    let impatient = settings().deadline(Duration::from_millis(300));
    let limiter = Limiter::new(impatient.connect(&server.url()).await.unwrap());
    let policy = Policy::new("api", Quota::per_day(1_000));
    let key = Key::new("secret-key");
    limiter.check(&policy, &key, 1).await.unwrap();
    let (lines, _guard) = Lines::listen();
    server.signal("STOP");
    while lines.with("outage") == 0 {
        limiter.check(&policy, &key, 1).await.unwrap();
    }
    let begins = format!("server=127.0.0.1:{}", server.port());
    let warns = |what: &str| {
        lines.text().lines().filter(|line| line.contains(" WARN ") && line.contains(what)).count()
    };
    assert_eq!(warns(&begins), 1, "{}", lines.text());
    assert_eq!(warns("did not answer"), 1, "{}", lines.text());
    server.kill();
    let is_unreachable = async || {
        limiter.check(&policy, &key, 1).await.unwrap();
        lines.with("connection refused") == 1
    };
    assert!(eventually(is_unreachable).await, "{}", lines.text());
    assert_eq!(lines.with("the outage of Redis continues"), 1, "{}", lines.text());
    assert_eq!(lines.with("secret"), 0, "{}", lines.text());
}

#[tokio::test]
async fn one_late_answer_does_not_begin_an_outage_in_the_log() {
    let server = RedisServer::start();
    let impatient = settings().deadline(Duration::from_millis(300));
    let limiter = Limiter::new(impatient.connect(&server.url()).await.unwrap());
    let (policy, key) = (Policy::new("api", Quota::per_day(1_000)), Key::new("alice"));
    limiter.check(&policy, &key, 1).await.unwrap();
    let (lines, _guard) = Lines::listen();
    server.signal("STOP");
    let late = limiter.check(&policy, &key, 1).await.unwrap();
    assert_eq!(late.failure().unwrap().kind(), ErrorKind::StoreTimeout);
    server.signal("CONT");
    let is_back = async || limiter.check(&policy, &key, 1).await.unwrap().failure().is_none();
    assert!(eventually(is_back).await);
    assert_eq!((lines.with("outage"), lines.with(" WARN ")), (0, 0), "{}", lines.text());
    assert_eq!(lines.with("a decision of Redis failed"), 1, "{}", lines.text());
}

/// The first request after an outage may come hours later.
#[tokio::test]
async fn an_outage_ends_without_traffic_and_the_first_decision_after_it_is_made_by_redis() {
    let mut server = RedisServer::start();
    let settings = settings().deadline(Duration::from_millis(300));
    let limiter = Limiter::new(settings.connect(&server.url()).await.unwrap());
    let (policy, key) = (Policy::new("api", Quota::per_day(1_000)), Key::new("alice"));
    let failure = async || {
        let decision = limiter.check(&policy, &key, 1).await.unwrap();
        decision.failure().map(Error::kind)
    };
    for kind in ["killed", "stopped"] {
        let (lines, _guard) = Lines::listen();
        if kind == "killed" {
            server.kill()
        } else {
            server.signal("STOP")
        }
        let is_suspended = async || failure().await == Some(ErrorKind::StoreSuspended);
        assert!(eventually(is_suspended).await, "{kind}");
        if kind == "killed" {
            // Until the first probes have failed.
            let port = TcpListener::bind(("127.0.0.1", server.port())).await.unwrap();
            for _ in 0..8 {
                drop(port.accept().await.unwrap());
            }
            drop(port);
            server.restart()
        } else {
            server.signal("CONT")
        }
        let is_over = async || lines.with("the outage of Redis is over") == 1;
        assert!(eventually(is_over).await, "{kind}: {}", lines.text());
        assert_eq!(failure().await, None, "{kind}: {}", lines.text());
    }
}

#[tokio::test]
async fn a_setup_error_is_one_line_that_says_what_to_do() {
    let (lines, _guard) = Lines::listen();
    let layer = RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_day(1)), PeerIp::new());
    for _ in 0..5 {
        let response = ask(&layer, get()).await;
        assert_eq!(response.status(), 500);
        // The operator reads it in the log; a client does not.
        let body = text(response).await;
        assert!(!body.contains("connect_info"), "{body}");
    }
    assert_eq!(lines.with("into_make_service_with_connect_info"), 1, "{}", lines.text());
}

#[tokio::test]
async fn denials_are_logged_with_their_policy_and_without_the_identity() {
    let (lines, _guard) = Lines::listen();
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
    // By it, explanations and the logs of operators name the key too.
    let key_hash = Key::new("secret-key").digest();
    assert_eq!(lines.with(&format!("key_hash=\"{key_hash}\"")), 2, "{}", lines.text());
}

/// A denial charges nothing under the other policies, even if it is only reported.
#[tokio::test]
async fn two_layers_of_which_one_reports_a_denial_cause_no_warning() {
    for denies in ["outer", "inner"] {
        let (lines, _guard) = Lines::listen();
        let store = MemoryStore::new();
        let layer = |place| {
            let mut rules = Rules::from(Rule::new(Policy::new("api", Quota::per_day(100)), Key::new("all")));
            if place == denies {
                let full = Policy::new("full", Quota::per_day(1));
                rules = rules.always(Rule::new(full, Key::new("all")).cost(|_| 2));
            }
            RateLimitLayer::with_rules(store.clone(), rules).enforcement(Enforcement::ReportOnly)
        };
        let service = tower::service_fn(async |_: Request<String>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
        });
        let service = layer("outer").layer(layer("inner").layer(service));
        for _ in 0..3 {
            assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200, "{denies}");
        }
        assert_eq!(lines.with("charged twice"), 0, "{denies}: {}", lines.text());
    }
}

#[tokio::test]
async fn two_layers_with_one_policy_are_one_warning_that_names_it() {
    let rows = [("one policy", "api", 1), ("two policies", "other", 0)];
    for (name, inner, warnings) in rows {
        let (lines, _guard) = Lines::listen();
        let store = MemoryStore::new();
        let layer = |name| {
            let policy = Policy::new(name, Quota::per_day(100));
            RateLimitLayer::new(store.clone(), policy, Header::new("x-api-key"))
        };
        let service = tower::service_fn(async |_: Request<String>| {
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
async fn what_a_layer_that_only_reports_would_deny_is_logged_as_such() {
    let (lines, _guard) = Lines::listen();
    let layer =
        RateLimitLayer::new(MemoryStore::new(), Policy::new("api", Quota::per_day(1)), Key::new("all"));
    let reporting = layer.clone().enforcement(Enforcement::ReportOnly);
    for _ in 0..3 {
        ask(&reporting, get()).await;
    }
    ask(&layer, get()).await;
    assert_eq!((lines.with("report_only=true"), lines.with("report_only=false")), (2, 1), "{}", lines.text());
}

#[tokio::test]
async fn identities_that_are_temporarily_unavailable_are_one_warning_and_no_setup_error() {
    let (lines, _guard) = Lines::listen();
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

#[tokio::test]
async fn clients_without_an_identity_cause_no_warning_of_an_outage() {
    let (lines, _guard) = Lines::listen();
    let policy = Policy::new("api", Quota::per_day(1));
    let layer = RateLimitLayer::new(MemoryStore::new(), policy, Header::new("x-api-key"));
    for _ in 0..3 {
        assert_eq!(ask(&layer, get()).await.status(), 400);
    }
    let counts = [lines.with("outage"), lines.with("WARN"), lines.with("status=400")];
    assert_eq!(counts, [0, 0, 3], "{}", lines.text());
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
        let (lines, _guard) = Lines::listen();
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
        assert_eq!(["203.0.113.7", "10.0.0.1"].map(|at| lines.with(at)), [0; 2], "{}", lines.text());
        // Another extractor logs its own warning, unless it is turned off.
        PeerIp::new().extract(&through("10.0.0.1:80", &[(name, value)])).await.unwrap();
        assert_eq!(lines.with("WARN"), 2);
        PeerIp::new().without_warning().extract(&through("10.0.0.1:80", &[(name, value)])).await.unwrap();
        assert_eq!(lines.with("WARN"), 2);
    }
}

#[tokio::test]
async fn a_header_that_first_appears_after_a_thousand_requests_causes_no_warning() {
    let (lines, _guard) = Lines::listen();
    let key = PeerIp::new();
    for _ in 0..1_000 {
        key.extract(&through("10.0.0.1:80", &[])).await.unwrap();
    }
    key.extract(&through("10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")])).await.unwrap();
    assert_eq!(lines.text(), "");
}

#[tokio::test]
async fn a_peer_that_the_server_does_not_provide_is_an_error_and_no_warning_of_a_proxy() {
    let (lines, _guard) = Lines::listen();
    let mut request = through("10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")]);
    request.extensions.clear();
    assert_eq!(PeerIp::new().extract(&request).await.unwrap_err().kind(), ErrorKind::MissingSetup);
    assert_eq!(lines.text(), "");
}

#[tokio::test]
async fn a_trusted_proxy_without_a_usable_header_is_one_warning_that_says_what_to_do() {
    let networks = || ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap());
    let hops = || ClientIp::behind(TrustedProxies::hops(2));
    let real = || networks().header("x-real-ip");
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
        let (lines, _guard) = Lines::listen();
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
    let (lines, _guard) = Lines::listen();
    let key = ClientIp::behind(TrustedProxies::hops(1));
    for _ in 0..2_000 {
        key.extract(&through("10.0.0.1:80", &[("x-forwarded-for", "203.0.113.7")])).await.unwrap();
    }
    key.extract(&through("10.0.0.1:80", &[])).await.unwrap();
    assert_eq!(lines.with("`ClientIp::header`"), 1);
}

#[tokio::test]
async fn two_layers_of_which_one_charges_nothing_cause_no_warning() {
    let (lines, _guard) = Lines::listen();
    let policy = || Policy::new("api", Quota::per_day(1));
    for is_outer_free in [false, true] {
        let reporting = RateLimitLayer::new(MemoryStore::new(), policy(), Key::new("all"))
            .enforcement(Enforcement::ReportOnly);
        let free = reporting
            .with_same_settings(Rule::new(policy(), Key::new("all")).cost(|_| 0))
            .enforcement(Enforcement::On);
        let (outer, inner) = if is_outer_free { (free, reporting) } else { (reporting, free) };
        let service = tower::service_fn(async |_: Request<String>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
        });
        let service = outer.layer(inner.layer(service));
        for _ in 0..3 {
            service.clone().oneshot(get()).await.unwrap();
        }
    }
    assert_eq!(lines.with("charged twice"), 0, "{}", lines.text());
}

#[tokio::test]
async fn what_a_layer_warns_of_is_logged_once() {
    let (lines, _guard) = Lines::listen();
    let login = Policy::new("login", Quota::per_minute(5));
    let layer = RateLimitLayer::new(MemoryStore::new(), login, Key::new("all"));
    assert_eq!(lines.with("SlidingLog"), 0, "the layer may be changed before it wraps a service");
    for _ in 0..3 {
        ask(&layer, get()).await;
    }
    assert_eq!(lines.with("SlidingLog"), 1, "{}", lines.text());
}

#[tokio::test]
async fn a_cost_that_is_never_admitted_is_logged_once() {
    let (lines, _guard) = Lines::listen();
    let all = || Key::new("all");
    let second = Policy::new("second", Quota::per_second(10));
    // The share of one instance is 5, and the policy admits 20.
    let local = Policy::new("local", Quota::per_second(20)).failure_mode(FailureMode::Local { instances: 4 });
    let layer = RateLimitLayer::with_rules(Down, Rule::new(local, all()).cost(|_| 6));
    assert_eq!(ask(&layer, get()).await.status(), 429);
    assert_eq!(lines.with("admits in one step"), 0, "{}", lines.text());
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), Rule::new(second, all()).cost(|_| 11));
    for _ in 0..3 {
        assert_eq!(ask(&layer, get()).await.status(), 429);
    }
    assert_eq!(lines.with("the policy \"second\" admits in one step: 11 of 10"), 1, "{}", lines.text());
    assert_eq!(lines.with(" cost=11"), 1, "{}", lines.text());
}

/// A policy whose decisions fail while Redis is unavailable.
fn closed() -> Policy {
    Policy::new("api", Quota::per_day(1_000_000)).failure_mode(FailureMode::Closed)
}

#[tokio::test]
async fn the_end_of_an_outage_is_logged_without_further_traffic_and_with_its_length() {
    let mut server = RedisServer::start();
    let limiter = Limiter::new(RedisStore::connect(&server.url()).await.unwrap());
    let key = Key::new("secret-key");
    let (lines, _guard) = Lines::listen();
    server.kill();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1_500) {
        assert!(limiter.check(&closed(), &key, 1).await.is_err());
        sleep(Duration::from_millis(20)).await;
    }
    server.restart();
    assert!(eventually(async || limiter.check(&closed(), &key, 1).await.is_ok()).await);
    let longest = started.elapsed().as_secs_f64();
    let is_over = async || lines.with("the outage of Redis is over") == 1;
    assert!(eventually(is_over).await, "{}", lines.text());
    let seconds =
        lines.text().split("seconds=").last().unwrap().split([' ', '\n']).next().unwrap().to_owned();
    let seconds: f64 = seconds.parse().unwrap();
    assert!((1.4..=longest).contains(&seconds), "{seconds} {longest}");
    assert_eq!(lines.with("outage: Redis is unavailable"), 1, "{}", lines.text());
}

#[tokio::test]
async fn the_cause_of_an_outage_is_the_first_one_and_no_later_guess() {
    let server = RedisServer::start();
    let limiter = Limiter::new(RedisStore::connect(&server.url()).await.unwrap());
    let key = Key::new("secret-key");
    let (lines, _guard) = Lines::listen();
    server.signal("STOP");
    let started = Instant::now();
    let mut last = String::new();
    // Longer than an attempt to connect.
    while started.elapsed() < Duration::from_millis(4_500) {
        if let Err(error) = limiter.check(&closed(), &key, 1).await {
            last = error.to_string();
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert!(last.contains("Redis did not answer"), "{last}");
    let guesses = ["busy", "firewalls", "TLS", "500ms", "1s", "2s"];
    assert!(!guesses.iter().any(|guess| last.contains(guess)), "{last}");
    let warnings = lines.text();
    let warnings: Vec<_> = warnings.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("Redis did not answer within 50ms"), "{warnings:?}");
}

#[tokio::test]
async fn the_cause_of_an_outage_becomes_what_the_server_says() {
    let says = Arc::new(Mutex::new(""));
    let answer = says.clone();
    let url = support::fake_server::start(move |words| match &*words[0] {
        "EVALSHA" => (*answer.lock().unwrap()).into(),
        _ => "+PONG\r\n".into(),
    });
    let limiter = Limiter::new(RedisStore::builder().connect_lazy(&url.await).unwrap());
    let (lines, _guard) = Lines::listen();
    let fails = async |cause: &str| {
        let check = async || {
            let _ = limiter.check(&closed(), &Key::new("secret-key"), 1).await;
            lines.with(cause) == 1
        };
        assert!(eventually(check).await, "{cause}: {}", lines.text());
    };
    fails("did not answer").await;
    for (answer, cause) in [
        ("-LOADING Redis is loading the dataset in memory\r\n", "loading its data"),
        ("-READONLY You can't write against a read only replica.\r\n", "read-only replica"),
        ("-NOAUTH Authentication required.\r\n", "requires a password"),
    ] {
        *says.lock().unwrap() = answer;
        fails(cause).await;
    }
    assert_eq!(lines.with("outage: Redis is unavailable"), 1, "{}", lines.text());
    assert_eq!(lines.with("the outage of Redis continues"), 3, "{}", lines.text());
    *says.lock().unwrap() = "";
    sleep(Duration::from_millis(1_500)).await;
    for _ in 0..20 {
        let _ = limiter.check(&closed(), &Key::new("secret-key"), 1).await;
    }
    assert_eq!(lines.with("the outage of Redis continues"), 3, "{}", lines.text());
}

#[tokio::test]
async fn a_foreign_value_under_one_key_is_a_warning_and_no_outage() {
    let (server, limiter) = on_redis().await;
    let () = server.command(&["SET", "rl:api:gcra:{secret-key}", "foreign"]);
    let (lines, _guard) = Lines::listen();
    for _ in 0..20 {
        assert!(limiter.check(&closed(), &Key::new("secret-key"), 1).await.is_err());
        assert!(limiter.check(&closed(), &Key::new("other"), 1).await.is_ok());
    }
    assert_eq!(lines.with("outage"), 0, "{}", lines.text());
    assert_eq!(lines.with("WARN"), 1, "{}", lines.text());
    assert_eq!(lines.with("a value that the limiter did not write"), 1, "{}", lines.text());
    assert_eq!(lines.with("secret"), 0, "{}", lines.text());
}

#[tokio::test]
async fn a_start_is_one_line_about_the_server() {
    let server = RedisServer::start();
    let (lines, _guard) = Lines::listen();
    let store = settings().prefix("shop").connect(&server.url()).await.unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    let parts = ["INFO", &address, "version=", "round_trip=", "noeviction", "shop"];
    let is_it = |line: &&str| parts.iter().all(|part| line.contains(part));
    assert_eq!(lines.text().lines().filter(is_it).count(), 1, "{}", lines.text());
    // Not at every health check.
    store.probe().await.unwrap();
    assert_eq!(lines.text().lines().filter(is_it).count(), 1, "{}", lines.text());
}

/// Each row: where the layer is, the route in its table, and the requests. Then the number of warnings.
#[tokio::test]
async fn a_route_without_the_prefix_of_its_router_is_one_warning_with_the_full_path() {
    let rows: [(&str, &str, &[&str], Option<&str>); 9] = [
        ("nested", "/login", &["/api/login", "/api/login", "/api/orders/7"], Some(r#"such as "/api/login""#)),
        ("nested", "/orders/{id}", &["/api/orders/s3cret"], Some(r#"such as "/api/orders/{order}""#)),
        ("nested", "/missing", &["/api/missing"], Some("with the prefix of the nested router")),
        ("nested", "/api/login", &["/api/login", "/api/orders/7", "/api/missing"], None),
        ("nested", "GET /login", &["/api/login"], None),
        ("nested", "/other", &["/api/login", "/api/missing"], None),
        ("service", "/login", &["/api/login"], Some(r#"such as "/api/login""#)),
        ("outside", "/login", &["/api/login", "/api/missing", "/missing"], None),
        ("route", "/login", &["/api/login"], Some(r#"such as "/api/login""#)),
    ];
    for (place, route, paths, expected) in rows {
        let (lines, _guard) = Lines::listen();
        let rule = Rule::new(Policy::new("p", Quota::per_hour(9)), Key::new("all"));
        let layer = RateLimitLayer::with_rules(MemoryStore::new(), Rules::new().route(route, rule));
        let login = post(async || "welcome");
        let login = if place == "route" { login.layer(layer.clone()) } else { login };
        let inner = Router::new().route("/login", login).route("/orders/{order}", any(async || "order"));
        let app = match place {
            "nested" => Router::new().nest("/api", inner.fallback(async || "missing").layer(layer)),
            "service" => Router::new().nest_service("/api", inner.layer(layer)),
            "outside" => Router::new().nest("/api", inner).layer(layer),
            _ => Router::new().nest("/api", inner),
        };
        for path in paths {
            let request = Request::post(*path).body(Body::empty()).unwrap();
            app.clone().oneshot(request).await.unwrap();
        }
        let text = lines.text();
        assert_eq!(
            lines.with("write the full path"),
            usize::from(expected.is_some()),
            "{place} {route}: {text}"
        );
        assert!(expected.is_none_or(|expected| text.contains(expected)), "{place} {route}: {text}");
        assert!(!text.contains("s3cret"), "{place} {route}: {text}");
    }
}

/// A table with `fallback` warns too.
#[tokio::test]
async fn a_route_without_its_prefix_is_a_warning_even_if_other_rules_apply() {
    let (lines, _guard) = Lines::listen();
    let rule = |name: &str| Rule::new(Policy::new(name, Quota::per_hour(9)), Key::new("all"));
    let rules = Rules::new().route("/login", rule("login")).fallback(rule("rest")).always(rule("all"));
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules);
    let app =
        Router::new().nest("/api", Router::new().route("/login", post(async || "welcome")).layer(layer));
    for _ in 0..3 {
        app.clone().oneshot(Request::post("/api/login").body(Body::empty()).unwrap()).await.unwrap();
    }
    assert_eq!(lines.with(r#"write the full path, such as "/api/login""#), 1, "{}", lines.text());
}
