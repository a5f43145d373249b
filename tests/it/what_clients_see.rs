//! What responses state, compared with what the limits then do. The tables of `tests/memory` have what they state.

use std::time::Duration;

use http::{HeaderMap, request::Parts};
use proptest::prelude::*;
use support::{
    Down,
    inner::{ask, get, text},
    stores_with_clock,
};
use tower_ratelimit::{
    Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitHeaders,
    RateLimitLayer, Rejection, Rule, algorithm::FixedWindow, response::Dialect, store::ManualClock,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

/// The number after `name=` in a list header or a dictionary.
fn number(text: &str, name: &str) -> Option<u64> {
    let is_its = |part: &&str| part.trim().starts_with(name);
    let part = text.split([';', ',']).find(is_its)?;
    part.trim()[name.len()..].strip_prefix('=')?.parse().ok()
}

#[tokio::test]
async fn the_end_of_a_window_is_stated_on_redis_and_of_a_denial_with_units_left() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let policy = Policy::new("daily", Quota::per_day(100)).algorithm(FixedWindow::aligned());
    for (name, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let layer = RateLimitLayer::new(limiter, policy.clone(), Key::new("all"));
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
    let (_server, clock, redis, memory) = stores_with_clock().await;
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
async fn the_wait_in_milliseconds_of_an_unavailable_store_agrees_with_retry_after() {
    let closed = Policy::new("p", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    let down = RateLimitLayer::new(Down, closed, Key::new("all"));
    let response = ask(&down.headers(RateLimitHeaders::default().retry_after_ms()), get()).await;
    let millis: u64 = field(response.headers(), "retry-after-ms").parse().unwrap();
    assert_eq!(field(response.headers(), "retry-after"), millis.div_ceil(1_000).to_string());
}

#[tokio::test]
async fn a_program_that_takes_permits_sees_when_they_expire_and_its_clients_return_in_a_second() {
    let slots = Policy::concurrency("slots", 1);
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let running = limiter.check(&slots, &Key::new("all"), 1).await.unwrap();
    let denied = limiter.check(&slots, &Key::new("all"), 1).await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(30)));
    assert_eq!(Rejection::Denied(denied).retry_after_seconds(), Some(1));
    drop(running);
}
