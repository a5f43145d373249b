//! Each tenant has a guarantee in a pool that all share, and borrows what the others leave.

use std::{convert::Infallible, time::Duration};

use futures_util::future::join_all;
use http::{Request, Response, request::Parts};
use support::{RedisServer, on_redis, on_redis_with_clock, settings, size};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, Criticality, Decision, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore, Policy,
    PolicySource, Quota, RateLimitLayer, Reservation, Rule,
    algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket},
    decision::{Outcome, Verdict},
    policy::{Headroom, Penalty},
    settlement::SettlementSecret,
    store::ManualClock,
};

use crate::{
    each_store::guarantees::{call, pool},
    stores::{on_a_clock, stores},
};
use Criticality::Sheddable;

/// A pool of a slow tenant, whose guarantee lasts long, and a fast one. Both guarantees are full, and all of the pool but a unit is theirs.
async fn slow_and_fast(
    limiter: &Limiter,
    clock: &ManualClock,
    debt: u64,
    late: u64,
) -> (Policy, [Policy; 2]) {
    let headroom = 16 + debt + late;
    let pool = pool(Quota::per_second(11).burst(headroom + 1), headroom);
    let tenants = [Quota::per_second(1).burst(6), Quota::per_second(10).burst(10)];
    let [slow, fast] = tenants.map(|quota| Policy::new("tenant", quota));
    let tenants = [slow.max_debt(debt), fast];
    for (at, tenant) in tenants.iter().enumerate() {
        call(limiter, &pool, &Key::new("all"), tenant, at as u64, 1).await;
    }
    clock.advance(Duration::from_secs(60));
    (pool, tenants)
}

#[tokio::test]
async fn a_refund_returns_to_a_guarantee_no_more_than_to_the_pool() {
    for (name, _, on) in on_a_clock("guarantees-refund") {
        let clock = ManualClock::new();
        let limiter = on(clock.clone());
        let (pool, [slow, fast]) = slow_and_fast(&limiter, &clock, 0, 0).await;
        let all = Key::new("all");
        let first = call(&limiter, &pool, &all, &slow, 0, 6).await;
        assert!(call(&limiter, &pool, &all, &fast, 1, 10).await.is_guaranteed, "{name}");
        clock.advance(Duration::from_millis(500));
        assert!(call(&limiter, &pool, &all, &fast, 1, 5).await.is_guaranteed, "{name}");
        // The pool has drained them, and the guarantee has not.
        limiter.refund(&first.decision, 6).await.unwrap();
        let again = call(&limiter, &pool, &all, &slow, 0, 5).await;
        assert!(!again.is_guaranteed && again.decision.is_denied(), "{name}: {:?}", again.decision);
        // Nothing is refunded to a pool that was reset since.
        clock.advance(Duration::from_secs(6));
        let before = call(&limiter, &pool, &all, &slow, 0, 6).await;
        limiter.operator().reset(&pool, &all).await.unwrap();
        assert!(call(&limiter, &pool, &all, &fast, 1, 1).await.decision.is_admitted(), "{name}");
        limiter.refund(&before.decision, 6).await.unwrap();
        assert_eq!(call(&limiter, &pool, &all, &slow, 0, 0).await.credit, 0, "{name}");
        // What the pool returns, the guarantee gets.
        clock.advance(Duration::from_secs(6));
        let charged = call(&limiter, &pool, &all, &slow, 0, 6).await;
        limiter.refund(&charged.decision, 4).await.unwrap();
        assert_eq!(call(&limiter, &pool, &all, &slow, 0, 3).await.credit, 1, "{name}");
        // And all of it once the pool is full.
        clock.advance(Duration::from_secs(6));
        let charged = call(&limiter, &pool, &all, &slow, 0, 6).await;
        clock.advance(Duration::from_secs(3));
        limiter.refund(&charged.decision, 6).await.unwrap();
        assert_eq!(call(&limiter, &pool, &all, &slow, 0, 0).await.credit, 6, "{name}");
    }
}

/// Then a client that is new has as much.
#[tokio::test]
async fn a_full_guarantee_is_remembered_for_a_day() {
    let micro = Duration::from_micros(1);
    for (name, _, on) in on_a_clock("guarantees-remembered") {
        for is_empty in [false, true] {
            let clock = ManualClock::new();
            let limiter = on(clock.clone());
            let (pool, [slow, _]) = slow_and_fast(&limiter, &clock, 0, 0).await;
            let all = Key::new("all");
            let charged = call(&limiter, &pool, &all, &slow, 0, 6).await;
            assert!(charged.is_guaranteed, "{name}");
            if is_empty {
                limiter.refund(&charged.decision, 6).await.unwrap();
            } else {
                clock.advance(Duration::from_secs(6));
            }
            let credit = async || call(&limiter, &pool, &all, &slow, 0, 0).await.credit;
            clock.advance(Duration::from_secs(86_400) - micro);
            assert_eq!(credit().await, 6, "{name}");
            clock.advance(micro);
            assert_eq!(credit().await, 0, "{name}");
            // It borrows, and so counts again.
            assert!(!call(&limiter, &pool, &all, &slow, 0, 1).await.is_guaranteed, "{name}");
            clock.advance(Duration::from_secs(2));
            assert_eq!(credit().await, 2, "{name}");
        }
    }
}

/// What a decision says, apart from its marks.
fn seen(decision: &Decision) -> Vec<(String, Verdict, u64, u64, Duration)> {
    let one = |outcome: &Outcome| {
        let name = outcome.policy().name().to_owned();
        (name, outcome.verdict(), outcome.granted(), outcome.remaining(), outcome.reset_after())
    };
    decision.outcomes().iter().chain(decision.shadows()).map(one).collect()
}

/// Requests on one or two pools, some with a guarantee, in batches that share the keys of the pools.
#[tokio::test]
async fn both_stores_decide_alike_in_batches() {
    let server = RedisServer::start();
    for seed in 0..size(60, 3_000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = ManualClock::new();
        let memory = Limiter::new(MemoryStore::with_clock(clock.clone()));
        let store = settings().pool_size(1).manual_clock(clock.clone()).deny_cache(Duration::ZERO);
        let redis = Limiter::new(store.prefix(seed.to_string()).connect_lazy(server.url()).unwrap());
        let tokens = Policy::new("tokens", Quota::per_second(random.u64(1..60)).burst(random.u64(60..90)));
        let headroom = if random.bool() { Headroom::Units(50) } else { Headroom::Percent(70) };
        let tokens = tokens.headroom(Sheddable, headroom);
        let requests = Policy::new("requests", Quota::per_second(7).burst(20));
        let requests = requests.headroom(Sheddable, Headroom::Units(12));
        let tenant = Policy::new("tenant", Quota::per_second(1).burst(random.u64(1..30)));
        let tenant = tenant.max_debt(if random.u8(0..3) == 0 { random.u64(0..9) } else { 0 });
        let few = Policy::new("few", Quota::per_second(2).burst(5));
        let all = Key::new("all");
        let mut made: Vec<[Decision; 2]> = Vec::new();
        for step in 0..30 {
            let mut charges = vec![vec![Charge::new(&requests, &Key::new("first"), 0)]];
            for _ in 0..random.usize(1..10) {
                let name = Key::new(random.u8(0..3));
                let critical = if random.u8(0..8) == 0 { Criticality::CriticalPlus } else { Sheddable };
                let pool = Charge::new(&tokens, &all, random.u64(0..30)).with_criticality(critical);
                let other = Charge::new(&requests, &all, 1).with_criticality(Sheddable);
                let guarantees =
                    [pool.guarantee(&tenant, &name).unwrap(), other.guarantee(&few, &name).unwrap()];
                let [of_tokens, of_requests] = guarantees;
                let mut one = vec![pool, of_tokens, other, of_requests];
                one.truncate(random.usize(1..=4));
                random.shuffle(&mut one);
                charges.push(one);
            }
            let together = join_all(charges.iter().map(|one| redis.check_all(one))).await;
            for (one, of_redis) in charges.iter().zip(together) {
                let (of_memory, of_redis) = (memory.check_all(one).await.unwrap(), of_redis.unwrap());
                assert!(of_redis.failure().is_none(), "seed {seed}, step {step}: {of_redis:?}");
                assert_eq!(seen(&of_redis), seen(&of_memory), "seed {seed}, step {step}: {one:?}");
                made.push([of_memory, of_redis]);
            }
            if random.u8(0..20) == 0 {
                for limiter in [&memory, &redis] {
                    limiter.operator().reset(&tokens, &all).await.unwrap();
                }
            }
            if random.bool() {
                let [of_memory, of_redis] = made.swap_remove(random.usize(0..made.len()));
                let units = random.u64(1..30);
                let (of_memory, of_redis) = match random.bool() {
                    true => (memory.refund(&of_memory, units).await, redis.refund(&of_redis, units).await),
                    false => (memory.debit(&of_memory, units).await, redis.debit(&of_redis, units).await),
                };
                let (of_memory, of_redis) = (of_memory.unwrap(), of_redis.unwrap());
                assert_eq!(seen(&of_redis), seen(&of_memory), "seed {seed}, step {step}");
            }
            match random.u8(0..12) {
                0 => clock.set(clock.now().saturating_sub(Duration::from_micros(random.u64(0..3_000_000)))),
                1 => clock.advance(Duration::from_secs(random.u64(0..200_000))),
                2..6 => {}
                _ => clock.advance(Duration::from_micros(random.u64(0..2_000_000))),
            }
        }
    }
}

#[test]
fn a_guarantee_that_cannot_hold_is_an_error_that_says_what_to_write() {
    let per_second = |limit| Policy::new("tenant", Quota::per_second(limit));
    let vendor = Policy::new("vendor", Quota::per_second(10).burst(20));
    let pool = || vendor.clone().headroom(Sheddable, Headroom::Units(8));
    let slow = FixedWindow::anchored();
    let rows = [
        (pool(), per_second(5).algorithm(slow), "others lose what is left unused"),
        (vendor_of_day().algorithm(SlidingWindow::new()), per_second(5), "others lose what is left unused"),
        (
            pool(),
            per_second(5).algorithm(TokenBucket::new().refill_every(Duration::from_secs(1))),
            "without steps, start or queue",
        ),
        (pool(), per_second(5).algorithm(TokenBucket::new().starting_at(1)), "without steps, start or queue"),
        (
            vendor_of_day().algorithm(LeakyBucket::queue(Duration::from_secs(1))),
            per_second(5),
            "without steps, start or queue",
        ),
        (vendor.clone(), per_second(1), "has 1 units with its debt, and \"vendor\" keeps 0"),
        (pool(), per_second(9), "has 9 units with its debt, and \"vendor\" keeps 8"),
        (pool(), per_second(5).max_debt(4), "has 9 units with its debt, and \"vendor\" keeps 8"),
        (pool().headroom(Sheddable, Headroom::Units(20)), per_second(5), "so none can borrow"),
        (
            pool(),
            Policy::new("tenant", Quota::per_second(11).burst(1)),
            "is more than the quota of \"vendor\"",
        ),
    ];
    for (pool, tenant, expected) in rows {
        let charge = Charge::new(&pool, &Key::new("all"), 1);
        let error = charge.guarantee(&tenant, &Key::new("acme")).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let rule = Rule::new(pool, Key::new("all")).try_guarantee(tenant, Key::new("acme")).unwrap_err();
        assert_eq!(rule.to_string(), error);
    }
    let chosen = PolicySource::per_request(|_: &Parts, _: &Key| vendor_of_day());
    let error =
        Rule::new(chosen, Key::new("all")).try_guarantee(per_second(1), Key::new("acme")).unwrap_err();
    assert!(error.to_string().contains("must be one policy"), "{error}");
    // All of these can hold.
    for tenant in [per_second(8), per_second(5).max_debt(3), per_second(10).algorithm(LeakyBucket::meter())] {
        let tenant = tenant.with_quota(tenant.quota().burst(5)).unwrap();
        assert!(Rule::new(pool(), Key::new("all")).try_guarantee(tenant, Key::new("acme")).is_ok());
    }
}

fn vendor_of_day() -> Policy {
    Policy::new("vendor", Quota::per_second(10))
}

/// A denial has the shorter one of the waits for the guarantee and for the pool.
#[tokio::test]
async fn a_borrower_waits_for_its_guarantee_or_for_the_pool() {
    for (name, _, on) in on_a_clock("guarantees-wait") {
        for (per_minute, wait) in [(12, 5), (1, 11)] {
            let clock = ManualClock::new();
            let limiter = on(clock.clone());
            let pool = pool(Quota::per_minute(60).burst(20), 10);
            let tenant = Policy::new("tenant", Quota::per_minute(per_minute).burst(5));
            let key = Key::new(per_minute);
            let all = Charge::new(&pool, &key, 20);
            assert!(limiter.check_all(&[all]).await.unwrap().is_admitted(), "{name}");
            let denied = call(&limiter, &pool, &key, &tenant, 0, 1).await.decision;
            let wait = Duration::from_secs(wait);
            assert_eq!(denied.retry_after(), Some(wait), "{name}: {per_minute}");
            // More than the pool leaves and the guarantee has.
            let large = call(&limiter, &pool, &key, &tenant, 0, 11).await.decision;
            assert_eq!((large.is_denied(), large.retry_after()), (true, None), "{name}");
            for (later, is_admitted) in [(wait - MICRO, false), (MICRO, true)] {
                clock.advance(later);
                let decision = call(&limiter, &pool, &key, &tenant, 0, 1).await.decision;
                assert_eq!(decision.is_admitted(), is_admitted, "{name}: {decision:?}");
            }
        }
    }
}

const MICRO: Duration = Duration::from_micros(1);

/// A client reads what remains for it: what others leave beside the headroom, or its guarantee.
#[tokio::test]
async fn what_remains_is_the_more_of_what_can_be_borrowed_and_of_the_guarantee() {
    for (name, _, on) in on_a_clock("guarantees-remaining") {
        let clock = ManualClock::new();
        let limiter = on(clock.clone());
        let pool = pool(Quota::per_minute(60).burst(20), 10);
        let (key, tenant) = (Key::new("all"), Policy::new("tenant", Quota::per_minute(6).burst(6)));
        let remaining =
            async |name, cost| call(&limiter, &pool, &key, &tenant, name, cost).await.decision.remaining();
        // New ones have no credit.
        assert_eq!([remaining(0, 1).await, remaining(1, 9).await], [Some(9), Some(0)], "{name}");
        clock.advance(Duration::from_secs(30));
        assert_eq!(remaining(0, 1).await, Some(9), "{name}");
        assert_eq!(remaining(1, 9).await, Some(3), "{name}: its guarantee");
        assert_eq!([remaining(0, 1).await, remaining(0, 1).await], [Some(1), Some(0)], "{name}");
        // To the last unit of the pool.
        clock.advance(Duration::from_secs(60));
        let critical = limiter.check(&pool, &key, 14).await.unwrap();
        assert_eq!(critical.remaining(), Some(6), "{name}");
        assert_eq!(remaining(1, 6).await, Some(0), "{name}");
    }
}

/// The log of denials has the tenant, and the pool in whose name it was denied.
#[tokio::test]
async fn a_denial_of_a_pool_is_logged_with_its_client() {
    let limiter = Limiter::new(MemoryStore::new());
    let log = limiter.record_denials();
    let pool = pool(Quota::per_hour(4), 3);
    let (all, tenant) = (Key::new("all"), Policy::new("tenant", Quota::per_hour(3)));
    let first = call(&limiter, &pool, &all, &tenant, 7, 1).await.decision;
    assert_eq!(first.borrowed().count(), 1);
    assert_eq!(log.recent().len(), 0);
    let denied = call(&limiter, &pool, &all, &tenant, 7, 1).await.decision;
    assert_eq!((denied.is_shed(), denied.borrowed().count()), (true, 0));
    let mut seen: Vec<(String, String)> = Vec::new();
    for denials in log.recent() {
        seen.push((denials.policy.name().to_owned(), denials.key.as_str().to_owned()));
    }
    seen.sort();
    assert_eq!(seen, [("pool".into(), "all".into()), ("tenant".into(), "%(all%|7%)".into())]);
}

/// Another process settles the pool. It has no guarantee, which is refunded only together with its pool.
#[tokio::test]
async fn a_token_settles_the_pool() {
    let secret = SettlementSecret::new([7; 32]);
    for (name, limiter) in stores("guarantees-token").await {
        let pool = pool(Quota::per_hour(20), 10);
        let (all, tenant) = (Key::new("all"), Policy::new("tenant", Quota::per_hour(5)));
        let decision = call(&limiter, &pool, &all, &tenant, 0, 8).await.decision;
        let token = Reservation::new(&limiter, &decision).into_token(&secret, HOUR).unwrap();
        let settled = limiter.settle_token(&secret, &token, std::slice::from_ref(&pool), 3).await.unwrap();
        assert_eq!(settled.rules().len(), 1, "{name}");
        assert_eq!(limiter.peek(&pool, &all, 0).await.unwrap().remaining(), Some(17), "{name}");
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// One of two pools with different keys, and one of two charges with different costs.
#[tokio::test]
async fn a_guarantee_is_of_one_pool_and_of_at_most_its_units() {
    for (name, _, on) in on_a_clock("guarantees-pairs") {
        let clock = ManualClock::new();
        let limiter = on(clock.clone());
        let pool = pool(Quota::per_hour(20), 10);
        let (tenant, acme) = (Policy::new("tenant", Quota::per_hour(8)), Key::new("acme"));
        let of = |key: &str, cost| Charge::new(&pool, &Key::new(key), cost).with_criticality(Sheddable);
        let guarantee = |cost| of("us", cost).guarantee(&tenant, &acme).unwrap();
        limiter.check_all(&[of("us", 1), guarantee(1)]).await.unwrap();
        clock.advance(HOUR);
        for key in ["eu", "us"] {
            assert!(limiter.check(&pool, &Key::new(key), 15).await.unwrap().is_admitted(), "{name}");
        }
        let denied = async |charges: &[Charge]| {
            let decision = limiter.check_all(charges).await.unwrap();
            assert!(decision.is_denied(), "{name}");
            decision.outcomes().iter().map(|one| one.verdict().is_denied()).collect::<Vec<_>>()
        };
        assert_eq!(denied(&[of("eu", 3), of("us", 3), guarantee(3)]).await, [true, false], "{name}");
        assert_eq!(denied(&[of("us", 3), guarantee(2)]).await, [true], "{name}");
        assert!(limiter.check_all(&[of("us", 3), guarantee(3)]).await.unwrap().is_admitted(), "{name}");
    }
}

/// What else decides over the request: a ban of the pool, a shadow, and a rule that lets it go on.
#[tokio::test]
async fn a_pool_that_bans_or_denies_nothing_lends_nothing() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let (all, tenant) = (Key::new("all"), Policy::new("tenant", Quota::per_hour(3)));
    let banning = pool(Quota::per_hour(20), 10).penalty(Penalty::manual());
    limiter.operator().ban(&banning, &all, HOUR).await.unwrap();
    let banned = call(&limiter, &banning, &all, &tenant, 0, 1).await.decision;
    assert_eq!((banned.retry_after(), banned.remaining()), (Some(HOUR), Some(0)), "not the wait for a unit");

    let pool = pool(Quota::per_hour(4), 3);
    let charge = Charge::new(&pool, &Key::new("other"), 1).with_criticality(Sheddable).or_degrade();
    let both = [charge.guarantee(&tenant, &Key::new("acme")).unwrap(), charge];
    let borrowed = limiter.check_all(&both).await.unwrap();
    assert_eq!((borrowed.borrowed().count(), borrowed.degraded().count()), (1, 0));
    let degraded = limiter.check_all(&both).await.unwrap();
    assert_eq!((degraded.borrowed().count(), degraded.degraded().count()), (0, 1));
}

#[tokio::test]
async fn an_outage_decides_each_charge_as_its_own_and_a_shadow_of_a_closed_pool_denies_nothing() {
    let server = RedisServer::start();
    let store = settings().deadline(Duration::from_millis(50)).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store);
    server.signal("STOP");
    let local = FailureMode::Local { instances: 1 };
    let of = |pool: Policy| Charge::new(&pool, &Key::new("all"), 1).with_criticality(Sheddable);
    let tenant = Policy::new("tenant", Quota::per_hour(3));
    let charge = of(pool(Quota::per_hour(20), 10).failure_mode(local));
    let guarantee = charge.guarantee(&tenant, &Key::new("acme")).unwrap();
    let extra = Charge::new(&Policy::new("extra", Quota::per_hour(9)).failure_mode(local), &Key::new("x"), 1);
    let decision = limiter.check_all(&[extra.or_degrade(), charge, guarantee]).await.unwrap();
    assert!(decision.failure().is_some() && decision.is_admitted(), "{decision:?}");
    assert_eq!((decision.degraded().count(), decision.borrowed().count()), (0, 1), "{decision:?}");

    let closed = pool(Quota::per_hour(20), 10).failure_mode(FailureMode::Closed);
    for charge in [of(closed.clone().shadow()), of(closed).or_degrade()] {
        let guarantee = charge.guarantee(&tenant, &Key::new("acme")).unwrap();
        let decision = limiter.check_all(&[charge, guarantee]).await.unwrap();
        assert!(decision.is_admitted(), "{decision:?}");
    }
    server.signal("CONT");
}

fn get(tenant: Option<&str>) -> Request<String> {
    let request = Request::get("/");
    let request = tenant.map_or_else(Request::builder, |tenant| request.header("x-tenant", tenant));
    request.body(String::new()).unwrap()
}

/// The shard of a Cluster is that of the pool's key, which is stored as it is.
#[tokio::test]
async fn a_client_whose_key_is_long_is_stored_with_its_pool() {
    let (server, limiter) = on_redis().await;
    let tenant = Policy::new("tenant", Quota::per_hour(5));
    let rule = Rule::new(pool(Quota::per_hour(20), 10), Key::new("all"));
    let layer =
        RateLimitLayer::with_rules(limiter.clone(), rule.guarantee(tenant.clone(), Header::new("x-tenant")));
    let service =
        layer.layer(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
    let long = "x".repeat(95);
    assert_eq!(service.oneshot(get(Some(&long))).await.unwrap().status(), 200);
    let charge = Charge::new(&pool(Quota::per_hour(20), 10), &Key::new("all"), 1);
    let key = charge.guarantee(&tenant, &Key::new(&*long)).unwrap().key().clone();
    let keys: Vec<String> = server.command(&["KEYS", "*guarantee*"]);
    assert_eq!(keys, [format!("rl:tenant%@pool:guarantee:{{{}}}", key.as_str())]);
    assert!(key.as_str().starts_with("%(all%|%#"), "{}", key.as_str());
}

/// A pool that is lowered while the service runs, plans that are chosen per request, and requests without a tenant.
#[tokio::test]
async fn a_layer_charges_a_pool_for_known_tenants_at_any_quota() {
    let full = pool(Quota::per_hour(20), 10);
    let (changed, watched) = tokio::sync::watch::channel(full.clone());
    let plan = PolicySource::per_request(|_: &Parts, key: &Key| {
        let name = key.identity().unwrap();
        (name.as_ref() != "guest").then(|| Policy::new("tenant", Quota::per_hour(9)))
    });
    let rule = Rule::new(PolicySource::watched(watched), Key::new("all"));
    let rule = rule.guarantee(plan, Header::new("x-tenant").hashed([1; 32]));
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule);
    let service =
        layer.layer(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
    let status = async |request| service.clone().oneshot(request).await.unwrap().status().as_u16();
    assert_eq!([status(get(Some("acme"))).await, status(get(Some("guest"))).await], [200, 200]);
    assert_eq!(status(get(None)).await, 400);
    assert_eq!(limiter.peek(&full, &Key::new("all"), 0).await.unwrap().remaining(), Some(18));
    let preflight =
        Request::options("/").header("origin", "x").header("access-control-request-method", "GET");
    assert_eq!(status(preflight.header("x-tenant", "acme").body(String::new()).unwrap()).await, 200);
    // Less than what is guaranteed, and than the headroom.
    changed.send(full.with_quota(Quota::per_hour(5)).unwrap()).unwrap();
    assert_eq!(status(get(Some("acme"))).await, 429);
}

/// Redis keeps the key of a client that goes on asking.
#[tokio::test]
async fn the_ttl_of_a_guarantee_is_renewed() {
    let (server, clock, limiter) = on_redis_with_clock().await;
    let (pool, [slow, _]) = slow_and_fast(&limiter, &clock, 0, 0).await;
    let (all, hour) = (Key::new("all"), Duration::from_secs(3_600));
    let ends = || {
        let state: Vec<u8> = server.command(&["GET", "rl:tenant%@pool:guarantee:{%(all%|0%)}"]);
        Duration::from_micros(f64::from_le_bytes(state[17..25].try_into().unwrap()) as u64)
    };
    for hours in [20, 20, 20, 20] {
        clock.advance(hours * hour);
        let before = ends();
        assert!(call(&limiter, &pool, &all, &slow, 0, 2).await.is_guaranteed);
        // A second for each unit, and a day.
        let needed = Duration::from_secs(2 + 86_400);
        let expected = if clock.now() + needed <= before { before } else { clock.now() + 2 * needed };
        assert_eq!(ends(), expected);
    }
}

/// In one call, where keys without a state are decided alike otherwise.
#[tokio::test]
async fn new_pools_are_decided_each_with_its_guarantee() {
    let (_server, clock, limiter) = on_redis_with_clock().await;
    let pool = pool(Quota::per_hour(21), 11);
    let tenant = Policy::new("tenant", Quota::per_hour(11));
    let keys = ["eu", "us", "ap"].map(Key::new);
    let charges = keys.each_ref().map(|key| {
        let charge = Charge::new(&pool, key, 11).with_criticality(Sheddable);
        [charge.guarantee(&tenant, &Key::new("acme")).unwrap(), charge]
    });
    // More than can be borrowed. It counts from now on.
    for charges in &charges {
        assert!(limiter.check_all(charges).await.unwrap().is_denied());
    }
    clock.advance(HOUR);
    // The one in between uses its guarantee.
    assert!(limiter.check_all(&charges[1]).await.unwrap().is_admitted());
    for key in &keys {
        limiter.operator().reset(&pool, key).await.unwrap();
    }
    // The first call is sent alone.
    let (_, decided) = tokio::join!(
        limiter.check(&pool, &Key::new("first"), 1),
        join_all(charges.iter().map(|charges| limiter.check_all(charges)))
    );
    let admitted: Vec<_> = decided.into_iter().map(|one| one.unwrap().is_admitted()).collect();
    assert_eq!(admitted, [true, false, true]);
}

/// What a handler settles is settled for the pool and the guarantee.
#[tokio::test]
async fn a_reservation_is_settled_for_both() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let pool = pool(Quota::per_hour(60), 20);
    let tenant = Policy::new("tenant", Quota::per_hour(10)).max_debt(10);
    let rule = Rule::new(pool.clone(), Key::new("all")).cost(|_| 8).unit("tokens").reserve();
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule.guarantee(tenant.clone(), Key::new("acme")));
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let used: u64 = request.body().parse().unwrap();
        let reservation = Reservation::from_extensions(request.extensions()).unwrap().clone();
        reservation.settle(used).await.unwrap();
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let ask =
        async |used: &str| service.clone().oneshot(Request::new(used.to_owned())).await.unwrap().status();
    let left = async || {
        let charge = Charge::new(&pool, &Key::new("all"), 0).with_criticality(Sheddable);
        let guarantee = charge.guarantee(&tenant, &Key::new("acme")).unwrap();
        let owed = limiter.operator().owed(guarantee.policy(), guarantee.key()).await.unwrap();
        let decision = limiter.peek_all(&[charge, guarantee]).await.unwrap();
        (60 - decision.outcomes()[0].used(), decision.shadows()[0].remaining(), owed)
    };
    // It starts in debt, and borrows.
    assert_eq!(ask("3").await, 200);
    assert_eq!(left().await, (57, 0, 10));
    clock.advance(HOUR * 2);
    assert_eq!(left().await, (60, 10, 0));
    assert_eq!(ask("3").await, 200);
    assert_eq!(left().await, (57, 7, 0));
    clock.advance(HOUR);
    assert_eq!(ask("9").await, 200);
    assert_eq!(left().await, (51, 1, 0));
}
