//! Invalid settings and requests are errors that say what to do. Unusual but valid input works.

use http::{HeaderValue, Request, request::Parts};
use support::{
    RedisServer,
    inner::{ask, text},
    settings, store,
};
use tower_ratelimit::{
    ErrorKind, FailureMode, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, Quota,
    RateLimitLayer, RedisStore, algorithm::FixedWindow,
};

#[tokio::test]
async fn an_error_about_a_redis_url_does_not_show_its_password() {
    let locked = RedisServer::with(&["--requirepass", "right"]);
    let no_url = "the Redis URL is invalid (it is not a URL); write redis://";
    let with_wrong_password = locked.url().replace("redis://", "redis://:hunter2@");
    let rows = [
        ("no scheme", "127.0.0.1:6379", ErrorKind::InvalidConfig, "write redis://"),
        ("a typo", "redis//user:hunter2@host", ErrorKind::InvalidConfig, "write redis://"),
        ("a bad port", "redis://:hunter2@host:99999", ErrorKind::InvalidConfig, "write redis://"),
        ("a bad database", "redis://:hunter2@host/zero", ErrorKind::InvalidConfig, "write redis://"),
        ("another scheme", "http://:hunter2@host", ErrorKind::InvalidConfig, "write redis://"),
        ("nothing", "", ErrorKind::InvalidConfig, no_url),
        ("no server", "redis://:hunter2@127.0.0.1:1", ErrorKind::StoreUnreachable, "at 127.0.0.1:1"),
        ("wrong password", &with_wrong_password, ErrorKind::StoreUnreachable, "assword"),
        ("no password", &locked.url_with(2), ErrorKind::StoreFailed, "NOAUTH"),
        // The greeting of protocol 3 needs the password already.
        ("no password, protocol 3", &locked.url_with(3), ErrorKind::StoreUnreachable, "requires a password"),
    ];
    for (name, url, kind, message) in rows {
        let error = RedisStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(message), "{name}: {error}");
        let everything = format!("{error} {error:?}");
        assert!(!everything.contains("hunter2"), "{name}: {everything}");
    }
    let right = RedisStore::connect(&locked.url().replace("redis://", "redis://:right@")).await.unwrap();
    assert!(!format!("{right:?}").contains("right"));
}

#[tokio::test]
async fn an_invalid_store_setting_is_an_error_that_names_it() {
    let long = "a".repeat(65);
    let rows = [
        ("braces", settings().prefix("a{b}"), "without spaces and braces"),
        ("a space", settings().prefix("a b"), "without spaces and braces"),
        ("no prefix", settings().prefix(""), "1 to 64 printable ASCII characters"),
        ("too long", settings().prefix(long), "1 to 64 printable ASCII characters"),
        ("no time", settings().deadline(std::time::Duration::ZERO), "a deadline must be above zero"),
        ("no connection", settings().pool_size(0), "at least 1 connection"),
    ];
    for (name, settings, message) in rows {
        let error = settings.connect_lazy("redis://127.0.0.1:1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}");
        assert!(error.to_string().contains(message), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_request_without_a_usable_identity_is_rejected_with_the_reason() {
    let header =
        |value: &[u8]| Request::get("/").header("x-api-key", HeaderValue::from_bytes(value).unwrap());
    let api_key = || Header::new("x-api-key");
    let megabyte = vec![b'a'; 1 << 20];
    let twice = header(b"a").header("x-api-key", "b");
    let rows: [(&str, Box<dyn KeyExtractor>, http::request::Builder, u16, &str); 7] = [
        ("no peer", Box::new(PeerIp::new()), Request::get("/"), 500, "The rate limit is misconfigured."),
        ("no header", Box::new(api_key()), Request::get("/"), 400, "lacks the header `x-api-key`"),
        ("not UTF-8", Box::new(api_key()), header(b"\xff\xfe"), 400, "`x-api-key` is not UTF-8"),
        ("a megabyte", Box::new(api_key()), header(&megabyte), 400, "`x-api-key` is longer than 8192 bytes"),
        ("empty", Box::new(api_key()), header(b""), 400, "`x-api-key` is empty"),
        ("twice", Box::new(api_key()), twice, 400, "`x-api-key` is sent more than once"),
        // A client must not choose its key by sending an invalid header.
        ("an alternative", Box::new(api_key().or(PeerIp::new())), header(b"\xff"), 400, "UTF-8"),
    ];
    for (name, key, request, status, message) in rows {
        let layer = RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_hour(1)), key);
        let response = ask(&layer, request.body(String::new()).unwrap()).await;
        assert_eq!(response.status(), status, "{name}");
        let body = text(response).await;
        assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok(), "{name}: {body}");
        assert!(body.contains(message), "{name}: {body}");
    }
}

#[tokio::test]
async fn unusual_identities_are_counted_separately() {
    let server = RedisServer::start();
    let redis = store(&server).await;
    let identities: [&[u8]; 12] = [
        b"",
        b"{",
        b"}",
        b"{}",
        b"{a}",
        b"a",
        b"a\0",
        b"\0",
        b"\xff\xff",
        b"a b\r\nc",
        &[b'x'; 1 << 20],
        &[b'x'; (1 << 20) + 1],
    ];
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(redis)] {
        let policy = Policy::new("a {strange}: name", Quota::per_day(1));
        for verdict in [true, false] {
            for identity in identities {
                let decision = limiter.check(&policy, &Key::new(identity), 1).await.unwrap();
                assert_eq!(
                    decision.is_admitted(),
                    verdict,
                    "{:?}",
                    String::from_utf8_lossy(&identity[..identity.len().min(9)])
                );
            }
        }
    }
    // One key each, none of them long, each with the identity as its one hash tag.
    let mut keys: Vec<String> = server.command(&["KEYS", "*"]);
    // Where instances announce themselves.
    keys.retain(|key| !key.contains("%25instances"));
    assert_eq!(keys.len(), identities.len());
    for key in keys {
        assert!(key.len() < 200 && key.matches('{').count() == 1 && key.ends_with('}'), "{key}");
        assert!(!key.contains("{}"), "{key}");
    }
}

#[tokio::test]
async fn the_largest_cost_is_always_denied_and_charges_nothing() {
    let server = RedisServer::start();
    let redis = store(&server).await;
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(redis)] {
        let largest = Quota::new(1_000_000_000_000, std::time::Duration::from_secs(86_400));
        let policies = [
            Policy::new("small", Quota::per_hour(3)),
            Policy::new("large", largest),
            Policy::new("window", largest).algorithm(FixedWindow::anchored()),
        ];
        for policy in policies {
            let key = Key::new("alice");
            for cost in [u64::MAX, u64::MAX - 1, policy.capacity() + 1] {
                let decision = limiter.check(&policy, &key, cost).await.unwrap();
                assert!(!decision.is_admitted());
                assert_eq!(decision.retry_after(), None, "{} {cost}", policy.name());
                assert_eq!(decision.outcomes()[0].remaining(), policy.capacity());
            }
            assert!(limiter.check(&policy, &key, policy.capacity()).await.unwrap().is_admitted());
        }
    }
}

#[tokio::test]
async fn a_decision_has_at_most_256_charges() {
    let server = RedisServer::start();
    let policy = Policy::new("p", Quota::per_hour(9)).failure_mode(FailureMode::Closed);
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(store(&server).await)] {
        let charges: Vec<_> =
            (0..257).map(|i| tower_ratelimit::Charge::new(&policy, &Key::new(format!("k{i}")), 1)).collect();
        assert!(limiter.check_all(&charges[..256]).await.unwrap().is_admitted());
        let error = limiter.check_all(&charges).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("split it"), "{error}");
    }
}

#[tokio::test]
async fn the_same_key_twice_in_one_decision_is_an_error_with_a_remedy() {
    let limiter = Limiter::new(MemoryStore::new());
    let charge = tower_ratelimit::Charge::new(&Policy::new("p", Quota::per_hour(9)), &Key::new("alice"), 1);
    let error = limiter.check_all(&[charge.clone(), charge]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("add their costs"), "{error}");
}

#[test]
#[should_panic(expected = "\"no header\" is not a header name")]
fn an_invalid_header_name_panics_when_the_extractor_is_built() {
    let _ = Header::new("no header");
}

#[tokio::test]
async fn a_closure_that_returns_no_identity_is_an_error_and_not_a_shared_key() {
    let extractor = |parts: &Parts| parts.uri.query().map(String::from);
    let (parts, ()) = Request::get("/").body(()).unwrap().into_parts();
    assert_eq!(extractor.extract(&parts).await.unwrap_err().kind(), ErrorKind::MissingIdentity);
}

#[tokio::test]
async fn services_with_different_prefixes_share_no_key() {
    let server = RedisServer::start();
    for (prefix, name) in [("shop", "eu:login"), ("shop:eu", "login"), ("shop", "eu%3Alogin")] {
        let limiter = Limiter::new(settings().prefix(prefix).connect(&server.url()).await.unwrap());
        let policy = Policy::new(name, Quota::per_day(1));
        let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        assert!(decision.is_admitted(), "{prefix} {name}");
    }
}

#[tokio::test]
async fn the_longest_deadline_is_accepted() {
    let server = RedisServer::start();
    let limiter =
        Limiter::new(settings().deadline(std::time::Duration::MAX).connect(&server.url()).await.unwrap());
    let decision = limiter.check(&Policy::new("p", Quota::per_day(1)), &Key::new("alice"), 1).await.unwrap();
    assert!(decision.is_admitted() && decision.failure().is_none());
}

#[tokio::test]
async fn an_unreachable_server_is_not_reported_as_busy() {
    let locked = RedisServer::with(&["--requirepass", "right"]);
    let policy = Policy::new("p", Quota::per_day(1));
    for (url, message) in [
        ("redis://127.0.0.1:1".to_owned(), "connection refused"),
        (locked.url().replace("//", "//:wrong@"), "assword"),
    ] {
        let limiter = Limiter::new(RedisStore::builder().connect_lazy(&url).unwrap());
        let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        let failure = decision.failure().unwrap();
        assert_eq!(failure.kind(), ErrorKind::StoreUnreachable, "{failure}");
        assert!(failure.to_string().contains(message), "{failure}");
    }
}
