//! Two documented features in one program, whose promises must both hold.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use support::{
    Fake, day, eventually, fails,
    inner::{ask, ask_for, get},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Charge, Decision, ErrorKind, FailureMode, Header, Key, Limiter, MemoryStore, PeerIp, Policy, Quota,
    RateLimitLayer, Reservation, Rule,
    algorithm::{Concurrency, FixedWindow, LeakyBucket},
    keyed::KeyedRateLimitLayer,
    policy::{Enforcement, Penalty},
    store::{Action, ManualClock},
};

use crate::stores::{on_a_clock, stores};

const LONG: Duration = Duration::from_secs(30);

fn all() -> Key {
    Key::new("all")
}

/// What remains under `policy`, enforced or not.
async fn left(limiter: &Limiter, policy: &Policy) -> u64 {
    let enforced = policy.clone().rollout(1.0);
    limiter.peek(&enforced, &all(), 0).await.unwrap().remaining().unwrap()
}

#[tokio::test]
async fn a_wait_that_is_only_reported_ends_admitted() {
    let queue = Policy::new("calls", Quota::per_minute(1)).algorithm(LeakyBucket::queue(LONG * 10));
    for (name, limiter) in stores("wait-reported").await {
        let report = limiter.under(Enforcement::ReportOnly);
        assert!(report.wait(&queue, &all(), 1, Duration::ZERO).await.unwrap().is_admitted());
        let before = left(&limiter, &queue).await;
        let decision = report.wait(&queue, &all(), 1, Duration::ZERO).await.unwrap();
        assert!(decision.is_admitted(), "{name}: {decision:?}");
        assert_eq!(left(&limiter, &queue).await, before, "{name}");
    }
}

#[tokio::test]
async fn a_reported_request_waits_in_a_queue_though_another_rule_cannot_identify_it() {
    let queue = Policy::new("calls", Quota::per_second(100)).algorithm(LeakyBucket::queue(LONG));
    let layer = RateLimitLayer::new(MemoryStore::new(), queue, all())
        .rule(Rule::new(day("keys", 1), Header::new("x-api-key")))
        .enforcement(Enforcement::ReportOnly);
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let decision = Decision::from_extensions(request.extensions()).unwrap();
        assert_eq!(decision.delay(), None);
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    for _ in 0..3 {
        let response = service.clone().oneshot(Request::new(String::new())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_layer_enforces_as_its_limiter_does_unless_it_is_set() {
    let policy = day("p", 1);
    for (name, limiter) in stores("enforcement-of-a-limiter").await {
        for (enforcement, remaining) in [(Enforcement::Off, 1), (Enforcement::ReportOnly, 0)] {
            let under = limiter.under(enforcement);
            let keyed = KeyedRateLimitLayer::new(under.clone(), policy.clone(), |(): &()| "all")
                .layer(service_fn(async |()| Ok::<_, Infallible>(())));
            let layer = RateLimitLayer::new(under, policy.clone(), Key::new("all"));
            for _ in 0..2 {
                assert!(keyed.clone().oneshot(()).await.is_ok(), "{name}, {enforcement}");
                assert_eq!(ask(&layer, get()).await.status(), 200, "{name}, {enforcement}");
            }
            assert_eq!(left(&limiter, &policy).await, remaining, "{name}, {enforcement}");
            let layer = layer.enforcement(Enforcement::On);
            ask(&layer, get()).await;
            assert_eq!(ask(&layer, get()).await.status(), 429, "{name}, {enforcement}");
            limiter.operator().reset(&policy, &all()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_reservation_of_a_denial_that_is_only_reported_covers_nothing() {
    let (tokens, requests) = (day("tokens", 100).max_debt(500), day("requests", 9));
    for (name, limiter) in stores("reported-reservation").await {
        limiter.check(&tokens, &all(), 100).await.unwrap();
        let report = limiter.under(Enforcement::ReportOnly);
        let charges = [Charge::new(&tokens, &all(), 400), Charge::new(&requests, &all(), 2)];
        let reported = report.check_all(&charges).await.unwrap();
        assert!(reported.is_admitted());
        Reservation::new(&report, &reported).settle(5).await.unwrap();
        let owed = limiter.operator().owed(&tokens, &all()).await.unwrap();
        assert_eq!((owed, left(&limiter, &requests).await), (0, 9), "{name}");
    }
}

#[tokio::test]
async fn what_a_shadow_denies_is_not_reserved_under_it() {
    let tokens = day("tokens", 100).max_debt(500).shadow();
    for (name, limiter) in stores("reserved-shadow").await {
        limiter.check(&tokens, &all(), 100).await.unwrap();
        let denied = limiter.check(&tokens, &all(), 50).await.unwrap();
        assert!(denied.shadows()[0].verdict().is_denied());
        Reservation::new(&limiter, &denied).settle(30).await.unwrap();
        let owed = limiter.operator().owed(&tokens, &all()).await.unwrap();
        assert_eq!(owed, 0, "{name}");
    }
}

#[tokio::test]
async fn a_settlement_that_fails_rejects_no_request_while_the_layer_only_reports() {
    let tokens = day("tokens", 1_000).failure_mode(FailureMode::Closed);
    let status = async |enforcement| {
        let store = Fake::new(MemoryStore::new(), |store, action, charges| match action {
            Action::Charge => store.decide(action, charges),
            _ => fails(ErrorKind::StoreUnreachable),
        });
        let rule = Rule::new(tokens.clone(), Key::new("all")).reserve();
        let layer = RateLimitLayer::with_rules(store, rule).enforcement(enforcement);
        let service = layer.layer(service_fn(async |request: Request<String>| {
            let reservation = Reservation::from_extensions(request.extensions()).unwrap();
            let status = if reservation.settle(5).await.is_ok() { 200 } else { 503 };
            Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap())
        }));
        service.oneshot(get()).await.unwrap().status().as_u16()
    };
    assert_eq!([status(Enforcement::On).await, status(Enforcement::ReportOnly).await], [503, 200]);
}

#[tokio::test]
async fn the_bytes_of_a_response_that_does_not_count_are_not_charged() {
    let bytes = day("bytes", 1_000);
    for (name, limiter) in stores("uncounted-bytes").await {
        let rule = Rule::new(bytes.clone(), Key::new("all")).response_bytes();
        let rule = rule.count_if(|response| response.status.is_success());
        let layer = RateLimitLayer::with_rules(limiter.clone(), rule);
        for (status, remaining) in [(404, 1_000), (200, 900), (404, 900)] {
            let respond = move || Response::builder().status(status).body("x".repeat(100)).unwrap();
            let response = ask_for(&layer, get(), respond).await;
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 100);
            limiter.drain(LONG).await.unwrap();
            assert_eq!(left(&limiter, &bytes).await, remaining, "{name}, {status}");
        }
    }
}

#[tokio::test]
async fn a_rollout_has_the_same_clients_for_their_preflights() {
    for (name, limiter) in stores("rolled-out-preflights").await {
        let policy = day("api", 1).penalty(Penalty::after(2, LONG)).rollout(0.5);
        let layer = RateLimitLayer::new(limiter.clone(), policy.clone(), PeerIp::new());
        let (mut evaded, mut denied) = (0, 0);
        for peer in (0..32).map(|i| format!("203.0.113.{i}")) {
            let key = Key::new(&*peer);
            let preflight = async || {
                let address: SocketAddr = format!("{peer}:1").parse().unwrap();
                let request = Request::options("/")
                    .header("origin", "https://page.example")
                    .header("access-control-request-method", "POST");
                ask(&layer, request.extension(address).body(String::new()).unwrap()).await.status()
            };
            if Charge::new(&policy, &key, 1).is_shadow() {
                for _ in 0..4 {
                    denied += u32::from(preflight().await == StatusCode::TOO_MANY_REQUESTS);
                }
            } else {
                limiter.operator().ban(&policy, &key, LONG).await.unwrap();
                evaded += u32::from(preflight().await == StatusCode::OK);
            }
        }
        assert_eq!((evaded, denied), (0, 0), "{name}");
    }
}

#[tokio::test]
async fn a_permit_that_a_shadow_denied_is_not_renewed() {
    let period = Duration::from_millis(300);
    let jobs = Policy::new("jobs", Quota::new(1, period)).algorithm(Concurrency::new()).shadow();
    for (name, limiter) in stores("renewed-shadow").await {
        let first = limiter.check(&jobs, &all(), 1).await.unwrap();
        let second = limiter.check(&jobs, &all(), 1).await.unwrap();
        let [first_denied, second_denied] =
            [&first, &second].map(|decision| decision.shadows()[0].verdict().is_denied());
        assert!(!first_denied && second_denied, "{name}");
        // Each permit is renewed after a third of the period.
        tokio::time::sleep(period).await;
        drop(first);
        let is_free = eventually(async || left(&limiter, &jobs).await == 1).await;
        assert!(is_free, "{name}: the denied request holds a permit");
        drop(second);
    }
}

#[tokio::test]
async fn a_shadow_holds_its_own_permits_beside_a_policy_of_another_cost() {
    let jobs = |name, period| Policy::new(name, Quota::new(9, period)).algorithm(Concurrency::new()).shadow();
    let (short, long) = (jobs("short", LONG / 20), jobs("long", LONG));
    let units = day("units", 100);
    for (name, limiter) in stores("shadow-permits").await {
        let with = async |jobs: &Policy, cost| {
            let charges = [Charge::new(&units, &all(), cost), Charge::new(jobs, &all(), 1)];
            limiter.check_all(&charges).await.unwrap()
        };
        // Renewed after a third of the period.
        let running = with(&short, 5).await;
        tokio::time::sleep(LONG / 40).await;
        assert_eq!(left(&limiter, &short).await, 8, "{name}");
        drop(running);
        drop(with(&long, 0).await);
        for jobs in [&short, &long] {
            assert!(eventually(async || left(&limiter, jobs).await == 9).await, "{name}, {jobs:?}");
        }
    }
}

#[tokio::test]
async fn a_penalty_does_not_count_the_tries_of_a_request_that_waits() {
    let penalty = Penalty::after(3, Duration::from_secs(3_600));
    let jobs = Policy::concurrency("jobs", 1).penalty(penalty);
    let calls = Policy::new("calls", Quota::per_second(100).burst(1)).penalty(penalty);
    for (name, limiter) in stores("waits-and-penalties").await {
        let key = all();
        let held = limiter.check(&jobs, &key, 1).await.unwrap();
        let (waited, ()) = tokio::join!(limiter.wait(&jobs, &key, 1, LONG), async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(held);
        });
        assert!(waited.unwrap().is_admitted(), "{name}");
        // Most of them are denied more than once.
        let waits = (0..6).map(|_| limiter.wait(&calls, &key, 1, LONG));
        for decision in futures_util::future::join_all(waits).await {
            assert!(decision.unwrap().is_admitted(), "{name}");
        }
        // Those whose patience ends count, as any other denial.
        let day = day("day", 1).penalty(penalty);
        limiter.check(&day, &key, 1).await.unwrap();
        for banned in [false, false, true] {
            let denied = limiter.wait(&day, &key, 1, LONG).await.unwrap();
            let seen = (denied.verdict().is_denied(), denied.banned_for().is_some());
            assert_eq!(seen, (true, banned), "{name}");
        }
    }
}

/// A rolling deploy that changes the period.
#[tokio::test]
async fn an_aligned_window_binds_while_instances_disagree_about_its_period() {
    for (name, _, limiter) in on_a_clock("aligned-periods") {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(90));
        let limiter = limiter(clock.clone());
        let aligned = |quota| Policy::new("api", quota).algorithm(FixedWindow::aligned());
        let (minute, hour) = (aligned(Quota::per_minute(10)), aligned(Quota::per_hour(8)));
        for order in [[&hour, &minute], [&minute, &hour]] {
            let mut admitted = 0;
            for policy in order.into_iter().cycle().take(60) {
                admitted += u32::from(limiter.check(policy, &all(), 1).await.unwrap().is_admitted());
            }
            assert_eq!(admitted, 10, "{name}");
            // Each window ends by its own period.
            for (policy, ends) in [(&minute, 120), (&hour, 3_600)] {
                let wait = limiter.check(policy, &all(), 1).await.unwrap().retry_after().unwrap();
                assert_eq!(wait, Duration::from_secs(ends - 90), "{name}");
            }
            limiter.operator().reset(&hour, &all()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_reset_of_one_of_two_policies_that_deny_leaves_the_wait_of_the_other() {
    let (minute, day) = (Policy::new("minute", Quota::per_minute(1)), day("day", 1));
    let charges = [Charge::new(&minute, &all(), 1), Charge::new(&day, &all(), 1)];
    for (name, limiter) in stores("reset-of-one").await {
        for _ in 0..3 {
            limiter.check_all(&charges).await.unwrap();
        }
        limiter.operator().reset(&day, &all()).await.unwrap();
        let denied = limiter.check_all(&charges).await.unwrap();
        assert_eq!(denied.binding().unwrap().policy().name(), "minute", "{name}");
        assert!(denied.retry_after() <= Some(Duration::from_secs(60)), "{name}: {denied:?}");
    }
}
