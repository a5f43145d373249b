//! What an explanation says is what a check then does.

use std::time::Duration;

use serde_json::json;
use support::{Down, Fake, RedisServer, fails, let_others_run, settings};
use tower_ratelimit::{
    Answer, Charge, Decision, ErrorKind, FailureMode, Key, KeyExtractor as _, Limiter, MemoryStore, Policy,
    Quota,
    decision::Verdict,
    policy::Penalty,
    store::{Action, ManualClock},
};
use tower_ratelimit_operate::explain::Explanation;

#[tokio::test]
async fn an_explanation_names_the_key_in_redis_and_the_identity_that_was_passed() {
    let server = RedisServer::start();
    let limiter = Limiter::new(settings().prefix("shop").connect(&server.url()).await.unwrap());
    let policy = Policy::new("a:b", Quota::per_hour(5));
    let (request, ()) = http::Request::new(()).into_parts();
    let hashed = Key::new("user-4").hashed("0123456789abcdef").extract(&request).await.unwrap();
    let stored = Key::from_stored(hashed.as_str()).unwrap();
    let rows = [
        (Key::new("alice"), "shop:a%3Ab:gcra:{alice}", Some("alice")),
        (Key::new("José"), "shop:a%3Ab:gcra:{Jos%C3%A9}", Some("José")),
        (hashed, "shop:a%3Ab:gcra:{%*a6949588618bfddffa881161bfd2fd6d}", Some("user-4")),
        (stored, "shop:a%3Ab:gcra:{%*a6949588618bfddffa881161bfd2fd6d}", None),
    ];
    for (key, name, identity) in rows {
        limiter.check(&policy, &key, 1).await.unwrap();
        let explanation = Explanation::of(&limiter, &policy, &key, 1).await.unwrap();
        let charge = &explanation.charges()[0];
        assert_eq!((charge.stored_name(), charge.identity()), (Some(name), identity));
        assert_eq!(charge.key(), &key);
        assert_eq!(server.command::<u8>(&["EXISTS", name]), 1, "{name}");
        // What is logged by accident discloses nothing.
        let debug = format!("{explanation:?}");
        assert!(!debug.contains("alice") && !debug.contains("Jos") && !debug.contains("a6949588"), "{debug}");
    }
}

#[tokio::test]
async fn an_explanation_is_read_by_people_and_by_programs() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let tokens = Policy::new("tokens", Quota::per_hour(100)).max_debt(50).failure_mode(FailureMode::Open);
    let new = Policy::new("new", Quota::per_hour(1)).shadow();
    let exports = Policy::concurrency("exports", 2);
    let key = Key::new("a\u{1b}[2J b");
    let request = limiter.check(&tokens, &key, 1).await.unwrap();
    limiter.debit(&request, 129).await.unwrap();
    limiter.check(&new, &key, 1).await.unwrap();
    let running = limiter.check(&exports, &key, 1).await.unwrap();

    let charges =
        [Charge::new(&new, &key, 1), Charge::new(&tokens, &key, 101), Charge::new(&exports, &key, 1)];
    let explanation = Explanation::of_all(&limiter, &charges).await.unwrap();
    let expected = r#"policy new: 1/h, gcra, shadow, failure mode local
key a%1B[2J%20b of "a\u{1b}[2J b"
0 of 1 unit remain; fully replenished in 1h
a request of 1 unit is denied; admitted in 1h; the policy is a shadow for this key and denies nothing

policy tokens: 100/h, gcra, debt up to 50, failure mode open
key a%1B[2J%20b of "a\u{1b}[2J b"
0 of 100 units remain, and 30 units are owed; fully replenished in 1h 18m
a request of 101 units is denied; waiting does not help

policy exports: 2/30s, concurrency, failure mode local
key a%1B[2J%20b of "a\u{1b}[2J b"
1 of 2 permits are free
a request of 1 unit is admitted

all together: denied; waiting does not help
"#;
    assert_eq!(explanation.to_string(), expected);
    drop(running);

    let value = serde_json::to_value(&explanation).unwrap();
    assert_eq!(value["verdict"], "denied");
    let tokens = &value["charges"][1];
    let expected = json!({
        "policy": {
            "name": "tokens", "quota": "100/h", "algorithm": "gcra", "capacity": 100, "max_debt": 50, "max_lease": 0,
            "has_penalty": false, "quota_unit": "requests", "enforced": 1.0, "failure_mode": "open",
        },
        "key": "a%1B[2J%20b",
        "identity": "a\u{1b}[2J b",
        "key_hash": tokens["key_hash"],
        "stored_as": null,
        "cost": 101,
        "is_shadow": false,
        "verdict": "denied",
        "delay": null,
        "retry_after": null,
        "banned_for": null,
        "remaining": 0,
        "reset_after": 4_680.0,
        "owed": 30,
    });
    assert_eq!(*tokens, expected);
    assert_eq!(value["charges"][0]["is_shadow"], true);
}

#[tokio::test]
async fn an_explanation_says_that_the_store_failed_and_what_decides() {
    let limiter = Limiter::new(Down);
    let key = Key::new("alice");
    let policy = |mode| Policy::new("p", Quota::per_hour(5)).failure_mode(mode);

    let local = Explanation::of(&limiter, &policy(FailureMode::default()), &key, 9).await.unwrap();
    assert_eq!(local.decision().failure().unwrap().kind(), ErrorKind::StoreUnreachable);
    assert_eq!(local.decision().verdict(), Verdict::deny(None));
    let local = local.to_string();
    assert!(local.ends_with("the store failed, and this process counts: secret of the store\n"), "{local}");

    let open = Explanation::of(&limiter, &policy(FailureMode::Open), &key, 9).await.unwrap();
    assert!(open.decision().is_admitted() && open.charges()[0].outcome().is_none());
    assert!(open.to_string().contains("its state is unknown"), "{open}");
    let value = serde_json::to_value(&open).unwrap();
    assert_eq!(value["failure"], "secret of the store");
    assert_eq!(value["charges"][0]["remaining"], json!(null));

    let closed = Explanation::of(&limiter, &policy(FailureMode::Closed), &key, 1).await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::StoreUnreachable);
}

#[tokio::test]
async fn an_explanation_during_an_outage_hands_nothing_back() {
    let store = Fake::new(Down, |_, _, charges| match charges {
        [] => Answer::ready(Ok(Decision::new([]))),
        _ => fails(ErrorKind::StoreSuspended),
    });
    let limiter = Limiter::new(store.clone());
    let (policy, alice) = (Policy::new("p", Quota::per_day(2)).max_debt(5), Key::new("alice"));
    // Owed to the store.
    assert!(limiter.check(&policy, &alice, 2).await.unwrap().is_admitted());
    for _ in 0..3 {
        let explanation = Explanation::of(&limiter, &policy, &alice, 1).await.unwrap();
        assert!(explanation.decision().failure().is_some());
        let_others_run().await;
    }
    assert_eq!(store.asked(Action::ChargeUpTo), []);
}

#[tokio::test]
async fn an_explanation_shows_a_ban_and_what_is_owed_during_it() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let policy = Policy::new("p", Quota::per_hour(10)).max_debt(20).penalty(Penalty::manual());
    let key = Key::new("alice");
    let request = limiter.check(&policy, &key, 1).await.unwrap();
    limiter.debit(&request, 16).await.unwrap();
    limiter.operator().ban(&policy, &key, Duration::from_secs(90)).await.unwrap();
    let banned = Explanation::of(&limiter, &policy, &key, 1).await.unwrap();
    let expected = "\
policy p: 10/h, gcra, debt up to 20, penalty, failure mode local
key alice
the key is banned for 1m 30s
a request of 1 unit is denied; admitted in 48m
";
    assert_eq!(banned.to_string(), expected);
    let value = serde_json::to_value(&banned).unwrap();
    assert_eq!((&value["charges"][0]["banned_for"], &value["charges"][0]["owed"]), (&json!(90.0), &json!(7)));
    limiter.operator().unban(&policy, &key).await.unwrap();
    let after = Explanation::of(&limiter, &policy, &key, 1).await.unwrap().to_string();
    assert!(after.contains("0 of 10 units remain, and 7 units are owed; "), "{after}");
}

#[tokio::test]
async fn charges_that_no_decision_can_have_are_an_error() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::new("p", Quota::per_hour(5));
    let twice = [Charge::new(&policy, &Key::new("a"), 1), Charge::new(&policy, &Key::new("a"), 1)];
    assert_eq!(Explanation::of_all(&limiter, &twice).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let none = Explanation::of_all(&limiter, &[]).await.unwrap();
    assert!(none.decision().is_admitted() && none.charges().is_empty());
}
