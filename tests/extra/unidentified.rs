//! A client that one rule cannot identify is charged under the others, so guesses are limited.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{Request, request::Parts};
use support::{
    PATIENT, RedisServer, day, eventually,
    inner::{ask, ask_and_read},
    memory_and_redis,
    script::{self, check},
    settings,
};
use tokio::sync::watch;
use tower_ratelimit::{
    Answer, Decision, Error, ErrorKind, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore,
    PeerIp, Policy, PolicySource, Quota, RateLimitLayer, Rule,
    algorithm::Concurrency,
    key::from_extension,
    layer::{DecisionEvent, DecisionKind, Rules},
    policy::{Enforcement, Penalty},
    store::ManualClock,
};
use tower_ratelimit_extra::lookup::Lookup;

const LIMIT: u64 = 15;

fn per_ip() -> Rule {
    Rule::new(day("per-ip", LIMIT), PeerIp::new())
}

fn unknown() -> Error {
    Error::new(ErrorKind::UnknownIdentity, "no account has this API key")
}

/// Accounts in a database, which counts its queries.
fn accounts() -> (Lookup<String, u64>, Arc<AtomicUsize>) {
    let queries = Arc::new(AtomicUsize::new(0));
    let lookup = Lookup::new({
        let queries = queries.clone();
        move |api_key: String| {
            queries.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                if api_key == "k-ann" { Ok(7) } else { Err(unknown()) }
            }
        }
    });
    (lookup, queries)
}

/// A limit on accounts, which are looked up by the API key.
fn per_account(accounts: &Lookup<String, u64>) -> Rule {
    let accounts = accounts.clone();
    let account = Header::new("x-api-key").map(move |key| accounts.get(key).map(Key::from));
    Rule::new(day("account", 100), account)
}

fn request(api_key: Option<&str>) -> Request<String> {
    let header = api_key.map(|api_key| format!("x-api-key={api_key}"));
    script::request(&format!("/api from=203.0.113.7 {}", header.unwrap_or_default()))
}

/// Requests with API keys of no account.
fn guesses(count: usize) -> impl Iterator<Item = Request<String>> {
    (0..count).map(|guess| request(Some(&format!("guess-{guess}"))))
}

/// A layer that has denied an address, whose key another instance then resets.
struct Reset {
    server: RedisServer,
    here: Limiter,
    there: Limiter,
    policy: Policy,
    layer: RateLimitLayer,
    queries: Arc<AtomicUsize>,
}

async fn reset_elsewhere() -> Reset {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let connect = async || settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let (here, there) = (Limiter::new(connect().await), Limiter::new(connect().await));
    let policy = day("per-ip", 6).penalty(Penalty::after(50, Duration::from_secs(3_600)));
    let (lookup, queries) = accounts();
    let address = Rule::new(policy.clone(), PeerIp::new()).cost(|_| 2);
    let layer = RateLimitLayer::with_rules(here.clone(), address).rule(per_account(&lookup));
    assert_eq!(statuses(&layer, guesses(5)).await, [(401, 3), (429, 2)]);
    there.operator().reset(&policy, &Key::new("203.0.113.7")).await.unwrap();
    clock.advance(Duration::from_micros(1));
    Reset { server, here, there, policy, layer, queries }
}

/// How often each status was answered.
async fn statuses(
    layer: &RateLimitLayer,
    requests: impl Iterator<Item = Request<String>>,
) -> Vec<(u16, usize)> {
    let mut seen: Vec<(u16, usize)> = Vec::new();
    for request in requests {
        let status = ask(layer, request).await.status().as_u16();
        match seen.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => seen.push((status, 1)),
        }
    }
    seen
}

#[tokio::test]
async fn every_fault_of_a_client_is_charged_and_answered_with_the_headers_of_its_charge() {
    let (lookup, _) = accounts();
    let policy_later = PolicySource::per_request(|_: &Parts, key: &Key| {
        let api_key = key.identity().unwrap_or_default().into_owned();
        Answer::pending(async move {
            tokio::task::yield_now().await;
            if api_key == "k-ann" { Ok(day("tier", 100)) } else { Err(unknown()) }
        })
    });
    let policy_now = PolicySource::per_request(|_: &Parts, _: &Key| Err::<Policy, _>(unknown()));
    let api_key = || Header::new("x-api-key");
    let rows: Vec<(&str, Rule, Option<&str>, u16)> = vec![
        ("missing", Rule::new(day("api", 100), api_key()), None, 400),
        ("empty", Rule::new(day("api", 100), api_key()), Some(""), 400),
        ("looked up, unknown", per_account(&lookup), Some("guess"), 401),
        ("looked up, missing", per_account(&lookup), None, 400),
        ("policy, later", Rule::new(policy_later, api_key()), Some("guess"), 401),
        ("policy, now", Rule::new(policy_now, api_key()), Some("guess"), 401),
    ];
    for (name, rule, key, status) in rows {
        for first in [true, false] {
            let store = MemoryStore::with_clock(ManualClock::new());
            let mut rules = [per_ip(), rule.clone()].map(|rule| rule.count_if(|_| false));
            if !first {
                rules.reverse();
            }
            let [one, other] = rules;
            let layer = RateLimitLayer::with_rules(store, one).rule(other);
            for used in 1..=LIMIT {
                let response = ask(&layer, request(key)).await;
                assert_eq!(response.status(), status, "{name}");
                // `count_if` does not see it, and would refund it.
                let line = response.headers()["ratelimit"].to_str().unwrap().to_owned();
                assert!(line.starts_with(&format!("\"per-ip\";r={}", LIMIT - used)), "{name}: {line}");
                assert_eq!(response.headers()["cache-control"], "no-store", "{name}");
            }
            let denied = ask(&layer, request(key)).await;
            assert_eq!(denied.status(), 429, "{name}");
            assert!(denied.headers().contains_key("retry-after"), "{name}");
        }
    }
}

#[tokio::test]
async fn a_failure_of_the_server_charges_nothing_and_stays_500() {
    let failing =
        |_: &Parts| Err::<Key, _>(Error::new(ErrorKind::IdentityUnavailable, "the database is down"));
    let later = |_: &Parts| {
        Answer::<Key>::pending(async {
            tokio::task::yield_now().await;
            Err(Error::new(ErrorKind::IdentityUnavailable, "the database is down"))
        })
    };
    let rows = [
        ("setup", Rule::new(day("user", 9), from_extension(|user: &u64| *user))),
        ("identity unavailable", Rule::new(day("user", 9), failing)),
        ("identity unavailable, later", Rule::new(day("user", 9), later)),
    ];
    for (name, rule) in rows {
        let limiter = Limiter::new(MemoryStore::new());
        let layer = RateLimitLayer::with_rules(limiter.clone(), per_ip()).rule(rule);
        // A client's fault beside it changes nothing.
        let layer = layer.rule(Rule::new(day("api", 9), Header::new("x-api-key")));
        assert_eq!(statuses(&layer, (0..20).map(|_| request(None))).await, [(500, 20)], "{name}");
        let left = limiter.peek(&day("per-ip", LIMIT), &Key::new("203.0.113.7"), 0).await.unwrap();
        assert_eq!(left.remaining(), Some(LIMIT), "{name}");
    }
}

#[tokio::test]
async fn a_layer_that_only_reports_admits_it_and_shows_the_decision() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), per_ip())
        .rule(Rule::new(day("api", 9), Header::new("x-api-key")))
        .enforcement(Enforcement::ReportOnly)
        .on_decision(move |event: &DecisionEvent<'_>| {
            let policy = event.policy().map(String::from);
            log.lock().unwrap().push((event.kind, event.is_rejected, policy));
        });
    for _ in 0..LIMIT {
        let response = ask_and_read(&layer, request(None)).await;
        assert_eq!(response.status(), 200);
        assert!(response.extensions().get::<Decision>().unwrap().is_admitted());
    }
    let marked = ask(&layer, request(None)).await;
    assert_eq!(marked.status(), 200);
    assert_eq!(marked.headers()["x-ratelimit-exceeded"], "\"per-ip\"");
    let seen = seen.lock().unwrap();
    let policy = Some(String::from("per-ip"));
    assert_eq!(seen[0], (DecisionKind::Unidentified, false, policy.clone()));
    assert_eq!(seen[LIMIT as usize], (DecisionKind::Denied, false, policy));
}

#[tokio::test]
async fn denials_without_a_lookup_count_for_a_ban() {
    let server = RedisServer::start();
    for (name, limiter) in memory_and_redis(&server).await {
        let (lookup, queries) = accounts();
        let strict = day("per-ip", 2).penalty(Penalty::after(3, Duration::from_secs(3_600)));
        let layer = RateLimitLayer::with_rules(limiter, Rule::new(strict, PeerIp::new()));
        let layer = layer.rule(per_account(&lookup));
        let mut seen = Vec::new();
        for guess in 0..8 {
            let response = ask_and_read(&layer, request(Some(&format!("{name}-{guess}")))).await;
            let decision = response.extensions().get::<Decision>();
            seen.push((response.status().as_u16(), decision.is_some_and(|one| one.banned_for().is_some())));
        }
        let (unknown, denied, banned) = ((401, false), (429, false), (429, true));
        assert_eq!(seen, [unknown, unknown, denied, denied, banned, banned, banned, banned], "{name}");
        // The first denial comes from Redis.
        let queries = queries.load(Ordering::SeqCst);
        assert_eq!(queries, if name == "memory" { 2 } else { 3 }, "{name}");
    }
}

/// Also under policies and rules whose denials the store must count or compute.
#[tokio::test]
async fn a_denied_address_causes_no_lookups_under_any_rule() {
    let server = RedisServer::start();
    let hour = Duration::from_secs(3_600);
    let penalty = || day("per-ip", LIMIT).penalty(Penalty::after(50, hour).ban(24 * hour));
    let rule = |policy: Policy| Rule::new(policy, PeerIp::new());
    // The time between the guesses: in all less than the wait for a unit, and longer than a denial holds without asking Redis.
    let apart = Duration::from_millis(100);
    let rows: Vec<(&str, Rule, u64, bool, Duration)> = vec![
        ("plain", per_ip(), LIMIT, false, apart),
        ("while a denial holds", per_ip(), LIMIT, false, Duration::ZERO),
        ("penalty", rule(penalty()), LIMIT, true, apart),
        ("cost", per_ip().cost(|_| 2), LIMIT / 2, false, apart),
        ("cost and penalty", rule(penalty()).cost(|_| 2), LIMIT / 2, true, apart),
        ("cost above the capacity", per_ip().cost(|_| LIMIT + 1), 0, false, apart),
        ("network", per_ip().skip_if(|_| false), LIMIT, false, apart),
    ];
    for in_redis in [false, true] {
        for (name, rule, admitted, bans, apart) in &rows {
            for order in ["first", "last", "a route, first", "a route, last"] {
                let name = format!("{name}, {order}, in Redis: {in_redis}");
                let clock = ManualClock::new();
                let limiter = if in_redis {
                    server.command::<String>(&["FLUSHALL"]);
                    Limiter::new(settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap())
                } else {
                    Limiter::new(MemoryStore::with_clock(clock.clone()))
                };
                let (lookup, queries) = accounts();
                let rules = match order {
                    "first" => Rules::new().always(rule.clone()).always(per_account(&lookup)),
                    "last" => Rules::new().always(per_account(&lookup)).always(rule.clone()),
                    "a route, first" => Rules::new().always(rule.clone()).route("/api", per_account(&lookup)),
                    _ => Rules::new().route("/api", per_account(&lookup)).always(rule.clone()),
                };
                let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
                let mut seen = Vec::new();
                let mut is_banned = false;
                for request in guesses(100) {
                    let response = ask_and_read(&layer, request).await;
                    seen.push(response.status().as_u16());
                    let decision = response.extensions().get::<Decision>();
                    is_banned |= decision.is_some_and(|decision| decision.banned_for().is_some());
                    clock.advance(*apart);
                }
                let admitted = *admitted as usize;
                assert_eq!(seen[..admitted], vec![401; admitted], "{name}");
                assert_eq!(seen[admitted..], vec![429; 100 - admitted], "{name}");
                // Each of the denials counts.
                assert_eq!(is_banned, *bans, "{name}");
                // Redis tells this process of the first one.
                assert_eq!(queries.load(Ordering::SeqCst), admitted + usize::from(in_redis), "{name}");
                // The right key from that address is denied, too, and from another it is not.
                let other = if admitted == 0 { 429 } else { 200 };
                let script = format!(
                    "/api from=203.0.113.7 x-api-key=k-ann 429; /api from=203.0.113.8 x-api-key=k-ann {other}"
                );
                check(&name, &layer, &script).await;
            }
        }
    }
}

#[tokio::test]
async fn a_denied_address_causes_no_lookups_in_a_layer_with_a_blocklist() {
    let (lookup, queries) = accounts();
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), per_ip())
        .rule(per_account(&lookup))
        .block_if(Header::new("x-api-key").any_of(["k-bob"]));
    let admitted = LIMIT as usize;
    assert_eq!(statuses(&layer, guesses(40)).await, [(401, admitted), (429, 40 - admitted)]);
    assert_eq!(queries.load(Ordering::SeqCst), admitted);
}

/// Denials that Redis must count or compute need a call, and no others do.
#[tokio::test]
async fn a_denied_request_is_at_most_one_call_to_redis() {
    let server = RedisServer::start();
    let penalty = Penalty::after(1_000, Duration::from_secs(3_600));
    for (name, rule, expected) in [
        ("plain", Rule::new(day("plain", 1), PeerIp::new()), 0),
        ("penalty", Rule::new(day("penalty", 1).penalty(penalty), PeerIp::new()), 20),
        ("cost", Rule::new(day("cost", 1), PeerIp::new()).cost(|_| 2), 20),
    ] {
        let store = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
        let (lookup, _) = accounts();
        let layer = RateLimitLayer::with_rules(store, rule).rule(per_account(&lookup));
        statuses(&layer, guesses(3)).await;
        let before = server.script_calls();
        assert_eq!(statuses(&layer, guesses(20)).await, [(429, 20)], "{name}");
        assert_eq!(server.script_calls() - before, expected, "{name}");
    }
}

/// Another instance has reset the key, so Redis admits what this process takes for denied.
#[tokio::test]
async fn an_address_that_is_no_longer_denied_is_charged_once() {
    let reset = reset_elsewhere().await;
    let Reset { layer, there, policy, .. } = &reset;
    for left in [4, 2, 0] {
        assert_eq!(ask(layer, request(Some("k-ann"))).await.status(), 200);
        let remaining = there.peek(policy, &Key::new("203.0.113.7"), 0).await.unwrap().remaining();
        assert_eq!(remaining, Some(left));
    }
    assert_eq!(ask(layer, request(Some("k-ann"))).await.status(), 429);
}

/// Redis decides about the address alone, and has not answered when the client leaves.
#[tokio::test]
async fn a_request_that_is_cancelled_before_its_account_is_looked_up_is_not_charged() {
    let Reset { server, here, there, policy, layer, queries } = reset_elsewhere().await;
    let before = queries.load(Ordering::SeqCst);
    server.signal("STOP");
    let mut cancelled = Box::pin(ask(&layer, request(Some("k-ann"))));
    assert!((&mut cancelled).now_or_never().is_none());
    // Its lane and its connection are tasks of this thread.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(cancelled);
    server.signal("CONT");
    here.drain(PATIENT).await.unwrap();
    assert_eq!(queries.load(Ordering::SeqCst), before);
    let left = async || there.peek(&policy, &Key::new("203.0.113.7"), 0).await.unwrap().remaining();
    assert!(eventually(async || left().await == Some(6)).await, "{:?} left", left().await);
}

/// A permit may be released at any moment, so a request without one is denied after the lookup.
#[tokio::test]
async fn a_permit_that_is_released_before_the_account_is_looked_up_admits_the_request() {
    let slots = Policy::concurrency("slots", 1);
    let limiter = Limiter::new(MemoryStore::new());
    let (lookup, queries) = accounts();
    let layer = RateLimitLayer::with_rules(limiter.clone(), Rule::new(slots.clone(), PeerIp::new()))
        .rule(per_account(&lookup));
    let key = Key::new("203.0.113.7");
    let held = limiter.check(&slots, &key, 1).await.unwrap();
    let mut asked = Box::pin(ask(&layer, request(Some("k-ann"))));
    assert!((&mut asked).now_or_never().is_none());
    drop(held);
    let is_free = async || limiter.peek(&slots, &key, 0).await.unwrap().remaining() == Some(1);
    assert!(eventually(is_free).await);
    assert_eq!(asked.await.status(), 200);
    assert_eq!(queries.load(Ordering::SeqCst), 1);
}

/// Otherwise the mistake would show only while no limit is reached.
#[tokio::test]
async fn a_mistake_in_the_charges_is_an_error_even_if_a_client_is_denied_under_one_of_them() {
    let denied = || day("denied", 1);
    // Policies that are watched may get one name after the table was made.
    let same_name = watch::channel(day("other", 1));
    let others = |count: usize| (0..count).map(|number| day(&format!("policy-{number}"), 9).into()).collect();
    let rows: [(&str, Vec<PolicySource>, u16, usize); 4] = [
        ("one charge", others(0), 429, 0),
        ("one key twice", vec![PolicySource::watched(same_name.1)], 500, 1),
        ("the most charges of a decision", others(255), 429, 0),
        ("more charges", others(256), 500, 1),
    ];
    for (name, others, status, queried) in rows {
        same_name.0.send_replace(day("other", 1));
        let limiter = Limiter::new(MemoryStore::new());
        limiter.check(&denied(), &Key::new("203.0.113.7"), 1).await.unwrap();
        let (lookup, queries) = accounts();
        let rules = Rules::from(Rule::new(denied(), PeerIp::new())).always(per_account(&lookup));
        let rules =
            others.into_iter().map(|policy| Rule::new(policy, PeerIp::new())).fold(rules, Rules::always);
        let layer = RateLimitLayer::with_rules(limiter, rules);
        same_name.0.send_replace(denied());
        assert_eq!(ask(&layer, request(Some("guess"))).await.status(), status, "{name}");
        assert_eq!(queries.load(Ordering::SeqCst), queried, "{name}");
    }
}

#[tokio::test]
async fn a_permit_of_a_rejected_request_is_released_and_a_closed_store_answers_503() {
    let slots = Policy::new("slots", Quota::per_second(1)).algorithm(Concurrency::new());
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), Rule::new(slots, PeerIp::new()))
        .rule(Rule::new(day("api", 9), Header::new("x-api-key")));
    let mut kept = Vec::new();
    for _ in 0..3 {
        let response = ask(&layer, request(None)).await;
        assert_eq!(response.status(), 400);
        kept.push(response);
    }
    let closed = day("per-ip", LIMIT).failure_mode(FailureMode::Closed);
    let layer = RateLimitLayer::with_rules(support::Down, Rule::new(closed, PeerIp::new()))
        .rule(Rule::new(day("api", 9), Header::new("x-api-key")));
    assert_eq!(ask(&layer, request(None)).await.status(), 503);
}

#[test]
fn a_lookup_whose_guesses_nothing_limits_is_a_warning() {
    let (lookup, _) = accounts();
    let account = || per_account(&lookup);
    let tier = || {
        let tiers = PolicySource::per_request(|_: &Parts, _: &Key| Answer::ready(Ok(day("tier", 9))));
        Rule::new(tiers.or_on_error(day("fallback", 9)), Header::new("x-api-key").or(PeerIp::new()))
    };
    let without = Rule::new(day("api", 9), Header::new("x-api-key"));
    let on = |route| Rules::new().route(route, account());
    for (name, rules, expected) in [
        ("a key that is looked up", account().into(), 1),
        ("a policy that is looked up", tier().into(), 1),
        ("no lookup", without.into(), 0),
        ("with a limit on addresses", Rules::from(account()).always(per_ip()), 0),
        ("two that are looked up", Rules::from(account()).always(tier()), 2),
        ("on a route", on("/api").always(per_ip()), 0),
        ("on the same route", on("POST /api").route("/api/", per_ip()), 0),
        ("on the same route without a method", on("/api").route("/api/", per_ip()), 0),
        ("on more methods", on("PUT /api").route("POST|PUT /api", per_ip()), 0),
        ("on fewer methods", on("POST|PUT /api").route("PUT /api", per_ip()), 1),
        ("on another method", on("/api").route("POST /api", per_ip()), 1),
        ("on another route", on("/api").fallback(per_ip()), 1),
    ] {
        let warnings = RateLimitLayer::with_rules(MemoryStore::new(), rules).warnings();
        let of_guesses = warnings.iter().filter(|warning| warning.contains("can be guessed")).count();
        assert_eq!(of_guesses, expected, "{name}: {warnings:?}");
    }
}
