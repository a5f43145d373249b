//! Responses to clients: the rules of the standards that a limited HTTP service follows:
//! draft-ietf-httpapi-ratelimit-headers-11, RFC 9651, RFC 6585, RFC 9110, RFC 9457.

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use proptest::prelude::*;
use sfv::{BareItem, FieldType as _, List, ListEntry, Parser};
use support::{
    Says,
    inner::{ask, ask_for, get, text},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_ratelimit::{
    Charge, Key, MemoryStore, PeerIp, Policy, Quota, RateLimitHeaders, RateLimitLayer, Rule,
    algorithm::{FixedWindow, SlidingLog, SlidingWindow},
    decision::{Outcome, Verdict},
    response::Dialect,
    store::ManualClock,
};

use crate::responses::{HOSTILE, check};

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::with_clock(ManualClock::new()), policy, Key::new("all"))
}

/// A rule with a fixed cost.
fn costing(policy: Policy, cost: u64) -> Rule {
    Rule::new(policy, Key::new("all")).cost(move |_| cost)
}

/// The items of a list header as (string, parameters). Asserts that the header is in canonical form.
fn items(fields: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let text = fields[name].to_str().unwrap();
    let list: List = Parser::new(text).parse().unwrap();
    assert_eq!(list.serialize().as_deref(), Some(text), "{name}");
    list.into_iter()
        .map(|entry| {
            let ListEntry::Item(item) = entry else { panic!("{name} holds an inner list") };
            let BareItem::String(string) = item.bare_item else { panic!("{name} holds no string") };
            let parameters = item.params.into_iter().map(|(key, value)| {
                let BareItem::Integer(value) = value else { panic!("{name} holds no integer") };
                (key.as_str().to_owned(), i64::from(value))
            });
            (string.as_str().to_owned(), parameters.collect())
        })
        .collect()
}

fn parameter(item: &(String, Vec<(String, i64)>), name: &str) -> Option<i64> {
    item.1.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

#[tokio::test]
async fn a_limit_sends_the_headers_of_its_dialect() {
    check("responses-headers.txt").await;
    assert_eq!(RateLimitHeaders::default(), RateLimitHeaders::new(Dialect::Ietf));
    let names = |headers: RateLimitHeaders| headers.names();
    let next = names(RateLimitHeaders::new(Dialect::IetfNext));
    assert_eq!(next, ["ratelimit", "ratelimit-policy", "retry-after"]);
    assert!(names(RateLimitHeaders::default().retry_after_ms()).iter().any(|name| name == "retry-after-ms"));
}

#[tokio::test]
async fn several_layers_show_their_headers_together() {
    check("responses-layers.txt").await;
}

#[tokio::test]
async fn a_layer_that_only_reports_admits_and_marks_with_all_policies_that_denied() {
    check("responses-marks.txt").await;
}

#[tokio::test]
async fn a_rejection_has_a_status_a_wait_and_a_problem_and_is_not_cached() {
    check("responses-rejections.txt").await;
}

#[tokio::test]
async fn an_epoch_is_of_the_clock_of_this_machine() {
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let rule = costing(Policy::new("p", Quota::per_hour(4)), 3);
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    let before = now();
    let response = ask(&layer.headers(RateLimitHeaders::new(Dialect::LegacyEpoch)), get()).await;
    // All four units are replenished after three quarters of an hour.
    let reset: u64 = response.headers()["x-ratelimit-reset"].to_str().unwrap().parse().unwrap();
    assert!((before + 2_700..=now() + 2_701).contains(&reset), "{reset}");
}

#[test]
fn a_policy_name_that_no_header_can_carry_is_an_error_and_others_are_escaped() {
    for name in ["tab\there", "new\nline", "d\u{ed}a", "del\u{7f}", ""] {
        assert!(Policy::try_new(name, Quota::per_second(1)).is_err(), "{name:?}");
    }
    assert!(Policy::try_new(HOSTILE, Quota::per_second(1)).is_ok());
}

#[test]
fn the_remaining_units_never_promise_more_than_the_policy() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let steps = proptest::collection::vec((1..7_u64, 0..3_000_000_u64), 1..30);
    let millis = prop_oneof![(1..100_u64).prop_map(|seconds| seconds * 1_000), 1..100_000_u64];
    let rule = (1..40_u64, millis, prop_oneof![Just(0), 1..60_u64], 0..3_u8);
    proptest!(|((limit, millis, burst, algorithm) in rule, steps in steps)| {
        let quota = Quota::new(limit, Duration::from_millis(millis));
        let policy = match algorithm {
            0 if burst > 0 => Policy::new("p", quota.burst(burst)),
            0 => Policy::new("p", quota),
            1 => Policy::new("p", quota).algorithm(SlidingWindow::new()),
            _ => Policy::new("p", quota).algorithm(SlidingLog::new()),
        };
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        for (cost, pause) in steps {
            clock.advance(Duration::from_micros(pause * millis / 1_000));
            let layer = RateLimitLayer::with_rules(store.clone(), costing(policy.clone(), cost));
            let response = runtime.block_on(ask(&layer, get()));
            let stated = items(response.headers(), "ratelimit-policy");
            // A window below a second is not stated.
            let w = parameter(&stated[0], "w").map_or_else(|| i64::try_from(millis).unwrap(), |w| w * 1_000);
            let q = parameter(&stated[0], "q").unwrap();
            let limits = items(response.headers(), "ratelimit");
            let (r, t) = (parameter(&limits[0], "r").unwrap(), parameter(&limits[0], "t"));
            if let Some(t) = t {
                prop_assert!(t >= 1);
                prop_assert!(r * w <= q * t * 1_000, "r={} t={} q={} w={}", r, t, q, w);
            }
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                if cost == 1 {
                    prop_assert_eq!(r, 0);
                }
                if let Some(wait) = response.headers().get("retry-after") {
                    let wait: i64 = wait.to_str().unwrap().parse().unwrap();
                    prop_assert!(t.is_none_or(|t| wait >= t), "Retry-After {} below t={:?}", wait, t);
                }
            }
        }
    });
}

#[test]
#[should_panic(expected = "at least 16 bytes")]
fn a_partition_key_with_a_short_secret_panics() {
    let _ = RateLimitHeaders::default().partition_key("15 bytes of it!");
}

#[test]
fn two_dialects_with_the_same_header_names_are_a_mistake() {
    for (one, other) in [
        (Dialect::LegacyDelta, Dialect::LegacyEpoch),
        (Dialect::IetfDraft07, Dialect::IetfDraft06),
        (Dialect::Ietf, Dialect::IetfNext),
        (Dialect::IetfNext, Dialect::IetfDraft07),
    ] {
        let both = std::panic::catch_unwind(|| RateLimitHeaders::new(one).and(other)).unwrap_err();
        assert!(both.downcast_ref::<String>().unwrap().contains("the same header names"));
    }
}

#[tokio::test]
async fn a_response_with_no_room_for_more_headers_is_sent_without_ours() {
    let full = || {
        let mut response = Response::new(String::from("hello"));
        let fields = response.headers_mut();
        for i in 0.. {
            let name = http::HeaderName::try_from(format!("x-{i}")).unwrap();
            if fields.try_insert(name, 1.into()).is_err() {
                break;
            }
        }
        response
    };
    let layer = layer(Policy::new("p", Quota::per_hour(2)))
        .headers(RateLimitHeaders::default().and(Dialect::LegacyDelta));
    let response = ask_for(&layer, get(), full).await;
    assert_eq!(response.status(), 200);
    assert!(response.headers().contains_key("x-1") && !response.headers().contains_key("ratelimit"));
    assert_eq!(text(response).await, "hello");
}

#[tokio::test]
async fn jitter_is_upwards_only_and_the_same_in_every_header() {
    let layer = layer(Policy::new("p", Quota::per_minute(1))).retry_after_jitter(Duration::from_secs(40));
    ask(&layer, get()).await;
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let denied = ask(&layer, get()).await;
        let wait: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((60..=100).contains(&wait), "{wait}");
        assert_eq!(denied.headers()["ratelimit"], r#""p";r=0;t=60"#);
        let detail = match wait {
            60 => "Try again in 1 minute.".to_owned(),
            61 => "Try again in 1 minute 1 second.".to_owned(),
            _ => format!("Try again in 1 minute {} seconds.", wait - 60),
        };
        assert!(text(denied).await.contains(&format!(r#""detail":"{detail}""#)), "{wait}");
        waits.insert(wait);
    }
    assert!(waits.len() > 10, "{waits:?}");
    // The whole range is used.
    assert!(waits.first() < Some(&80) && waits.last() > Some(&80), "{waits:?}");
}

#[tokio::test]
async fn jitter_of_any_length_is_bounded_and_names_no_wait_where_none_helps() {
    let policy = Policy::new("p", Quota::per_minute(1));
    let limited = layer(policy.clone()).retry_after_jitter(Duration::MAX);
    ask(&limited, get()).await;
    let store =
        Says(|charge: &Charge| Outcome::new(charge, Verdict::deny(Some(Duration::MAX)), 0, Duration::MAX));
    let longest = RateLimitLayer::new(store, Policy::new("p", Quota::per_day(1)), Key::new("all"));
    for layer in [limited.clone(), longest.retry_after_jitter(Duration::MAX)] {
        let denied = ask(&layer, get()).await;
        let wait: u64 = denied.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((60..=2_147_483_647).contains(&wait), "{wait}");
    }
    let too_much = ask(&limited.with_same_settings(costing(policy, 2)), get()).await;
    assert_eq!(too_much.status(), 429);
    assert!(!too_much.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_rejection_does_not_wait_for_the_body() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Policy::new("p", Quota::per_hour(1)), PeerIp::new());
    let app = axum::Router::new()
        .route("/", axum::routing::post(async |body: String| body).get(async || "hello"))
        .layer(layer);
    let address = support::http::serve(app).await;
    assert_eq!(support::http::Client::new().get(&format!("http://{address}/")).await.status(), 200);

    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    // A body is announced and never sent.
    connection.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n").await.unwrap();
    let mut start = [0; 12];
    tokio::time::timeout(Duration::from_secs(10), connection.read_exact(&mut start)).await.unwrap().unwrap();
    assert_eq!(&start, b"HTTP/1.1 429");
}

#[test]
fn the_next_text_differs_from_the_present_draft_in_its_letters_and_the_cost_alone() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let steps = proptest::collection::vec((0..7_u64, 0..3_000_000_u64), 1..20);
    proptest!(|(limit in 1..40_u64, algorithm in 0..4_u8, binding_only: bool, keyed: bool, steps in steps)| {
        let quota = Quota::per_minute(limit);
        let policy = match algorithm {
            0 => Policy::new("p", quota),
            1 => Policy::new("p", quota).algorithm(SlidingWindow::new()),
            2 => Policy::new("p", quota).algorithm(FixedWindow::anchored()),
            _ => Policy::concurrency("p", limit),
        };
        let daily = Policy::new("daily", Quota::per_day(50));
        let clock = ManualClock::new();
        let [present, next] = [Dialect::Ietf, Dialect::IetfNext].map(|dialect| {
            let mut headers = RateLimitHeaders::new(dialect);
            if binding_only {
                headers = headers.binding_only();
            }
            if keyed {
                headers = headers.partition_key("0123456789abcdef");
            }
            (MemoryStore::with_clock(clock.clone()), headers)
        });
        for (cost, pause) in steps {
            clock.advance(Duration::from_micros(pause));
            let of = |(store, headers): &(MemoryStore, RateLimitHeaders)| {
                let layer = RateLimitLayer::with_rules(store.clone(), costing(policy.clone(), cost));
                let layer = layer.rule(costing(daily.clone(), cost)).headers(headers.clone());
                runtime.block_on(ask(&layer, get()))
            };
            let (present, next) = (of(&present), of(&next));
            prop_assert_eq!(present.status(), next.status());
            prop_assert_eq!(&present.headers()["ratelimit-policy"], &next.headers()["ratelimit-policy"]);
            let text = |response: &Response<_>| response.headers()["ratelimit"].to_str().unwrap().to_owned();
            let cost = format!(";c={cost}");
            let renamed = text(&present).replace(";r=", ";a=").replace(";t=", ";w=").replace(", ", &format!("{cost}, "));
            prop_assert_eq!(text(&next), renamed + &cost);
            prop_assert_eq!(present.headers().get("retry-after"), next.headers().get("retry-after"));
        }
    });
}
