//! What responses state, compared with what the limits then do: the end of a window, the tightest of several layers, the
//! wait for a permit, and which caches may keep a rejection.

use std::{convert::Infallible, time::Duration};

use axum::{Router, body::Body, response::IntoResponse, routing::get as get_route};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use proptest::prelude::*;
use support::{
    Down, RedisServer,
    inner::{ask, get, text},
    settings,
};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Decision, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitHeaders,
    RateLimitLayer, Rejection, Rule,
    algorithm::{Concurrency, FixedWindow},
    policy::Penalty,
    response::Dialect,
    store::ManualClock,
};

const HOUR: Duration = Duration::from_secs(3_600);

const ONE_VALUE: [Dialect; 4] =
    [Dialect::IetfDraft07, Dialect::IetfDraft06, Dialect::LegacyDelta, Dialect::LegacyEpoch];

fn limit(clock: &ManualClock, policy: Policy) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::with_clock(clock.clone()), policy, Key::new("all"))
}

fn still(policy: Policy) -> RateLimitLayer {
    limit(&ManualClock::new(), policy)
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

/// The number after `name=` in a list header or a dictionary.
fn number(text: &str, name: &str) -> Option<u64> {
    let is_its = |part: &&str| part.trim().starts_with(name);
    let part = text.split([';', ',']).find(is_its)?;
    part.trim()[name.len()..].strip_prefix('=')?.parse().ok()
}

/// Limit, remaining and reset, in any dialect of one policy. The reset of an epoch is from now on `clock`.
fn numbers(headers: &HeaderMap, dialect: Dialect, clock: &ManualClock) -> [Option<u64>; 3] {
    let names = match dialect {
        Dialect::IetfDraft07 => {
            let text = field(headers, "ratelimit");
            return ["limit", "remaining", "reset"].map(|name| number(text, name));
        }
        Dialect::IetfDraft06 => ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
        _ => ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
    };
    let mut numbers = names.map(|name| field(headers, name).parse().ok());
    if dialect == Dialect::LegacyEpoch {
        numbers[2] = numbers[2].map(|reset: u64| reset.saturating_sub(clock.now().as_secs()));
    }
    numbers
}

#[tokio::test]
async fn an_hour_before_midnight_every_dialect_states_that_the_day_ends_in_an_hour() {
    for algorithm in [FixedWindow::aligned(), FixedWindow::anchored()] {
        let daily = || Policy::new("daily", Quota::per_day(100)).algorithm(algorithm);
        for dialect in ONE_VALUE {
            let clock = ManualClock::new();
            let layer = limit(&clock, daily()).headers(RateLimitHeaders::new(dialect).and(match dialect {
                Dialect::LegacyDelta | Dialect::LegacyEpoch => Dialect::Ietf,
                _ => Dialect::LegacyDelta,
            }));
            ask(&layer, get()).await;
            clock.advance(23 * HOUR);
            let response = ask(&layer, get()).await;
            let stated = numbers(response.headers(), dialect, &clock);
            assert_eq!(stated, [Some(100), Some(98), Some(3_600)], "{dialect:?}, {algorithm:?}");
            if let Dialect::LegacyDelta | Dialect::LegacyEpoch = dialect {
                assert_eq!(field(response.headers(), "ratelimit"), r#""daily";r=98;t=3600"#, "{algorithm:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_end_of_a_window_is_stated_on_redis_and_of_a_denial_with_units_left() {
    let clock = ManualClock::new();
    let server = RedisServer::start();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let policy = Policy::new("daily", Quota::per_day(100)).algorithm(FixedWindow::aligned());
    let memory = limit(&clock, policy.clone());
    let redis = RateLimitLayer::new(redis, policy.clone(), Key::new("all"));
    for (name, layer) in [("memory", memory), ("redis", redis)] {
        clock.set(ManualClock::new().now() + 23 * HOUR);
        let response = ask(&layer, get()).await;
        assert_eq!(field(response.headers(), "ratelimit"), r#""daily";r=99;t=3600"#, "{name}");
        let costly = Rule::new(policy.clone(), Key::new("all")).cost(|_| 100);
        let denied = ask(&layer.with_same_settings(costly), get()).await;
        assert_eq!(denied.status(), 429, "{name}");
        assert_eq!(field(denied.headers(), "ratelimit"), r#""daily";r=99;t=3600"#, "{name}");
        assert_eq!(field(denied.headers(), "retry-after"), "3600", "{name}");
    }
}

#[test]
fn within_the_stated_time_no_more_than_the_stated_units_of_a_window_can_be_used() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let steps = proptest::collection::vec((0..7_u64, 0..1_500_000_u64), 1..30);
    proptest!(|(limits in 1..40_u64, seconds in 1..100_u64, aligned: bool, start in 0..200_000_000_u64, steps in steps)| {
        let window = if aligned { FixedWindow::aligned() } else { FixedWindow::anchored() };
        // Aligned windows divide a day.
        let seconds = if aligned { [1, 2, 6, 24, 60, 100][seconds as usize % 6] } else { seconds };
        let period = Duration::from_secs(seconds);
        let policy = Policy::new("p", Quota::new(limits, period)).algorithm(window);
        let clock = ManualClock::new();
        clock.advance(Duration::from_micros(start));
        let store = MemoryStore::with_clock(clock.clone());
        let limiter = Limiter::new(store.clone());
        // The naive model: how many units each window has admitted, by its end.
        let (mut end, mut used) = (Duration::ZERO, 0);
        for (cost, pause) in steps {
            clock.advance(Duration::from_micros(pause * seconds));
            let now = clock.now();
            if now >= end {
                used = 0;
                let micros = period.as_micros();
                end = match aligned {
                    true => Duration::from_micros(u64::try_from((now.as_micros() / micros + 1) * micros).unwrap()),
                    false => now + period,
                };
            }
            let rule = Rule::new(policy.clone(), Key::new("all")).cost(move |_| cost);
            let layer = RateLimitLayer::with_rules(store.clone(), rule);
            let response = runtime.block_on(ask(&layer, get()));
            if response.status() == 200 {
                used += cost;
            }
            let stated = field(response.headers(), "ratelimit");
            prop_assert_eq!(number(stated, "r"), Some(limits - used), "{}", stated);
            let left = end - now;
            match number(stated, "t") {
                Some(t) => {
                    prop_assert!(used > 0 || cost > 0);
                    prop_assert_eq!(t, left.as_micros().div_ceil(1_000_000) as u64, "{}", stated);
                    // Until the last second of it, the rest of the window is all that is admitted.
                    let before_the_end = Duration::from_secs(t - 1);
                    clock.advance(before_the_end);
                    let most = runtime.block_on(limiter.peek(&policy, &Key::new("all"), 0)).unwrap();
                    prop_assert_eq!(most.remaining(), Some(limits - used));
                    clock.step_back(before_the_end);
                    // At its end, all units are available.
                    clock.advance(Duration::from_secs(t));
                    let all = runtime.block_on(limiter.peek(&policy, &Key::new("all"), 0)).unwrap();
                    prop_assert_eq!(all.remaining(), Some(limits));
                    clock.step_back(Duration::from_secs(t));
                    if let Ok(wait) = field(response.headers(), "retry-after").parse::<u64>() {
                        prop_assert!(wait >= t, "Retry-After {} below t={}", wait, t);
                    }
                }
                // Nothing is charged, so no window has begun; or no wait helps.
                None => prop_assert!(used == 0 || cost > limits, "{}", stated),
            }
            if used == 0 {
                end = Duration::ZERO;
            }
        }
    });
}

#[tokio::test]
async fn the_reset_as_a_time_follows_the_clock_of_the_store() {
    let (hourly, key) = (Policy::new("hourly", Quota::per_hour(1)), Key::new("all"));
    let clock = ManualClock::new();
    let server = RedisServer::start();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let memory = MemoryStore::with_clock(clock.clone());
    for (name, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let layer = RateLimitLayer::new(limiter, hourly.clone(), key.clone());
        let layer = layer.headers(RateLimitHeaders::new(Dialect::LegacyEpoch));
        clock.set(Duration::from_secs(1_767_308_400));
        for status in [200, 429] {
            let response = ask(&layer, get()).await;
            assert_eq!(response.status(), status, "{name}");
            assert_eq!(field(response.headers(), "x-ratelimit-reset"), "1767312000", "{name}, {status}");
        }
    }
}

type Service = tower::util::BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// What stands in front of the handler, from the inside out.
#[derive(Clone)]
enum Part {
    /// A limit of this crate.
    Limit(RateLimitLayer),
    /// A proxy or a middleware that sets these headers.
    Sets(&'static [(&'static str, &'static str)]),
}

fn stack(parts: impl IntoIterator<Item = Part>) -> Service {
    let handler = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut service = Service::new(handler);
    for part in parts {
        service = match part {
            Part::Limit(layer) => {
                Service::new(layer.layer(service).map_response(|response| response.map(Body::new)))
            }
            Part::Sets(fields) => Service::new(service.map_response(move |mut response: Response<Body>| {
                for (name, value) in fields {
                    response.headers_mut().insert(*name, value.parse().unwrap());
                }
                response
            })),
        };
    }
    service
}

async fn call(service: &Service) -> Response<Body> {
    let Ok(response) = service.clone().oneshot(Request::new(Body::empty())).await;
    response
}

#[tokio::test]
async fn the_tightest_limit_of_several_layers_is_shown_in_any_order() {
    for dialect in ONE_VALUE {
        let clock = ManualClock::new();
        let part = |name: &str, quota: &str| {
            let layer = limit(&clock, Policy::new(name, quota.parse().unwrap()));
            Part::Limit(layer.headers(RateLimitHeaders::new(dialect)))
        };
        let loose = || part("loose", "9/h");
        let tight = || part("tight", "2/h");
        let middle = || part("middle", "4/h");
        let orders = [
            vec![loose(), tight()],
            vec![tight(), loose()],
            vec![loose(), tight(), middle()],
            vec![tight(), middle(), loose()],
            vec![middle(), loose(), tight()],
        ];
        for (row, order) in orders.into_iter().enumerate() {
            let service = stack(order);
            for (status, remaining) in [(200, 1), (200, 0), (429, 0)] {
                let response = call(&service).await;
                assert_eq!(response.status(), status, "{dialect:?}, row {row}");
                let [limit, left, _] = numbers(response.headers(), dialect, &clock);
                assert_eq!((limit, left), (Some(2), Some(remaining)), "{dialect:?}, row {row}, {status}");
                for name in ["ratelimit", "ratelimit-limit", "x-ratelimit-limit", "x-ratelimit-reset"] {
                    assert!(response.headers().get_all(name).iter().count() <= 1, "{dialect:?}, {name}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_quotas_of_all_layers_are_listed_once_in_the_older_drafts() {
    for dialect in [Dialect::IetfDraft07, Dialect::IetfDraft06] {
        let part = |name: &str, quota: &str| {
            Part::Limit(
                still(Policy::new(name, quota.parse().unwrap())).headers(RateLimitHeaders::new(dialect)),
            )
        };
        let service = stack([part("inner", "9/h"), part("outer", "2/min"), part("same", "2/min")]);
        let response = call(&service).await;
        let all = response.headers().get_all("ratelimit-policy").iter();
        let listed: Vec<_> = all.flat_map(|value| value.to_str().unwrap().split(", ")).collect();
        let mut sorted = listed.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["2;w=60", "9;w=3600"], "{dialect:?}");
    }
}

#[tokio::test]
async fn the_fields_of_another_service_stay_wherever_it_stands() {
    const LEGACY: &[(&str, &str)] = &[("x-ratelimit-limit", "7"), ("x-ratelimit-remaining", "6")];
    const SIXTH: &[(&str, &str)] = &[("ratelimit-limit", "7"), ("ratelimit-remaining", "6")];
    const SEVENTH: &[(&str, &str)] = &[("ratelimit", "limit=7, remaining=6, reset=5")];
    let rows = [
        (Dialect::LegacyDelta, LEGACY),
        (Dialect::LegacyEpoch, LEGACY),
        (Dialect::IetfDraft06, SIXTH),
        (Dialect::IetfDraft07, SEVENTH),
    ];
    for (dialect, fields) in rows {
        let clock = ManualClock::new();
        let part = |quota: &str| {
            let policy = Policy::new(quota, quota.parse().unwrap());
            Part::Limit(limit(&clock, policy).headers(RateLimitHeaders::new(dialect)))
        };
        let theirs = [Some(7), Some(6)];
        let orders = [
            ("innermost", vec![Part::Sets(fields), part("9/h"), part("1/h")], theirs),
            ("between", vec![part("9/h"), Part::Sets(fields), part("1/h")], theirs),
            ("outermost", vec![part("9/h"), part("1/h"), Part::Sets(fields)], theirs),
            ("none", vec![part("9/h"), part("1/h")], [Some(1), Some(0)]),
        ];
        for (name, order, expected) in orders {
            let response = call(&stack(order)).await;
            let [limit, left, _] = numbers(response.headers(), dialect, &clock);
            assert_eq!([limit, left], expected, "{dialect:?}, {name}");
        }
    }
}

#[tokio::test]
async fn the_lists_of_several_layers_both_stand() {
    let part = |name: &str, quota: &str| Part::Limit(still(Policy::new(name, quota.parse().unwrap())));
    let response = call(&stack([part("inner", "9/h"), part("outer", "1/h")])).await;
    let lists: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(lists, [r#""inner";r=8;t=3200"#, r#""outer";r=0;t=3600"#]);
}

#[tokio::test]
async fn a_layer_without_headers_keeps_the_headers_of_other_layers() {
    for dialect in ONE_VALUE {
        let clock = ManualClock::new();
        let part = |quota: &str, headers: RateLimitHeaders| {
            Part::Limit(limit(&clock, Policy::new(quota, quota.parse().unwrap())).headers(headers))
        };
        let shown = || RateLimitHeaders::new(dialect);
        let rows = [
            (
                "the middle one is off",
                vec![part("5/h", shown()), part("1/h", RateLimitHeaders::off()), part("9/h", shown())],
                5,
            ),
            ("the outer one is off", vec![part("5/h", shown()), part("1/h", RateLimitHeaders::off())], 5),
            ("the inner one is off", vec![part("1/h", RateLimitHeaders::off()), part("9/h", shown())], 9),
        ];
        for (name, order, expected) in rows {
            let response = call(&stack(order)).await;
            assert_eq!(numbers(response.headers(), dialect, &clock)[0], Some(expected), "{dialect:?} {name}");
        }
    }
}

#[tokio::test]
async fn a_refund_is_shown_even_if_the_handler_returns_its_own_decision() {
    let with_decision = |decision: Decision| {
        let mut response = Response::builder().status(401).body(Body::empty()).unwrap();
        response.extensions_mut().insert(decision);
        response
    };
    let plain = get_route(async || (http::StatusCode::UNAUTHORIZED, "no"));
    let returned = get_route(async move |decision: Decision| with_decision(decision));
    let charged_more = get_route(async move |limiter: Limiter, decision: Decision| {
        with_decision(limiter.debit(&decision, 2).await.unwrap())
    });
    let rows = [("plain", plain, 5), ("its decision", returned, 5), ("a debit", charged_more, 3)];
    for (name, handler, left) in rows {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let policy = Policy::new("p", Quota::per_hour(5));
        let rule = Rule::new(policy.clone(), Key::new("all")).count_if(|response| response.status != 401);
        let layer = RateLimitLayer::with_rules(store.clone(), rule);
        // An outer layer of another policy does not hide it either.
        let outer = still(Policy::new("outer", Quota::per_hour(9)));
        for app in [
            Router::new().route("/", handler.clone()).layer(layer.clone()),
            Router::new().route("/", handler.clone()).layer(layer.clone()).layer(outer),
        ] {
            let peek = async || {
                let limiter = Limiter::new(store.clone());
                limiter.peek(&policy, &Key::new("all"), 0).await.unwrap().remaining()
            };
            let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
            assert_eq!(peek().await, Some(left), "{name}");
            let stated = number(field(response.headers(), "ratelimit"), "r");
            assert_eq!(stated, Some(left), "{name}");
            Limiter::new(store.clone()).operator().reset(&policy, &Key::new("all")).await.unwrap();
            clock.advance(Duration::from_micros(1));
        }
    }
}

#[tokio::test]
async fn a_cost_is_stated_unless_the_charge_has_changed_since_the_decision() {
    let with_decision = |decision: Decision| {
        let mut response = Response::builder().status(200).body(Body::empty()).unwrap();
        response.extensions_mut().insert(decision);
        response
    };
    let other = || Policy::new("other", Quota::per_hour(90));
    let debits = get_route(async move |limiter: Limiter, decision: Decision| {
        with_decision(limiter.debit(&decision, 2).await.unwrap())
    });
    let refunds = get_route(async move |limiter: Limiter, decision: Decision| {
        with_decision(limiter.refund(&decision, 2).await.unwrap())
    });
    let charges_another = get_route(async move |limiter: Limiter| {
        let policy = Policy::new("p", Quota::per_hour(9));
        with_decision(limiter.check(&policy, &Key::new("another"), 1).await.unwrap())
    });
    let rows = [
        ("no decision", get_route(async || ""), Some(3)),
        ("its decision", get_route(async move |decision: Decision| with_decision(decision)), Some(3)),
        ("a debit", debits, None),
        ("a refund by the handler", refunds, None),
        ("a response that does not count", get_route(async || http::StatusCode::UNAUTHORIZED), None),
        ("another client's key", charges_another, Some(3)),
    ];
    for (name, handler, cost) in rows {
        let policy = Policy::new("p", Quota::per_hour(9));
        let rule = Rule::new(policy, Key::new("all")).cost(|_| 3).count_if(|response| response.status != 401);
        let layer = RateLimitLayer::with_rules(MemoryStore::with_clock(ManualClock::new()), rule)
            .headers(RateLimitHeaders::new(Dialect::IetfNext));
        let app = Router::new().route("/", handler).layer(layer);
        let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
        let stated = field(response.headers(), "ratelimit");
        assert!(stated.starts_with(r#""p";a="#), "{name}: {stated}");
        assert_eq!(number(stated, "c"), cost, "{name}: {stated}");
    }
    // A policy that the handler decides alone, and of which it gets a part.
    let handler = get_route(async move |limiter: Limiter| {
        with_decision(limiter.check_up_to(&other(), &Key::new("all"), 100).await.unwrap())
    });
    let layer = still(Policy::new("p", Quota::per_hour(9))).headers(RateLimitHeaders::new(Dialect::IetfNext));
    let app = Router::new().route("/", handler).layer(layer);
    let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(field(response.headers(), "ratelimit"), r#""p";a=8;w=3200;c=1, "other";a=0;w=40;c=90"#);
}

#[tokio::test]
async fn a_denial_for_lack_of_permits_asks_for_a_second_and_others_for_their_wait() {
    let slots =
        || Policy::new("slots", Quota::new(1, 30 * Duration::from_secs(1))).algorithm(Concurrency::new());
    let minute = Duration::from_secs(60);
    let units = Policy::new("units", Quota::per_minute(1));
    let banning = slots().penalty(Penalty::after(1, minute).ban(minute));
    let rows = [
        ("permits", vec![slots()], "1", "Try again in 1 second."),
        ("permits and units", vec![slots(), units], "60", "Try again in 1 minute."),
        ("a ban", vec![banning], "60", "The client is banned. Try again in 1 minute."),
    ];
    for (name, policies, wait, detail) in rows {
        let clock = ManualClock::new();
        let limiter = Limiter::new(MemoryStore::with_clock(clock));
        let mut rules = policies.iter().map(|policy| Rule::new(policy.clone(), Key::new("all")));
        let first = rules.next().unwrap();
        let layer = rules.fold(RateLimitLayer::with_rules(limiter.clone(), first), RateLimitLayer::rule);
        let layer = layer.headers(RateLimitHeaders::default().and(Dialect::LegacyDelta));
        let running = ask(&layer, get()).await;
        assert_eq!(running.status(), 200, "{name}");
        let denied = ask(&layer, get()).await;
        assert_eq!(denied.status(), 429, "{name}");
        assert_eq!(field(denied.headers(), "retry-after"), wait, "{name}");
        let stated = if wait == "1" { r#""slots";r=0"# } else { "" };
        assert!(field(denied.headers(), "ratelimit").starts_with(stated), "{name}");
        if name == "permits" {
            // Nothing beside it names a longer wait.
            assert_eq!(field(denied.headers(), "ratelimit"), r#""slots";r=0"#);
            assert_eq!(field(denied.headers(), "x-ratelimit-reset"), "1");
        }
        assert!(text(denied).await.contains(detail), "{name}");
        drop(running);
    }
    // A program that takes permits itself sees when they expire.
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let running = limiter.check(&slots(), &Key::new("all"), 1).await.unwrap();
    let denied = limiter.check(&slots(), &Key::new("all"), 1).await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(30)));
    assert_eq!(Rejection::Denied(denied).retry_after_seconds(), Some(1));
    drop(running);
}

#[tokio::test]
async fn a_rejection_states_the_wait_of_the_header_of_an_unavailable_store() {
    let closed = || Policy::new("p", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    let said = |rejection: &Rejection, _: &Parts| {
        // A clone that is made first states the same.
        let clone = rejection.clone();
        axum::Json((clone.retry_after_seconds(), rejection.retry_after_seconds()))
    };
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..60 {
        let response = ask(&RateLimitLayer::new(Down, closed(), Key::new("all")).response(said), get()).await;
        assert_eq!(response.status(), 503);
        let header: u64 = field(response.headers(), "retry-after").parse().unwrap();
        assert!((1..=5).contains(&header), "{header}");
        assert_eq!(text(response).await, format!("[{header},{header}]"));
        waits.insert(header);
    }
    assert!(waits.len() > 1, "all clients return in the same second: {waits:?}");
    let setup = Rejection::Unavailable(Error::new(ErrorKind::MissingSetup, "no runtime"));
    assert_eq!(setup.retry_after_seconds(), None);
    let rejection = Rejection::Unavailable(Error::new(ErrorKind::StoreTimeout, "slow"));
    let seconds = rejection.retry_after_seconds().map(|seconds| seconds.to_string());
    assert_eq!(seconds.as_deref(), Some(field(rejection.into_http().headers(), "retry-after")));
}

#[tokio::test]
async fn a_wait_is_written_for_humans_and_never_shorter_than_it_is() {
    let rows = [
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "1 minute"),
        (61, "1 minute 1 second"),
        (3_599, "59 minutes 59 seconds"),
        (3_600, "1 hour"),
        (3_601, "1 hour 1 minute"),
        (86_399, "1 day"),
        (86_400, "1 day"),
        (90_001, "1 day 2 hours"),
        (331_200, "3 days 20 hours"),
        (334_304, "3 days 21 hours"),
        (34_560_000, "400 days"),
    ];
    for (seconds, words) in rows {
        let policy = Policy::new("p", Quota::new(1, Duration::from_secs(seconds)));
        let layer = still(policy);
        ask(&layer, get()).await;
        let call = Request::post("/").header("content-type", "application/grpc").body(String::new()).unwrap();
        let call = ask(&layer, call).await;
        let message = format!("over the rate limit; try again in {words}");
        assert_eq!(field(call.headers(), "grpc-message"), message, "{seconds}");
        let denied = ask(&layer, get()).await;
        assert_eq!(field(denied.headers(), "retry-after"), seconds.to_string());
        let problem: serde_json::Value = serde_json::from_str(&text(denied).await).unwrap();
        assert_eq!(problem["detail"], format!("Try again in {words}."), "{seconds}");
    }
}

/// The headers that let a cache keep a response, or describe another body.
const OF_THE_SERVICE: [(&str, &str); 12] = [
    ("cache-control", "public, max-age=600"),
    ("cdn-cache-control", "max-age=600"),
    ("cloudflare-cdn-cache-control", "max-age=600"),
    ("surrogate-control", "max-age=600"),
    ("edge-control", "max-age=600"),
    ("x-accel-expires", "600"),
    ("expires", "Fri, 31 Dec 9999 23:59:59 GMT"),
    ("age", "5"),
    ("etag", "\"1\""),
    ("last-modified", "Tue, 15 Nov 1994 08:12:31 GMT"),
    ("content-location", "/export.csv"),
    ("content-disposition", "attachment"),
];

#[tokio::test]
async fn no_cache_may_keep_a_rejection_that_a_handler_returns() {
    let handler = async || {
        let rejection = Rejection::from(Error::new(ErrorKind::StoreTimeout, "slow"));
        let mut response = rejection.into_response();
        for (name, value) in OF_THE_SERVICE {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response.headers_mut().insert("content-security-policy", "default-src 'none'".parse().unwrap());
        response
    };
    let app = Router::new().route("/", get_route(handler)).layer(still(Policy::new("p", Quota::per_hour(9))));
    let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(field(response.headers(), "cache-control"), "no-store");
    for (name, _) in OF_THE_SERVICE.iter().skip(1) {
        assert!(!response.headers().contains_key(*name), "{name} is kept");
    }
    // What does not describe the body is the service's own.
    assert!(response.headers().contains_key("content-security-policy"));
}

#[tokio::test]
async fn redirects_carry_headers_only_on_request_and_an_unmodified_response_does() {
    let rows =
        [(200, true, true), (301, false, true), (302, false, true), (308, false, true), (304, true, true)];
    for (status, by_default, on_request) in rows {
        for dialect in [Dialect::Ietf, Dialect::LegacyDelta] {
            let answer = move || Response::builder().status(status).body(String::new()).unwrap();
            for (headers, expected) in [
                (RateLimitHeaders::new(dialect), by_default),
                (RateLimitHeaders::new(dialect).on_redirects(), on_request),
            ] {
                let layer = still(Policy::new("p", Quota::per_hour(9))).headers(headers);
                let response = support::inner::ask_for(&layer, get(), answer).await;
                let has =
                    ["ratelimit", "x-ratelimit-limit"].map(|name| response.headers().contains_key(name));
                assert_eq!(has.contains(&true), expected, "{status}, {dialect:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_wait_in_milliseconds_is_sent_on_request_and_agrees_with_retry_after() {
    let rows = [
        ("a microsecond more", Quota::new(1, Duration::from_micros(1_000_001)), "2", "1001"),
        ("a quarter of a second", Quota::new(1, Duration::from_millis(250)), "1", "250"),
        ("an hour", Quota::per_hour(1), "3600", "3600000"),
        ("a microsecond", Quota::new(1_000, Duration::from_millis(1)).burst(1), "1", "1"),
    ];
    for (name, quota, seconds, millis) in rows {
        let plain = still(Policy::new("p", quota));
        let layer = still(Policy::new("p", quota)).headers(RateLimitHeaders::off().retry_after_ms());
        for (layer, sent) in [(plain, None), (layer, Some(millis))] {
            assert!(!ask(&layer, get()).await.headers().contains_key("retry-after-ms"), "{name}");
            let denied = ask(&layer, get()).await;
            assert_eq!(field(denied.headers(), "retry-after"), seconds, "{name}");
            let value = denied.headers().get("retry-after-ms").map(|value| value.to_str().unwrap());
            assert_eq!(value, sent, "{name}");
        }
    }
    let names = RateLimitHeaders::default().retry_after_ms().names();
    assert!(names.iter().any(|name| name == "retry-after-ms"));

    // Of an unavailable store, and of a rejection that a handler returns.
    let closed = Policy::new("p", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    let headers = || RateLimitHeaders::default().retry_after_ms();
    let down = RateLimitLayer::new(Down, closed, Key::new("all")).headers(headers());
    let unavailable = ask(&down, get()).await;
    let handler = async || {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
        let policy = Policy::new("own", Quota::new(1, Duration::from_millis(1_500)));
        limiter.check(&policy, &Key::new("all"), 1).await?.into_result()?;
        limiter.check(&policy, &Key::new("all"), 1).await?.into_result()
    };
    let app = Router::new().route("/", get_route(async move || handler().await.map(|_| "exported")));
    let app = app.layer(still(Policy::new("p", Quota::per_hour(9))).headers(headers()));
    let returned = app.oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(field(returned.headers(), "retry-after-ms"), "1500");
    for headers in [unavailable.headers(), returned.headers()] {
        let millis: u64 = field(headers, "retry-after-ms").parse().unwrap();
        assert_eq!(field(headers, "retry-after"), millis.div_ceil(1_000).to_string());
    }
    // A mapper's own wait is the only one.
    let own = still(Policy::new("p", Quota::per_hour(1))).headers(headers()).response(
        |_: &Rejection, _: &Parts| {
            Response::builder().status(429).header("retry-after", "7").body(String::new()).unwrap()
        },
    );
    ask(&own, get()).await;
    assert!(!ask(&own, get()).await.headers().contains_key("retry-after-ms"));
}
