//! Reservations that another process settles: tokens are settled once, in their lifetime, with the service's secret.
//!
//! ```text
//! SETTLED_TOKENS=10000 cargo test --release -p tests settlement_tokens::
//! ```
//!
//! has three processes settle that many tokens, with repeats and broken connections, instead of 300.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use support::{
    Down, InLua, PATIENT, RedisServer, day, losing::losing, redis_store, settings, stores_with_clock,
    units_left,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Charge, Error, ErrorKind, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Reservation, Rule,
    algorithm::{Algorithm, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    settlement::{Settlement, SettlementSecret},
    store::ManualClock,
};

use crate::stores::{pairs, stores};

const HOUR: Duration = Duration::from_secs(3_600);

fn secret() -> SettlementSecret {
    SettlementSecret::new([7; 32])
}

fn all() -> Key {
    Key::new("all")
}

/// A reservation of `estimate` units of the key "all".
async fn reserve(limiter: &Limiter, policy: &Policy, estimate: u64) -> Reservation {
    let decision = limiter.check(policy, &all(), estimate).await.unwrap();
    assert!(decision.is_admitted());
    Reservation::new(limiter, &decision)
}

async fn token(limiter: &Limiter, policy: &Policy, estimate: u64) -> String {
    reserve(limiter, policy, estimate).await.into_token(&secret(), HOUR).unwrap()
}

async fn settle(limiter: &Limiter, policy: &Policy, token: &str, units: u64) -> Result<Settlement, Error> {
    limiter.settle_token(&secret(), token, std::slice::from_ref(policy), units).await
}

fn kind(settled: Result<Settlement, Error>) -> ErrorKind {
    settled.unwrap_err().kind()
}

fn every_algorithm(limit: u64) -> Vec<Policy> {
    let quota = Quota::per_day(limit);
    fn policy(name: &str, quota: Quota, algorithm: impl Algorithm) -> Policy {
        Policy::new(name, quota).algorithm(algorithm)
    }
    vec![
        policy("gcra", quota, Gcra::new()),
        policy("meter", quota, LeakyBucket::meter()),
        policy("tokens", quota, TokenBucket::new().refill_every(24 * HOUR)),
        policy("anchored", quota, FixedWindow::anchored()),
        policy("aligned", quota, FixedWindow::aligned()),
        policy("month", Quota::per_month(limit), FixedWindow::aligned()),
        policy("log", quota, SlidingLog::new()),
        policy("segments", quota, SlidingWindow::new().segments(10)),
    ]
}

#[tokio::test]
async fn a_token_is_settled_once_by_another_instance() {
    // The estimate, the actual cost, and what remains of 100 with a debt of up to 20 units.
    let rows = [
        ("less", 40, 10, 90),
        ("nothing", 40, 0, 100),
        ("the estimate", 40, 40, 60),
        ("more", 40, 70, 30),
        ("no estimate", 0, 25, 75),
        ("debt", 90, 115, 0),
        ("more than the debt", 90, 500, 0),
    ];
    for (store, [here, elsewhere]) in pairs("settled-once").await {
        for (number, (name, estimate, units, left)) in rows.into_iter().enumerate() {
            let policy = day(&format!("p{number}"), 100).max_debt(20);
            let token = token(&here, &policy, estimate).await;
            assert_eq!(units_left(&here, &policy).await, 100 - estimate, "{store}, {name}");
            let settled = settle(&elsewhere, &policy, &token, units).await.unwrap();
            assert!(!settled.is_repeated(), "{store}, {name}");
            assert_eq!(settled.decision().remaining(), Some(left), "{store}, {name}");
            assert_eq!(settled.rules()[0].policy(), &policy, "{store}, {name}");
            // Neither the same nor another cost changes anything.
            for units in [units, 0, 99] {
                let repeated = settle(&here, &policy, &token, units).await.unwrap();
                assert!(repeated.is_repeated(), "{store}, {name}: {units}");
                assert_eq!(repeated.decision().remaining(), Some(left), "{store}, {name}: {units}");
                assert_eq!(repeated.rules()[0].outcome().granted(), 0, "{store}, {name}: {units}");
                assert_eq!(units_left(&here, &policy).await, left, "{store}, {name}: {units}");
            }
        }
    }
}

#[tokio::test]
async fn settlements_of_one_token_at_the_same_time_are_made_once_under_every_algorithm() {
    for (store, [here, elsewhere]) in pairs("settled-together").await {
        for policy in every_algorithm(1_000) {
            // Other charges, so that the token is not the latest one.
            let token = token(&here, &policy, 100).await;
            here.check(&policy, &all(), 50).await.unwrap();
            for (units, left) in [(30, 920), (150, 770)] {
                let token = if units == 30 { token.clone() } else { self::token(&here, &policy, 100).await };
                let calls = (0..20).map(|number| {
                    settle(if number % 2 == 0 { &here } else { &elsewhere }, &policy, &token, units)
                });
                let settled = join_all(calls).await;
                let first = settled.iter().filter(|settled| !settled.as_ref().unwrap().is_repeated()).count();
                assert_eq!(first, 1, "{store}, {policy:?}, {units}");
                let remaining = units_left(&here, &policy).await;
                assert_eq!(remaining, left, "{store}, {policy:?}, {units}");
            }
        }
    }
}

/// As if the process that made the reservation settled it.
#[tokio::test]
async fn what_a_reservation_was_extended_by_is_refunded_too() {
    for (store, [here, elsewhere]) in pairs("settled-extended").await {
        for policy in every_algorithm(100) {
            let extended = async |key: &Key| {
                let decision = here.check(&policy, key, 10).await.unwrap();
                let reservation = Reservation::new(&here, &decision);
                reservation.extend_to(30).await.unwrap();
                reservation.charge_more(5).await.unwrap();
                reservation
            };
            let expected = extended(&Key::new("other")).await.settle(4).await.unwrap().remaining();
            let token = extended(&all()).await.into_token(&secret(), HOUR).unwrap();
            assert_eq!(units_left(&here, &policy).await, 65, "{store}, {policy:?}");
            let settled = settle(&elsewhere, &policy, &token, 4).await.unwrap();
            assert_eq!(settled.decision().remaining(), expected, "{store}, {policy:?}");
            assert_eq!(Some(units_left(&here, &policy).await), expected, "{store}, {policy:?}");
            // A bucket with steps refunds less of the older charges.
            assert!(expected == Some(96) || policy.name() == "tokens", "{store}, {policy:?}: {expected:?}");
        }
    }
}

#[tokio::test]
async fn units_are_settled_apart_and_a_missing_policy_settles_nothing() {
    for (store, [here, elsewhere]) in pairs("settled-units").await {
        let (tokens, cents) = (day("tokens", 1_000), day("cents", 500));
        let charges = [Charge::new(&tokens, &all(), 400), Charge::new(&cents, &all(), 20)];
        let decision = here.check_all(&charges).await.unwrap();
        let part = |name| Reservation::of_unit(&here, &decision.for_policy(name).unwrap(), name);
        let token = part("tokens").and(part("cents")).into_token(&secret(), HOUR).unwrap();
        let both = [day("other", 1), cents.clone(), tokens.clone()];
        let left = async || (units_left(&here, &tokens).await, units_left(&here, &cents).await);

        let error = elsewhere.settle_token(&secret(), &token, &both, 100).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{store}");
        assert_eq!(
            error.to_string(),
            "the rules of the token have several units (`tokens`, `cents`): give each its number, such as `[(\"tokens\", 5)]`, \
             and its name with `Rule::unit`",
            "{store}"
        );
        let known = [tokens.clone(), cents.clone().algorithm(Gcra::new())];
        let units = [("tokens", 100), ("cents", 5)];
        let error = elsewhere.settle_token(&secret(), &token, &known, units).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the settlement token needs the policy `cents:fixed-window`, which is not among the given ones",
            "{store}"
        );
        let error = elsewhere.settle_token(&secret(), &token, &both, [("bytes", 1)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{store}");
        assert_eq!(left().await, (600, 480), "{store}");

        // One unit, and then both.
        let settled = elsewhere.settle_token(&secret(), &token, &both, [("cents", 5)]).await.unwrap();
        assert_eq!(settled.rules().len(), 1, "{store}");
        assert_eq!(left().await, (600, 495), "{store}");
        let settled = elsewhere.settle_token(&secret(), &token, &both, units).await.unwrap();
        let rules: Vec<_> = settled.rules().iter().map(|rule| (rule.unit(), rule.is_repeated())).collect();
        assert_eq!(rules, [(Some("tokens"), false), (Some("cents"), true)], "{store}");
        assert!(!settled.is_repeated(), "{store}");
        assert_eq!(left().await, (900, 495), "{store}");
    }
}

#[tokio::test]
async fn a_token_expires_by_the_clock_of_the_store_and_leaves_the_estimate_charged() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    for (store, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let policy = day("api", 100);
        let (early, late) = (token(&limiter, &policy, 10).await, token(&limiter, &policy, 20).await);
        clock.advance(HOUR - Duration::from_micros(1));
        assert!(!settle(&limiter, &policy, &early, 3).await.unwrap().is_repeated(), "{store}");
        clock.advance(Duration::from_micros(1));
        for units in [0, 20, 30] {
            let error = settle(&limiter, &policy, &late, units).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ExpiredToken, "{store}, {units}");
            assert_eq!(
                error.to_string(),
                "the settlement token is not settled under `api`: the settlement token has expired, so the \
                 estimate stays charged",
                "{store}"
            );
        }
        // A settlement is remembered for longer than the token can be settled.
        for _ in 0..2 {
            assert!(settle(&limiter, &policy, &early, 3).await.unwrap().is_repeated(), "{store}");
            clock.step_back(HOUR / 2);
        }
        assert_eq!(units_left(&limiter, &policy).await, 77, "{store}");
        clock.advance(HOUR);
    }
}

#[tokio::test]
async fn only_tokens_of_a_known_secret_are_opened_and_no_error_shows_an_identity() {
    for (store, limiter) in stores("settled-secrets").await {
        let policy = day("api", 100);
        let token = token(&limiter, &policy, 10).await;
        let (new, old) = ([8; 32], [7; 32]);
        let settle = async |secret: &SettlementSecret, token: &str| {
            limiter.settle_token(secret, token, &[day("api", 100)], 1).await
        };
        let mut changed = token.clone();
        let last = changed.pop().unwrap();
        let at = changed.len() - 8;
        changed.replace_range(at..=at, if &changed[at..=at] == "A" { "B" } else { "A" });
        changed.push(last);
        let rows = [
            ("empty", String::new(), "the text is not a settlement token"),
            ("another text", "eyJhbGciOiJIUzI1NiJ9.e30".into(), "the text is not a settlement token"),
            ("not base64", "v1.a b".into(), "the text is not a settlement token"),
            ("very long", "v1.".to_owned() + &"A".repeat(30_000), "the text is not a settlement token"),
            (
                "a later version",
                token.replacen("v1", "v2", 1),
                "the settlement token is of another version of tower-ratelimit",
            ),
            ("its start", token[..20].into(), "the settlement token is truncated"),
            ("without its end", token[..token.len() - 4].into(), "the settlement token is truncated"),
            ("without a character", token[..token.len() - 1].into(), "the settlement token is truncated"),
            ("changed", changed, "the settlement token was changed after it was sealed"),
        ];
        for (name, text, expected) in rows {
            let error = settle(&secret(), &text).await.unwrap_err();
            assert_eq!(
                (error.kind(), &*error.to_string()),
                (ErrorKind::InvalidToken, expected),
                "{store}, {name}"
            );
        }
        let error = settle(&SettlementSecret::new(new), &token).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the settlement token is sealed with another secret: add that one with `and_previous`",
            "{store}"
        );
        assert_eq!(units_left(&limiter, &policy).await, 90, "{store}");
        let rotated = SettlementSecret::new(new).and_previous(old);
        assert!(!settle(&rotated, &token).await.unwrap().is_repeated(), "{store}");
        assert!(settle(&secret(), &token).await.unwrap().is_repeated(), "{store}");
        let token = reserve(&limiter, &policy, 10).await.into_token(&rotated, HOUR).unwrap();
        assert_eq!(kind(settle(&secret(), &token).await), ErrorKind::InvalidToken, "{store}");
        assert!(!settle(&SettlementSecret::new(new), &token).await.unwrap().is_repeated(), "{store}");
        assert!(token.len() < 250, "{}", token.len());
    }
    assert!(SettlementSecret::try_new([7; 31]).is_err());
    assert!(secret().try_and_previous("short").is_err());
}

#[tokio::test]
async fn a_reservation_with_a_token_changes_nothing_more_in_its_process() {
    for (store, limiter) in stores("settled-handles").await {
        let policy = day("api", 100);
        let reservation = reserve(&limiter, &policy, 10).await.or_refund();
        reservation.record(1);
        let other = reservation.clone();
        let token = reservation.into_token(&secret(), HOUR).unwrap();
        for error in [
            other.settle(3).await.unwrap_err(),
            other.extend_to(30).await.unwrap_err(),
            other.charge_more(3).await.unwrap_err(),
            other.clone().into_token(&secret(), HOUR).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{store}");
            assert!(error.to_string().contains("token"), "{store}: {error}");
        }
        // Not even the refund of the whole request changes it.
        limiter.refund(other.decision(), 10).await.unwrap();
        drop(other);
        assert_eq!(units_left(&limiter, &policy).await, 90, "{store}");
        settle(&limiter, &policy, &token, 4).await.unwrap();
        assert_eq!(units_left(&limiter, &policy).await, 96, "{store}");

        let reservation = reserve(&limiter, &policy, 10).await;
        reservation.settle(2).await.unwrap();
        let error = reservation.into_token(&secret(), HOUR).unwrap_err();
        assert_eq!(error.to_string(), "the reservation is settled, or has a token", "{store}");
        for lifetime in [Duration::ZERO, Duration::from_millis(999), 24 * 7 * HOUR + Duration::from_micros(1)]
        {
            // The failed attempt ends as a dropped handle does.
            let reservation = reserve(&limiter, &policy, 10).await.or_refund();
            assert!(reservation.into_token(&secret(), lifetime).is_err(), "{store}, {lifetime:?}");
        }
        // Redis gets the refunds in the background.
        limiter.drain(PATIENT).await.unwrap();
        assert_eq!(units_left(&limiter, &policy).await, 94, "{store}");
    }
}

/// The layer keeps a handle on the reservation, and refunds requests that do not count.
#[tokio::test]
async fn a_handler_passes_the_reservation_of_its_layer_on() {
    for (store, [here, elsewhere]) in pairs("settled-layer").await {
        let (points, counted) = (day("points", 100), day("counted", 100));
        let reserving = |policy: &Policy| Rule::new(policy.clone(), all()).cost(|_| 40).reserve_or_refund();
        let layer = RateLimitLayer::with_rules(here.clone(), reserving(&points).unit("points"))
            .rule(reserving(&counted).unit("counted").count_if(|response| response.status != StatusCode::OK));
        let service = layer.layer(service_fn(async |request: Request<String>| {
            let reservation = Reservation::from_extensions(request.extensions()).unwrap();
            let token = reservation.clone().into_token(&secret(), HOUR).unwrap();
            Ok::<_, std::convert::Infallible>(Response::new(token))
        }));
        let response = service.oneshot(Request::new(String::new())).await.unwrap();
        let token = support::inner::text(response).await;
        assert_eq!(
            (units_left(&here, &points).await, units_left(&here, &counted).await),
            (60, 60),
            "{store}"
        );
        let units = [("points", 15), ("counted", 5)];
        let policies = [points.clone(), counted.clone()];
        elsewhere.settle_token(&secret(), &token, &policies, units).await.unwrap();
        assert_eq!(
            (units_left(&here, &points).await, units_left(&here, &counted).await),
            (85, 95),
            "{store}"
        );
    }
}

#[tokio::test]
async fn what_another_process_cannot_settle_gets_no_token() {
    for (store, limiter) in stores("settled-none").await {
        let permits = Policy::concurrency("permits", 3);
        let (api, shadow) = (day("api", 100), day("shadow", 1).shadow());
        let charges = [Charge::new(&api, &all(), 10), Charge::new(&permits, &all(), 1)];
        let decision = limiter.check_all(&charges).await.unwrap();
        let error = Reservation::new(&limiter, &decision).into_token(&secret(), HOUR).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{store}");
        assert!(
            error.to_string().starts_with("a permit is released by the process that holds it"),
            "{error}"
        );
        let of_api = decision.for_policy("api").unwrap();
        let token = Reservation::new(&limiter, &of_api).into_token(&secret(), HOUR).unwrap();
        settle(&limiter, &api, &token, 0).await.unwrap();
        assert_eq!(units_left(&limiter, &api).await, 100, "{store}");

        // A denial of a shadow charges nothing, and a denied request nothing at all.
        let charges = [Charge::new(&api, &all(), 10), Charge::new(&shadow, &all(), 10)];
        let decision = limiter.check_all(&charges).await.unwrap();
        let token = Reservation::new(&limiter, &decision).into_token(&secret(), HOUR).unwrap();
        let settled = limiter.settle_token(&secret(), &token, &[api.clone(), shadow], 20).await.unwrap();
        assert_eq!(settled.rules().len(), 1, "{store}");
        assert_eq!(units_left(&limiter, &api).await, 80, "{store}");
        let denied = limiter.check(&api, &all(), 90).await.unwrap();
        let token = Reservation::new(&limiter, &denied).into_token(&secret(), HOUR).unwrap();
        assert!(settle(&limiter, &api, &token, 30).await.unwrap().rules().is_empty(), "{store}");
        assert_eq!(units_left(&limiter, &api).await, 80, "{store}");
    }
    let down = Limiter::new(Down);
    let decision = down.check(&day("api", 9), &all(), 1).await.unwrap();
    assert!(Reservation::new(&down, &decision).into_token(&secret(), HOUR).is_err());
}

#[tokio::test]
async fn an_outage_settles_nothing_and_the_repeated_call_settles() {
    let (mut server, store) = redis_store().await;
    let limiter = Limiter::new(store);
    let policy = day("api", 100);
    let token = token(&limiter, &policy, 40).await;
    let other = settings().prefix("other").connect(&server.url()).await.unwrap();
    drop(other);
    server.signal("STOP");
    let short = settings().deadline(Duration::from_millis(50)).connect_lazy(server.url()).unwrap();
    let error = settle(&Limiter::new(short), &policy, &token, 10).await.unwrap_err();
    assert!(error.to_string().ends_with("; repeat the settlement"), "{error}");
    server.signal("CONT");
    // Redis may have read the command while it was stopped.
    settle(&limiter, &policy, &token, 10).await.unwrap();
    assert_eq!(units_left(&limiter, &policy).await, 90);
    assert!(settle(&limiter, &policy, &token, 10).await.unwrap().is_repeated());

    // Made in an outage: the store does not have the charge.
    server.kill();
    let decision = limiter.check(&policy, &all(), 5).await.unwrap();
    assert!(decision.failure().is_some());
    let error = Reservation::new(&limiter, &decision).into_token(&secret(), HOUR).unwrap_err();
    assert!(error.to_string().starts_with("the reservation was made while the store failed"), "{error}");
    let error = settle(&limiter, &policy, &token, 10).await.unwrap_err();
    assert!(error.to_string().contains("`api`"), "{error}");
}

/// The refund would remove the key, which Redis allows without memory.
#[tokio::test]
async fn a_server_without_memory_settles_nothing() {
    let (server, store) = redis_store().await;
    let limiter = Limiter::new(store);
    for policy in every_algorithm(100) {
        for (estimate, units, left) in [(40, 0, 100), (10, 60, 40)] {
            let token = token(&limiter, &policy, estimate).await;
            let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
            assert_eq!(
                kind(settle(&limiter, &policy, &token, units).await),
                ErrorKind::StoreFailed,
                "{policy:?}"
            );
            let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
            assert_eq!(units_left(&limiter, &policy).await, 100 - estimate, "{policy:?}, {units}");
            assert!(!settle(&limiter, &policy, &token, units).await.unwrap().is_repeated(), "{policy:?}");
            assert_eq!(units_left(&limiter, &policy).await, left, "{policy:?}, {units}");
        }
    }
}

#[tokio::test]
async fn a_value_of_another_program_fails_the_settlement_and_is_kept() {
    let (server, store) = redis_store().await;
    let limiter = Limiter::new(store);
    for policy in every_algorithm(100) {
        for units in [0, 60] {
            let token = token(&limiter, &policy, 40).await;
            let name = limiter.operator().stored_name(&policy, &all()).unwrap();
            let () = server.command(&["RENAME", &name, "kept"]);
            let () = server.command(&["HSET", &name, "a", "b"]);
            assert_eq!(
                kind(settle(&limiter, &policy, &token, units).await),
                ErrorKind::ForeignValue,
                "{policy:?}"
            );
            let () = server.command(&["RENAME", "kept", &name]);
            assert!(!settle(&limiter, &policy, &token, units).await.unwrap().is_repeated(), "{policy:?}");
            limiter.operator().reset(&policy, &all()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_settlement_is_noted_for_twice_the_lifetime_under_a_key_that_expires() {
    let (server, store) = redis_store().await;
    let limiter = Limiter::new(store);
    let policy = day("api", 100);
    let token = token(&limiter, &policy, 40).await;
    settle(&limiter, &policy, &token, 10).await.unwrap();
    let names: Vec<String> = server.command(&["KEYS", "*settled*"]);
    let [name] = &names[..] else { panic!("there is one note: {names:?}") };
    assert!(name.starts_with("rl:%25settled.") && name.ends_with(".0:fixed-window:{all}"), "{name}");
    let left = Duration::from_millis(server.command(&["PTTL", name]));
    assert!(2 * HOUR < left && left <= 4 * HOUR + Duration::from_secs(1), "{left:?}");
}

/// The custom algorithm cannot refund. A settlement that needs no refund is still made.
#[tokio::test]
async fn a_refund_that_fails_leaves_the_token_unsettled() {
    let (_server, store) = redis_store().await;
    let limiter = Limiter::new(store);
    let lua = "
        local function decide(policy, cost, time, count)
          local used = (count or 0) + cost
          return 0, 100 - used, 1e6, 0, 0, 1e9, now, used
        end
        local function refund()
          error('RATELIMIT-ALGORITHM it refunds nothing', 0)
        end
        return { policy = function() return {} end, decide = decide, refund = refund }
    ";
    let policy = Policy::new("api", Quota::per_day(100)).algorithm(InLua::new("custom", lua));
    let token = token(&limiter, &policy, 40).await;
    for _ in 0..2 {
        let error = settle(&limiter, &policy, &token, 10).await.unwrap_err();
        assert!(error.to_string().contains("it refunds nothing"), "{error}");
    }
    assert!(!settle(&limiter, &policy, &token, 45).await.unwrap().is_repeated());
    assert!(settle(&limiter, &policy, &token, 45).await.unwrap().is_repeated());
    assert_eq!(units_left(&limiter, &policy).await, 55);
}

#[tokio::test]
async fn tokens_that_are_settled_together_expire_apart() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    for (store, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let policy = day("api", 1_000);
        for units in [11, 9] {
            let mut made = Vec::new();
            for _ in 0..2 {
                let five = [(); 5].map(|()| token(&limiter, &policy, 10));
                made.push(join_all(five).await);
                clock.advance(HOUR / 2);
            }
            let (late, early) = (&made[1], &made[0]);
            let tokens: Vec<_> = late.iter().zip(early).flat_map(|(late, early)| [late, early]).collect();
            let before = units_left(&limiter, &policy).await;
            let settled = join_all(tokens.iter().map(|token| settle(&limiter, &policy, token, units))).await;
            let settled: Vec<_> = settled.iter().map(Result::is_ok).collect();
            assert_eq!(settled, [true, false].repeat(5), "{store}, {units}");
            assert_eq!(units_left(&limiter, &policy).await, before + 50 - 5 * units, "{store}, {units}");
        }
    }
}

/// Another instance refunds what this one has spent from a lease.
#[tokio::test]
async fn units_that_were_charged_from_a_lease_are_settled() {
    let [_, (_, [here, elsewhere])] = <[_; 2]>::try_from(pairs("settled-leases").await).unwrap();
    let policy = day("api", 10_000).max_lease(1_000);
    for _ in 0..200 {
        here.check(&policy, &all(), 1).await.unwrap();
    }
    let token = token(&here, &policy, 10).await;
    here.drain(PATIENT).await.unwrap();
    assert_eq!(units_left(&here, &policy).await, 9_790);
    assert!(!settle(&elsewhere, &policy, &token, 4).await.unwrap().is_repeated());
    assert_eq!(units_left(&elsewhere, &policy).await, 9_796);
    assert!(settle(&here, &policy, &token, 4).await.unwrap().is_repeated());
    assert_eq!(units_left(&here, &policy).await, 9_796);
}

#[tokio::test]
async fn a_settlement_whose_reply_was_lost_is_repeated_without_effect() {
    let server = RedisServer::start();
    let loses = Arc::new(AtomicBool::new(false));
    let lost = loses.clone();
    // Only the reply to a settlement is a time and two records, 88 bytes: others are of checks in the background.
    let is_lost = move |reply: &[u8]| reply.starts_with(b"$88\r\n") && lost.swap(false, Ordering::SeqCst);
    let address = losing(server.port(), is_lost).await;
    let limiter = Limiter::new(settings().connect(&format!("redis://{address}")).await.unwrap());
    for (number, units) in [10, 40, 70].into_iter().enumerate() {
        let policy = day(&format!("p{number}"), 100);
        let token = token(&limiter, &policy, 40).await;
        loses.store(true, Ordering::SeqCst);
        let first = settle(&limiter, &policy, &token, units).await;
        assert!(!loses.load(Ordering::SeqCst), "the reply was lost");
        // The transport may repeat the call itself.
        assert!(
            first.as_ref().map_or_else(|error| error.kind().may_have_charged(), Settlement::is_repeated),
            "{first:?}"
        );
        assert!(settle(&limiter, &policy, &token, units).await.unwrap().is_repeated());
        assert_eq!(units_left(&limiter, &policy).await, 100 - units);
    }
}

/// Settles `tokens` in another process, which was the first to settle a number of them. It is killed after the half if
/// it `is_killed`.
async fn settles_in_a_process(address: &str, seed: u64, tokens: &str, is_killed: bool) -> u64 {
    let mut process = Command::new(env!("CARGO_BIN_EXE_settler"))
        .args([format!("redis://{address}"), seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(tokens.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut firsts = async || lines.next_line().await.unwrap().unwrap().parse().unwrap();
    let firsts_of_half = firsts().await;
    if is_killed {
        process.kill().await.unwrap();
        return firsts_of_half;
    }
    let firsts = firsts().await;
    assert!(process.wait().await.unwrap().success());
    firsts
}

/// Three processes get each token once or more, in another order, over connections that break. One of them is killed
/// and started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn each_of_many_tokens_is_settled_once_by_processes_whose_connections_break() {
    let count: u64 = std::env::var("SETTLED_TOKENS").map_or(300, |count| count.parse().unwrap());
    let server = RedisServer::start();
    let maker = Limiter::new(support::store(&server).await);
    let policies = [day("up", 1_000_000_000), day("down", 1_000_000_000)];
    let (replies, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let address = {
        let lost = lost.clone();
        let loses = move |_: &[u8]| {
            let loses = replies.fetch_add(1, Ordering::Relaxed) % 23 == 22;
            lost.fetch_add(loses.into(), Ordering::Relaxed);
            loses
        };
        losing(server.port(), loses).await
    };
    let mut tokens = String::new();
    // A second settlement would change the sum of its policy, because all of a policy are in one direction.
    let mut expected = [0, 0];
    for number in 0..count {
        let (key, place) = (Key::new(format!("client-{}", number % 7)), number as usize % 2);
        let decision = maker.check(&policies[place], &key, 100).await.unwrap();
        let token = Reservation::new(&maker, &decision).into_token(&secret(), HOUR).unwrap();
        let units = if place == 0 { 100 + number % 50 } else { 100 - number % 50 };
        expected[place] += units;
        tokens += &format!("{token} {units}\n");
    }
    let settles = |seed, is_killed| settles_in_a_process(&address, seed, &tokens, is_killed);
    let killed = async || settles(2, true).await + settles(3, false).await;
    let (one, other, restarted) = tokio::join!(settles(0, false), settles(1, false), killed());
    for (policy, expected) in policies.iter().zip(expected) {
        let mut charged = 0;
        for client in 0..7 {
            let key = Key::new(format!("client-{client}"));
            charged += 1_000_000_000 - maker.peek(policy, &key, 0).await.unwrap().remaining().unwrap();
        }
        assert_eq!(charged, expected, "{}", policy.name());
    }
    let (firsts, lost) = (one + other + restarted, lost.load(Ordering::Relaxed));
    assert!(firsts <= count && one > 0 && other > 0, "{one}, {other}, {restarted}");
    assert!(lost > 0, "connections broke");
    eprintln!("{count} tokens: {firsts} first settlements were seen, {lost} replies were lost");
}

/// Both stores settle the same tokens alike, at times that also step back.
#[tokio::test]
async fn both_stores_settle_alike_in_any_order() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let limiters = [Limiter::new(redis), Limiter::new(memory)];
    for policy in every_algorithm(500) {
        let policy = policy.max_debt(50);
        let seed = policy.name().bytes().map(u64::from).sum();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut tokens: Vec<[String; 2]> = Vec::new();
        for step in 0..250 {
            let number = random.u64(0..60);
            let seen = match random.u8(0..8) {
                0 => {
                    advance(&clock, &mut random);
                    continue;
                }
                1..=3 => {
                    let lifetime = Duration::from_secs(random.u64(1..200));
                    let [one, other] = &limiters;
                    let (one, other) =
                        (make(one, &policy, number, lifetime), make(other, &policy, number, lifetime));
                    let (one, other) = (one.await, other.await);
                    assert_eq!(one.is_some(), other.is_some(), "{policy:?}, step {step}");
                    tokens.extend(one.zip(other).map(|(one, other)| [one, other]));
                    continue;
                }
                _ if tokens.is_empty() => continue,
                _ => {
                    let place = random.usize(0..tokens.len());
                    let mut seen = Vec::new();
                    for (limiter, token) in limiters.iter().zip(&tokens[place]) {
                        let settled = settle(limiter, &policy, token, number).await;
                        let left = limiter.peek(&policy, &all(), 0).await.unwrap();
                        let seen_here = settled.map(|settled| {
                            let outcome = settled.rules()[0].outcome().clone();
                            (
                                settled.is_repeated(),
                                outcome.granted(),
                                outcome.remaining(),
                                outcome.reset_after(),
                            )
                        });
                        seen.push((
                            seen_here.map_err(|error| error.kind()),
                            left.remaining(),
                            left.outcomes()[0].reset_after(),
                        ));
                    }
                    seen
                }
            };
            assert_eq!(seen[0], seen[1], "{policy:?}, step {step}");
        }
    }
}

async fn make(limiter: &Limiter, policy: &Policy, estimate: u64, lifetime: Duration) -> Option<String> {
    let decision = limiter.check(policy, &all(), estimate).await.unwrap();
    let is_admitted = decision.is_admitted();
    let token = Reservation::new(limiter, &decision).into_token(&secret(), lifetime).unwrap();
    is_admitted.then_some(token)
}

fn advance(clock: &ManualClock, random: &mut fastrand::Rng) {
    match random.u8(0..8) {
        0 => clock.step_back(Duration::from_secs(random.u64(0..300))),
        1..=4 => clock.advance(Duration::from_secs(random.u64(0..100))),
        _ => clock.advance(Duration::from_secs(random.u64(0..40_000))),
    }
}

#[tokio::test]
async fn a_token_is_of_its_store() {
    let server = RedisServer::start();
    let redis =
        async |prefix: &str| Limiter::new(settings().prefix(prefix).connect(&server.url()).await.unwrap());
    let memory = MemoryStore::new();
    let rows = [
        ("prefixes", redis("rl").await, redis("rl").await, redis("other").await),
        (
            "stores in process",
            Limiter::new(memory.clone()),
            Limiter::new(memory),
            Limiter::new(MemoryStore::new()),
        ),
        ("kinds of stores", redis("kinds").await, redis("kinds").await, Limiter::new(MemoryStore::new())),
    ];
    let policy = Policy::new("tokens", Quota::per_day(1_000));
    for (name, limiter, same, other) in rows {
        let token = token(&limiter, &policy, 900).await;
        other.check(&policy, &all(), 500).await.unwrap();
        let error = settle(&other, &policy, &token, 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidToken, "{name}");
        assert!(error.to_string().starts_with("the settlement token is of another store"), "{error}");
        let remaining = other.peek(&policy, &all(), 1).await.unwrap().remaining();
        assert_eq!(remaining, Some(500), "{name}");
        let settled = settle(&same, &policy, &token, 100).await.unwrap();
        assert_eq!((settled.is_repeated(), settled.decision().remaining()), (false, Some(900)), "{name}");
    }
    // A reservation that charged nothing settles nothing anywhere.
    let limiter = Limiter::new(MemoryStore::new());
    let denied = limiter.check(&policy, &all(), 1_001).await.unwrap();
    let token = Reservation::new(&limiter, &denied).into_token(&secret(), HOUR).unwrap();
    assert!(settle(&redis("other").await, &policy, &token, 1).await.unwrap().rules().is_empty());
}
