//! CORS preflights: limited, and never charged to the quota of the client.

use std::{
    borrow::Cow,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, Request, request::Parts};
use support::{
    RedisServer,
    inner::{ask, ask_and_read},
    memory_and_redis,
    script::{check, check_with, request},
};
use tower_ratelimit::{
    Answer, Decision, Error, ErrorKind, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy,
    PolicySource, Quota, RateLimitLayer, Rule, policy::Penalty,
};

fn layer(limit: u64, key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_hour(limit)), key)
}

/// The key under which a preflight with this header is charged.
async fn stored_key(header: &str) -> Key {
    let preflight = request(&format!("PREFLIGHT / from=203.0.113.7 {header}"));
    let response = ask_and_read(&layer(9, Header::new("x-api-key")), preflight).await;
    response.extensions().get::<Decision>().unwrap().outcomes()[0].charge().key().clone()
}

#[tokio::test]
async fn preflights_are_limited_and_not_charged_to_the_client() {
    let layer = layer(2, PeerIp::new());
    check("the client", &layer, "PREFLIGHT / from=203.0.113.7 200 200 429 429; from=203.0.113.7 200 200 429")
        .await;
    check("preflights of another client have a separate quota", &layer, "PREFLIGHT / from=203.0.113.8 200")
        .await;
}

#[tokio::test]
async fn a_preflight_without_the_credentials_of_the_key_counts_by_its_peer() {
    let later = |parts: &Parts| {
        let key = Header::new("x-api-key").extract(parts);
        Answer::pending(async move {
            tokio::task::yield_now().await;
            key.await
        })
    };
    let keys: [(&str, Box<dyn KeyExtractor>); 4] = [
        ("header", Box::new(Header::new("x-api-key"))),
        ("later", Box::new(later)),
        ("tuple", Box::new((Header::new("x-api-key"), |parts: &Parts| parts.method.to_string()))),
        ("extension", Box::new(|parts: &Parts| parts.extensions.get::<u64>().copied())),
    ];
    for (name, key) in keys {
        let script =
            "PREFLIGHT / from=203.0.113.7 200 429; PREFLIGHT / from=203.0.113.8 200 429; PREFLIGHT / 200 429";
        check(name, &layer(1, key), script).await;
    }
    let layer = layer(1, Header::new("x-api-key").or(Header::new("x-old-key")));
    for claim in [
        "x-api-key=203.0.113.7",
        "x-api-key=%>203.0.113.7",
        "x-api-key=%^203.0.113.7",
        "x-old-key=203.0.113.7",
    ] {
        let script = format!("PREFLIGHT / from=203.0.113.7 {claim} 200");
        check("with an API key, it cannot be charged to a peer's key", &layer, &script).await;
    }
    check("the peer's", &layer, "PREFLIGHT / from=203.0.113.7 200").await;
}

#[tokio::test]
async fn the_stored_key_of_a_preflight_has_a_mark() {
    for (header, stored) in [("x-api-key=k1", "%^k1"), ("", "%^%^203.0.113.7")] {
        assert_eq!(stored_key(header).await.as_str(), stored);
    }
}

#[tokio::test]
async fn a_preflight_with_an_identity_that_cannot_be_used_is_rejected() {
    let layer = layer(9, Header::new("x-api-key"));
    check("two keys", &layer, "PREFLIGHT / x-api-key=a x-api-key=b 400").await;
    // A request that only resembles a preflight is an ordinary request.
    check("no method", &layer, "OPTIONS / origin=https://page.example 400").await;
}

#[tokio::test]
async fn costs_chosen_policies_exemptions_and_permits_apply_to_preflights_too() {
    let tiers = PolicySource::per_request(|_: &Parts, _: &Key| Policy::new("chosen", Quota::per_hour(4)));
    let tiers = Rule::new(tiers, Header::new("x-api-key")).cost(|_| 2);
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), tiers)
        .rule(Rule::new(Policy::concurrency("in-flight", 1), Key::new("all")))
        .exempt_if(PeerIp::new().within(["203.0.113.8"]).unwrap());
    let script = "PREFLIGHT / from=203.0.113.7 200 200 429; PREFLIGHT / from=203.0.113.8 200 200 200 200";
    check("", &layer, script).await;
}

#[tokio::test]
async fn preflights_can_be_exempt() {
    let exempt = layer(1, PeerIp::new()).exempt_if(|parts| parts.method == Method::OPTIONS);
    check("", &exempt, "PREFLIGHT / from=203.0.113.7 200 200 200 200").await;
}

#[tokio::test]
async fn a_handler_that_charges_more_for_a_preflight_charges_the_quota_of_preflights() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::new("p", Quota::per_hour(5));
    let layer = RateLimitLayer::new(limiter.clone(), policy.clone(), PeerIp::new());
    let response = ask_and_read(&layer, request("PREFLIGHT / from=203.0.113.7")).await;
    let decision = response.extensions().get::<Decision>().unwrap();
    assert!(limiter.charge_more(decision, 4).await.unwrap().is_admitted());
    let own = limiter.peek(&policy, &Key::new("203.0.113.7"), 0).await.unwrap();
    assert_eq!(own.remaining(), Some(5));
    check("", &layer, "PREFLIGHT / from=203.0.113.7 429").await;
}

/// The ban is one of the address, which a preflight shows.
#[tokio::test]
async fn a_banned_client_is_not_served_through_preflights() {
    let server = RedisServer::start();
    for (name, limiter) in memory_and_redis(&server).await {
        let policy =
            Policy::new("p", Quota::per_day(2)).penalty(Penalty::after(3, Duration::from_secs(3_600)));
        let layer = RateLimitLayer::new(limiter.clone(), policy.clone(), PeerIp::new());
        let banned = "from=203.0.113.7 200 200 429 429 429; PREFLIGHT / from=203.0.113.7 429 429 429";
        check(name, &layer, banned).await;
        check(name, &layer, "PREFLIGHT / from=203.0.113.8 200").await;
        // A ban by hand, and its end.
        let key = Key::new("203.0.113.8");
        limiter.operator().ban(&policy, &key, Duration::from_secs(60)).await.unwrap();
        check(name, &layer, "PREFLIGHT / from=203.0.113.8 429 429").await;
        limiter.operator().unban(&policy, &key).await.unwrap();
        check(name, &layer, "PREFLIGHT / from=203.0.113.8 200").await;
    }
}

/// Browsers send no credentials with a preflight, so a closure that expects an identity cannot choose a policy.
#[tokio::test]
async fn a_preflight_without_an_identity_is_not_limited_if_no_policy_can_be_chosen_for_it() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tier = {
        let seen = seen.clone();
        move |_: &Parts, key: &Key| {
            let identity = key.identity().map(Cow::into_owned);
            seen.lock().unwrap().push(identity.clone());
            match identity.as_deref() {
                Some("k1") => Ok(Policy::new("free", Quota::per_hour(1))),
                _ => Err(Error::new(ErrorKind::UnknownIdentity, "no account has this API key")),
            }
        }
    };
    let now = tier.clone();
    let later = move |request: &Parts, key: &Key| {
        let tier = tier(request, key);
        Answer::pending(async move {
            tokio::task::yield_now().await;
            tier
        })
    };
    #[derive(Clone)]
    struct Plan(Policy);
    for (name, tiers, unknown) in [
        ("now", PolicySource::per_request(now), 401),
        ("later", PolicySource::per_request(later), 401),
        ("extension", PolicySource::from_extension(|plan: &Plan| plan.0.clone()), 500),
    ] {
        let layer = RateLimitLayer::new(MemoryStore::new(), tiers, Header::new("x-api-key"));
        let with_plan = async |mut request: Request<String>| {
            if request.headers().get("x-api-key").is_some_and(|key| key == "k1") {
                request.extensions_mut().insert(Plan(Policy::new("free", Quota::per_hour(1))));
            }
            ask(&layer, request).await.status().as_u16()
        };
        let preflights = "PREFLIGHT / 200 200; PREFLIGHT / x-api-key=k1 200 429; PREFLIGHT / x-api-key=k2";
        let own = "/ 400; x-api-key=k1 200 429; x-api-key=k2";
        check_with(name, &format!("{preflights} {unknown}; {own} {unknown}"), with_plan).await;
        let seen = mem::take(&mut *seen.lock().unwrap());
        let identities = [None, None, Some("k1"), Some("k1"), Some("k2"), Some("k1"), Some("k1"), Some("k2")];
        let expected = if name == "extension" { &[][..] } else { &identities };
        assert_eq!(seen.iter().map(Option::as_deref).collect::<Vec<_>>(), expected, "{name}");
    }
}

/// A failure of the server is one for a preflight without an identity too.
#[tokio::test]
async fn a_preflight_without_an_identity_is_rejected_if_the_lookup_of_its_policy_fails() {
    let down = |_: &Parts, _: &Key| {
        Err::<Policy, _>(Error::new(ErrorKind::IdentityUnavailable, "the database is down"))
    };
    let tiers = PolicySource::per_request(down);
    let layer = RateLimitLayer::new(MemoryStore::new(), tiers, Header::new("x-api-key"));
    check("", &layer, "PREFLIGHT / from=203.0.113.7 500").await;
}

/// A key that is as long as possible is longer with the mark.
#[tokio::test]
async fn a_ban_of_a_long_key_holds_for_its_preflights() {
    let server = RedisServer::start();
    for (name, limiter) in memory_and_redis(&server).await {
        let policy =
            Policy::new("p", Quota::per_day(1)).penalty(Penalty::after(2, Duration::from_secs(3_600)));
        let layer = RateLimitLayer::new(limiter, policy, Header::new("x-api-key"));
        for length in [94, 95, 96, 97] {
            let header = format!("from=203.0.113.7 x-api-key={}", "k".repeat(length));
            check(name, &layer, &format!("{header} 200 429 429; PREFLIGHT / {header} 429")).await;
        }
    }
}

#[tokio::test]
async fn the_key_of_a_preflight_is_read_from_its_stored_form() {
    for (length, stored) in [(94, 96), (95, 97), (96, 98), (97, 36)] {
        let api_key = "k".repeat(length);
        let key = stored_key(&format!("x-api-key={api_key}")).await;
        assert_eq!(key.as_str().len(), stored, "{length}");
        let read = Key::from_stored(key.as_str()).unwrap();
        assert_eq!((&read, read.identity()), (&key, key.identity()), "{length}");
        assert_eq!(key.as_str(), ["%^", Key::new(&*api_key).as_str()].concat(), "{length}");
    }
    // However many marks there are, a key is bounded.
    for marks in [1, 2, 3, 10_000] {
        let key = Key::from_stored(&["%^".repeat(marks), "k".repeat(96)].concat()).unwrap();
        assert!(key.as_str().len() <= 100, "{marks}");
    }
}
