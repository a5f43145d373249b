//! Responses to clients: one test for each rule of the standards that a limited HTTP service follows:
//! draft-ietf-httpapi-ratelimit-headers-11, RFC 9651, RFC 6585, RFC 9110, RFC 9457.

use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use proptest::prelude::*;
use serde_json::{Value, json};
use sfv::{BareItem, FieldType as _, List, ListEntry, Parser};
use support::{
    Down, Says,
    inner::{ask, ask_and_read, ask_for, get, text},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Header, Key, Limiter, MemoryStore, PeerIp,
    Policy, Quota, RateLimitHeaders, RateLimitLayer, Rejection, Rule,
    algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket},
    decision::{Outcome, Verdict},
    policy::{Enforcement, QuotaUnit},
    response::Dialect,
    store::ManualClock,
};

const HOSTILE: &str = r#"a "quoted" \ {name}, ;q=1"#;

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

fn problem(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn the_list_headers_are_canonical_structured_fields() {
    let layer = layer(Policy::new(HOSTILE, Quota::per_minute(5))).rule(Rule::new(
        Policy::new("subsecond", Quota::new(7, Duration::from_millis(500))),
        Key::new("all"),
    ));
    let response = ask(&layer, get()).await;
    let policies = items(response.headers(), "ratelimit-policy");
    assert_eq!(policies[0], (HOSTILE.into(), vec![("q".into(), 5), ("w".into(), 60)]));
    assert_eq!(policies[1], ("subsecond".into(), vec![("q".into(), 7)]));
    let limits = items(response.headers(), "ratelimit");
    assert_eq!(limits[0], (HOSTILE.into(), vec![("r".into(), 4), ("t".into(), 48)]));
    assert_eq!(parameter(&limits[1], "r"), Some(6));
}

#[tokio::test]
async fn integers_beyond_the_standard_are_clamped() {
    let store = Says(|charge: &Charge| Outcome::new(charge, Verdict::Admit, u64::MAX, Duration::MAX));
    let layer = RateLimitLayer::new(store, Policy::new("p", Quota::per_day(1)), Key::new("all"));
    let response = ask(&layer, get()).await;
    let limits = items(response.headers(), "ratelimit");
    assert_eq!(limits[0].1, [("r".into(), 999_999_999_999_999), ("t".into(), 999_999_999_999_999)]);
}

#[test]
fn a_policy_name_that_no_header_can_carry_is_an_error_and_others_are_escaped() {
    for name in ["tab\there", "new\nline", "d\u{ed}a", "del\u{7f}", ""] {
        assert!(Policy::try_new(name, Quota::per_second(1)).is_err(), "{name:?}");
    }
    assert!(Policy::try_new(HOSTILE, Quota::per_second(1)).is_ok());
}

#[tokio::test]
async fn the_policy_header_stays_the_same_and_in_order() {
    let both = layer(Policy::new("wide", Quota::per_day(100)))
        .rule(Rule::new(Policy::new("narrow", Quota::per_minute(2)), Key::new("all")));
    let tightest = both.clone().headers(RateLimitHeaders::default().binding_only());
    for _ in 0..4 {
        let all = ask(&both, get()).await;
        assert_eq!(all.headers()["ratelimit-policy"], r#""wide";q=100;w=86400, "narrow";q=2;w=60"#);
        assert_eq!(items(all.headers(), "ratelimit").len(), 2);
        let one = ask(&tightest, get()).await;
        assert_eq!(one.headers()["ratelimit-policy"], all.headers()["ratelimit-policy"]);
        assert_eq!(items(one.headers(), "ratelimit").len(), 1);
        assert_eq!(items(one.headers(), "ratelimit")[0].0, "narrow");
    }
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

#[tokio::test]
async fn no_t_exceeds_a_retry_after_that_was_set_before() {
    let denied = |wait: &'static str| {
        move || {
            let response = Response::builder().status(429).header("retry-after", wait);
            response.body(String::new()).unwrap()
        }
    };
    let daily = || Policy::new("daily", Quota::per_day(100));
    let date = "Fri, 31 Dec 9999 23:59:59 GMT";
    let rows = [
        ("shorter", "60", r#""daily";r=99"#, "limit=100, remaining=99, reset=60"),
        ("longer", "90000", r#""daily";r=99;t=85536"#, "limit=100, remaining=99, reset=85536"),
        ("not compared", date, r#""daily";r=99"#, "limit=100, remaining=99, reset=85536"),
    ];
    for (name, wait, list, dictionary) in rows {
        let response = ask_for(&layer(daily()), get(), denied(wait)).await;
        assert_eq!(response.headers()["retry-after"], wait, "{name}");
        assert_eq!(response.headers()["ratelimit"], list, "{name}");
        let older = layer(daily()).headers(RateLimitHeaders::new(Dialect::IetfDraft07));
        let response = ask_for(&older, get(), denied(wait)).await;
        assert_eq!(response.headers()["ratelimit"], dictionary, "{name}");
    }
    // An inner limit and a custom mapper with a shorter wait than the `t` of the outer limit.
    let service = tower::Layer::layer(
        &layer(Policy::new("burst", Quota::per_minute(1))),
        tower::service_fn(|_: Request<String>| async {
            Ok::<_, std::convert::Infallible>(Response::new(String::new()))
        }),
    );
    let service = tower::Layer::layer(&layer(daily()), service);
    let Ok(_) = tower::ServiceExt::oneshot(service.clone(), get()).await;
    let Ok(response) = tower::ServiceExt::oneshot(service, get()).await;
    let fields: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(fields, [r#""burst";r=0;t=60"#, r#""daily";r=98"#]);
    let hasty =
        layer(Policy::new("p", Quota::per_hour(1))).response(move |_: &Rejection, _: &Parts| denied("7")());
    ask(&hasty, get()).await;
    assert_eq!(ask(&hasty, get()).await.headers()["ratelimit"], r#""p";r=0"#);
}

#[tokio::test]
async fn headers_of_an_inner_service_are_appended_to_and_never_replaced() {
    let inner = || {
        Response::builder()
            .header("ratelimit", r#""inner";r=1"#)
            .header("ratelimit-policy", r#""inner";q=1"#)
            .header("x-ratelimit-used", "77")
            .body(String::new())
            .unwrap()
    };
    let layer = layer(Policy::new("outer", Quota::per_minute(5)))
        .headers(RateLimitHeaders::default().and(Dialect::LegacyDelta));
    let response = ask_for(&layer, get(), inner).await;
    let values =
        |name| response.headers().get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(values("ratelimit"), [r#""inner";r=1"#, r#""outer";r=4;t=48"#]);
    assert_eq!(values("ratelimit-policy"), [r#""inner";q=1"#, r#""outer";q=5;w=60"#]);
    assert_eq!(values("x-ratelimit-used"), ["77"]);
    assert!(values("x-ratelimit-limit").is_empty());
}

#[tokio::test]
async fn a_list_is_not_appended_to_a_dictionary() {
    let rows = [
        ("dictionary", "limit=100, remaining=50, reset=30", false),
        ("dictionary of one", "limit=100", false),
        ("list", r#""inner";r=1;t=5"#, true),
        ("list with an odd name", r#""a=b";r=1"#, true),
        ("list of tokens", "inner;r=1;t=5", true),
    ];
    for (name, field, appended) in rows {
        let inner = || {
            let fields =
                Response::builder().header("ratelimit", field).header("ratelimit-policy", "100;w=60");
            fields.body(String::new()).unwrap()
        };
        let response = ask_for(&layer(Policy::new("outer", Quota::per_minute(5))), get(), inner).await;
        for of in ["ratelimit", "ratelimit-policy"] {
            let count = response.headers().get_all(of).iter().count();
            assert_eq!(count, 1 + usize::from(appended), "{name}, {of}");
        }
    }
}

#[tokio::test]
async fn a_partition_key_is_a_keyed_hash_and_off_by_default() {
    let of = async |secret: &str, key: &str| {
        let store = MemoryStore::with_clock(ManualClock::new());
        let layer = RateLimitLayer::new(store, Policy::new("p", Quota::per_hour(4)), Key::new(key))
            .headers(RateLimitHeaders::default().partition_key(secret));
        let response = ask(&layer, get()).await;
        assert!(!response.headers()["ratelimit-policy"].to_str().unwrap().contains("pk"));
        let text = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        let list: List = Parser::new(&text).parse().unwrap();
        assert_eq!(list.serialize(), Some(text));
        let ListEntry::Item(item) = &list[0] else { panic!("an inner list") };
        let Some(BareItem::ByteSequence(bytes)) = item.params.get("pk") else { panic!("no pk") };
        bytes.clone()
    };
    let secret = "0123456789abcdef";
    let alice = of(secret, "alice").await;
    assert_eq!(alice.len(), 12);
    assert_eq!(alice, of(secret, "alice").await);
    assert_ne!(alice, of(secret, "bob").await);
    assert_ne!(alice, of("another secret, longer", "alice").await);
    let plain = ask(&layer(Policy::new("p", Quota::per_hour(4))), get()).await;
    assert!(!plain.headers()["ratelimit"].to_str().unwrap().contains("pk"));
}

#[tokio::test]
async fn a_partition_key_is_the_first_96_bits_and_on_every_item() {
    // The hash of "user-4" contains a character that is not in every base64 alphabet.
    let pk = "pk=:ppSViGGL/d/6iBFh:";
    let layer = layer(Policy::new("narrow", Quota::per_hour(1)))
        .rule(Rule::new(Policy::new("wide", Quota::per_day(9)), Key::new("user-4")))
        .headers(RateLimitHeaders::default().partition_key("0123456789abcdef"));
    for status in [200, 429] {
        let response = ask(&layer, get()).await;
        assert_eq!(response.status(), status);
        let items = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        assert_eq!(items.matches(";pk=:").count(), 2, "{items}");
        assert!(items.ends_with(pk), "{items}");
    }
}

#[test]
#[should_panic(expected = "at least 16 bytes")]
fn a_partition_key_with_a_short_secret_panics() {
    let _ = RateLimitHeaders::default().partition_key("15 bytes of it!");
}

#[tokio::test]
async fn the_headers_of_older_drafts_describe_the_policy_that_binds() {
    let both = |headers| {
        layer(Policy::new("wide", Quota::per_day(100)))
            .rule(Rule::new(Policy::new("narrow", Quota::per_minute(2)), Key::new("all")))
            .rule(Rule::new(Policy::new("same number", Quota::per_hour(100)), Key::new("all")))
            .headers(headers)
    };
    let seventh = both(RateLimitHeaders::new(Dialect::IetfDraft07));
    let response = ask(&seventh, get()).await;
    assert_eq!(response.headers()["ratelimit"], "limit=2, remaining=1, reset=30");
    assert_eq!(response.headers()["ratelimit-policy"], "100;w=86400, 2;w=60");
    let dictionary: sfv::Dictionary =
        Parser::new(response.headers()["ratelimit"].to_str().unwrap()).parse().unwrap();
    assert_eq!(dictionary.len(), 3);
    ask(&seventh, get()).await;
    let denied = ask(&seventh, get()).await;
    assert_eq!(denied.headers()["ratelimit"], "limit=2, remaining=0, reset=30");
    assert_eq!(denied.headers()["retry-after"], "30");

    let response = ask(&both(RateLimitHeaders::new(Dialect::IetfDraft06)), get()).await;
    for (name, value) in [("limit", "2"), ("remaining", "1"), ("reset", "30")] {
        assert_eq!(response.headers()[format!("ratelimit-{name}")], value);
    }
    assert_eq!(response.headers()["ratelimit-policy"], "100;w=86400, 2;w=60");
    assert!(!response.headers().contains_key("ratelimit"));
    // The headers of an inner service are not changed.
    for headers in [Dialect::IetfDraft06, Dialect::IetfDraft07].map(RateLimitHeaders::new) {
        let inner = || {
            let names = ["ratelimit", "ratelimit-limit"];
            names
                .iter()
                .fold(Response::builder(), |r, name| r.header(*name, "limit=7"))
                .body("".into())
                .unwrap()
        };
        let response = ask_for(&both(headers), get(), inner).await;
        assert_eq!(response.headers().get_all("ratelimit").iter().count(), 1);
        assert!(!response.headers().contains_key("ratelimit-policy"));
    }
}

/// The three numbers, in the format of any older draft.
fn three(fields: &HeaderMap) -> String {
    let field = |name: &str| fields[name].to_str().unwrap();
    match fields.get("ratelimit") {
        Some(all) => all.to_str().unwrap().to_owned(),
        None => format!(
            "limit={}, remaining={}, reset={}",
            field("ratelimit-limit"),
            field("ratelimit-remaining"),
            field("ratelimit-reset")
        ),
    }
}

#[tokio::test]
async fn the_headers_of_older_drafts_agree_with_each_other_and_with_retry_after() {
    let short = Quota::new(3, Duration::from_millis(999));
    let older = [Dialect::IetfDraft06, Dialect::IetfDraft07].map(RateLimitHeaders::new);
    let rows = [
        ("a burst", Quota::per_minute(2).burst(4), 1, "limit=4, remaining=3, reset=90", "2;w=60"),
        ("a second", Quota::per_second(3), 1, "limit=3, remaining=2, reset=1", "3;w=1"),
        ("below a second", short, 1, "limit=3, remaining=2, reset=1", "3"),
        ("nothing left", Quota::per_minute(2), 2, "limit=2, remaining=0, reset=30", "2;w=60"),
    ];
    for (name, quota, cost, numbers, policy) in rows {
        for headers in &older {
            let rule = costing(Policy::new("p", quota), cost);
            let layer = RateLimitLayer::with_rules(MemoryStore::with_clock(ManualClock::new()), rule)
                .headers(headers.clone());
            let response = ask(&layer, get()).await;
            assert_eq!(three(response.headers()), numbers, "{name}, {headers:?}");
            assert_eq!(response.headers()["ratelimit-policy"], policy, "{name}, {headers:?}");
        }
    }
    for headers in older {
        let policy = Policy::new("p", Quota::per_hour(5));
        let hourly = layer(policy.clone()).headers(headers.clone());
        assert_eq!(ask(&hourly, get()).await.status(), 200);
        // Denied with units left: there is no window, so reset is the time until full replenishment.
        let denied = ask(&hourly.with_same_settings(costing(policy.clone(), 5)), get()).await;
        assert_eq!(three(denied.headers()), "limit=5, remaining=4, reset=720");
        assert_eq!(denied.headers()["retry-after"], "720");
        ask(&hourly.with_same_settings(costing(policy, 4)), get()).await;
        let denied = ask(&hourly, get()).await;
        assert_eq!(three(denied.headers()), "limit=5, remaining=0, reset=720");
        assert_eq!(denied.headers()["retry-after"], "720");

        let store = Says(|charge: &Charge| Outcome::new(charge, Verdict::Admit, u64::MAX, Duration::MAX));
        let largest = RateLimitLayer::new(store, Policy::new("p", Quota::per_day(7)), Key::new("all"));
        let response = ask(&largest.headers(headers.clone()), get()).await;
        assert_eq!(three(response.headers()), "limit=7, remaining=999999999999999, reset=999999999999999");

        // Permits have no window. Their period is the lease.
        let slots = Policy::concurrency("slots", 2);
        let response = ask(&layer(slots).headers(headers), get()).await;
        assert_eq!(three(response.headers()), "limit=2, remaining=1, reset=30");
        assert_eq!(response.headers()["ratelimit-policy"], "2");
    }
}

#[tokio::test]
async fn a_legacy_reset_is_an_epoch_or_a_delta_and_never_both() {
    let seconds_since_epoch = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let used = async |headers| {
        let rule = costing(Policy::new("p", Quota::per_hour(4)), 3);
        // Without a manual clock, the time is this machine's.
        let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule).headers(headers);
        let before = seconds_since_epoch();
        let response = ask(&layer, get()).await;
        let field = |name: &str| response.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(field("x-ratelimit-limit"), 4);
        assert_eq!(field("x-ratelimit-remaining"), 1);
        assert_eq!(field("x-ratelimit-used"), 3);
        assert!(!response.headers().contains_key("ratelimit"));
        (before, field("x-ratelimit-reset"), seconds_since_epoch())
    };
    // All four units are replenished after three quarters of an hour.
    let (_, delta, _) = used(RateLimitHeaders::new(Dialect::LegacyDelta)).await;
    assert_eq!(delta, 2_700);
    let (before, epoch, after) = used(RateLimitHeaders::new(Dialect::LegacyEpoch)).await;
    assert!((before + 2_700..=after + 2_701).contains(&epoch), "{epoch}");
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
async fn headers_can_be_kept_off_redirects_and_off_successes() {
    let policy = || Policy::new("p", Quota::per_hour(2));
    let moved = || Response::builder().status(302).body(String::new()).unwrap();
    let rows = [
        ("the default", RateLimitHeaders::default(), [true, false, true]),
        ("on redirects too", RateLimitHeaders::default().on_redirects(), [true, true, true]),
        ("denials only", RateLimitHeaders::default().on_rejections_only(), [false, false, true]),
        ("off", RateLimitHeaders::off(), [false, false, false]),
    ];
    for (name, headers, expected) in rows {
        let layer = layer(policy()).headers(headers);
        let responses =
            [ask(&layer, get()).await, ask_for(&layer, get(), moved).await, ask(&layer, get()).await];
        assert_eq!(responses[2].status(), 429, "{name}");
        assert!(responses[2].headers().contains_key("retry-after"), "{name}");
        let seen = responses.map(|response| response.headers().contains_key("ratelimit"));
        assert_eq!(seen, expected, "{name}");
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
async fn each_rejection_has_its_status() {
    let closed = Policy::new("p", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    let policy = || Policy::new("p", Quota::per_hour(1));
    let key = || Key::new("all");
    let limited = layer(policy());
    ask(&limited, get()).await;
    let broken = |_: &Parts| Err::<Key, _>(Error::new(ErrorKind::StoreReply, "secret of an extractor"));
    let rows = [
        ("limited", limited, 429),
        ("store down, closed", RateLimitLayer::new(Down, closed, key()), 503),
        ("store down, open", RateLimitLayer::new(Down, policy(), key()), 200),
        ("no header", RateLimitLayer::new(MemoryStore::new(), policy(), Header::new("x-api-key")), 400),
        ("no connect info", RateLimitLayer::new(MemoryStore::new(), policy(), PeerIp::new()), 500),
        ("an extractor that fails", RateLimitLayer::new(MemoryStore::new(), policy(), broken), 500),
    ];
    for (name, layer, status) in rows {
        let response = ask(&layer, get()).await;
        assert_eq!(response.status(), status, "{name}");
        if status != 200 {
            assert_eq!(response.headers()["content-type"], "application/problem+json", "{name}");
            let body = text(response).await;
            assert_eq!(problem(&body)["status"], status, "{name}");
            assert!(!body.contains("secret"), "{name}: {body}");
        }
    }
    let layer = RateLimitLayer::new(MemoryStore::new(), policy(), PeerIp::new());
    let body = text(ask(&layer, get()).await).await;
    assert_eq!(problem(&body)["detail"], "The rate limit is misconfigured.", "{body}");
    let layer = RateLimitLayer::new(MemoryStore::new(), policy(), Header::new("x-api-key"));
    let body = text(ask(&layer, get()).await).await;
    assert!(body.contains("lacks the header `x-api-key`"), "{body}");
}

#[tokio::test]
async fn retry_after_is_rounded_up_and_a_retry_then_is_admitted() {
    let rows = [
        ("a millisecond", Quota::per_second(1_000).burst(1), "1"),
        ("a third of a second", Quota::per_second(3).burst(1), "1"),
        ("a second and a half", Quota::per_minute(40).burst(1), "2"),
        ("a day", Quota::per_day(1), "86400"),
        ("400 days", Quota::new(1, Duration::from_secs(400 * 86_400)), "34560000"),
    ];
    for (name, quota, expected) in rows {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let layer = RateLimitLayer::new(store, Policy::new("p", quota), Key::new("all"));
        assert_eq!(ask(&layer, get()).await.status(), 200, "{name}");
        let denied = ask(&layer, get()).await;
        assert_eq!(denied.headers()["retry-after"], expected, "{name}");
        clock.advance(Duration::from_secs(expected.parse().unwrap()));
        assert_eq!(ask(&layer, get()).await.status(), 200, "{name}");
    }
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
        assert_eq!(problem(&text(denied).await)["detail"], detail);
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
async fn retry_after_is_bounded() {
    let store =
        Says(|charge: &Charge| Outcome::new(charge, Verdict::deny(Some(Duration::MAX)), 0, Duration::MAX));
    let layer = RateLimitLayer::new(store, Policy::new("p", Quota::per_day(1)), Key::new("all"));
    let denied = ask(&layer, get()).await;
    assert_eq!(denied.headers()["retry-after"], "2147483647");
    assert_eq!(parameter(&items(denied.headers(), "ratelimit")[0], "t"), Some(2_147_483_647));
}

#[tokio::test]
async fn a_cost_above_the_capacity_has_no_retry_after_and_another_detail() {
    let rule = costing(Policy::new("p", Quota::per_hour(5)), 6);
    let layer = RateLimitLayer::with_rules(MemoryStore::with_clock(ManualClock::new()), rule);
    let denied = ask(&layer, get()).await;
    assert_eq!(denied.status(), 429);
    assert!(!denied.headers().contains_key("retry-after"));
    assert_eq!(denied.headers()["ratelimit"], r#""p";r=5"#);
    assert!(text(denied).await.contains("waiting does not help"));
}

#[tokio::test]
async fn temporary_rejections_are_not_stored_by_caches() {
    let limited = layer(Policy::new("p", Quota::per_hour(1)));
    assert!(!ask(&limited, get()).await.headers().contains_key("cache-control"));
    assert_eq!(ask(&limited, get()).await.headers()["cache-control"], "no-store");
    let closed = Policy::new("p", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    let down = RateLimitLayer::new(Down, closed, Key::new("all"));
    assert_eq!(ask(&down, get()).await.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn no_rejection_is_stored_by_caches_with_any_status() {
    let policy = || Policy::new("p", Quota::per_hour(1));
    let no_header = RateLimitLayer::new(MemoryStore::new(), policy(), Header::new("x-api-key"));
    let no_peer = RateLimitLayer::new(MemoryStore::new(), policy(), PeerIp::new());
    let moved = |_: &Rejection, _: &Parts| Response::builder().status(301).body(String::new()).unwrap();
    let call = || Request::post("/").header("content-type", "application/grpc").body(String::new()).unwrap();
    let rows = [
        ("no identity", &no_header, get(), 400),
        ("no setup", &no_peer, get(), 500),
        ("moved", &no_header.clone().response(moved), get(), 301),
        ("gRPC", &no_header, call(), 200),
    ];
    for (name, layer, request, status) in rows {
        let denied = ask(layer, request).await;
        assert_eq!(denied.status(), status, "{name}");
        assert_eq!(denied.headers()["cache-control"], "no-store", "{name}");
    }
}

#[tokio::test]
async fn a_request_that_is_not_a_post_is_never_grpc() {
    let layer = layer(Policy::new("p", Quota::per_hour(1)));
    ask(&layer, get()).await;
    for (method, status) in [("GET", 429), ("HEAD", 429), ("PUT", 429), ("POST", 200)] {
        let request = Request::builder().method(method).header("content-type", "application/grpc");
        let denied = ask(&layer, request.body(String::new()).unwrap()).await;
        assert_eq!(denied.status(), status, "{method}");
        assert_eq!(denied.headers().contains_key("grpc-status"), status == 200, "{method}");
    }
}

#[tokio::test]
async fn the_body_is_a_problem_that_names_exactly_the_policies_that_denied() {
    let layer = layer(Policy::new(HOSTILE, Quota::per_hour(1)))
        .rule(Rule::new(Policy::new("wide", Quota::per_hour(100)), Key::new("all")))
        .rule(Rule::new(Policy::new("narrow", Quota::per_day(1)), Key::new("all")));
    ask(&layer, get()).await;
    let denied = ask(&layer, get()).await;
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert_eq!(
        problem(&text(denied).await),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "Try again in 1 day.",
            "violated-policies": [HOSTILE, "narrow"],
        })
    );
}

#[tokio::test]
async fn a_head_request_gets_the_headers_and_no_content() {
    let layer = layer(Policy::new("p", Quota::per_hour(1)));
    ask(&layer, get()).await;
    let to_get = ask(&layer, get()).await;
    let to_head = ask(&layer, Request::head("/").body(String::new()).unwrap()).await;
    assert_eq!(to_head.status(), 429);
    assert_eq!(to_head.headers()["content-type"], to_get.headers()["content-type"]);
    assert_eq!(to_head.headers()["ratelimit"], to_get.headers()["ratelimit"]);
    let length = text(to_get).await.len();
    assert_eq!(to_head.headers()["content-length"], length.to_string());
    assert_eq!(text(to_head).await, "");
}

#[tokio::test]
async fn a_cors_preflight_has_a_separate_quota_by_default() {
    let preflight = || {
        Request::options("/")
            .header("origin", "https://example.org")
            .header("access-control-request-method", "POST")
            .body(String::new())
            .unwrap()
    };
    let options = || Request::options("/").body(String::new()).unwrap();
    let layer = layer(Policy::new("p", Quota::per_hour(1)));
    ask(&layer, get()).await;
    assert_eq!(ask(&layer, preflight()).await.status(), 200);
    assert_eq!(ask(&layer, preflight()).await.status(), 429);
    assert_eq!(ask(&layer, options()).await.status(), 429);
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

#[tokio::test]
async fn a_denied_request_is_charged_nothing() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock));
    let (narrow, wide) = (Policy::new("narrow", Quota::per_hour(1)), Policy::new("wide", Quota::per_hour(9)));
    let layer = RateLimitLayer::new(limiter.clone(), narrow, Key::new("all"))
        .rule(Rule::new(wide.clone(), Key::new("all")));
    for _ in 0..5 {
        ask(&layer, get()).await;
    }
    assert_eq!(limiter.peek(&wide, &Key::new("all"), 0).await.unwrap().outcomes()[0].remaining(), 8);
}

#[tokio::test]
async fn a_mapper_decides_the_body_and_the_layer_adds_what_must_hold() {
    let json = |rejection: &Rejection, request: &Parts| {
        Response::builder()
            .status(rejection.status())
            .header("content-type", "application/json")
            .body(format!(r#"{{"path":"{}"}}"#, request.uri.path()))
            .unwrap()
    };
    let layer = layer(Policy::new("p", Quota::per_minute(1))).response(json);
    ask(&layer, get()).await;
    let denied = ask_and_read(&layer, get()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["content-type"], "application/json");
    assert_eq!(denied.headers()["retry-after"], "60");
    assert_eq!(denied.headers()["cache-control"], "no-store");
    assert_eq!(denied.headers()["ratelimit"], r#""p";r=0;t=60"#);
    assert!(denied.extensions().get::<Decision>().is_some_and(|decision| !decision.is_admitted()));
    assert_eq!(text(denied).await, r#"{"path":"/"}"#);

    // Headers that the mapper sets are not changed.
    let layer = layer.response(|_: &Rejection, _: &Parts| {
        let fields = [("retry-after", "7"), ("cache-control", "private")];
        let response = fields.iter().fold(Response::builder().status(503), |all, (n, v)| all.header(*n, *v));
        response.body(String::new()).unwrap()
    });
    let denied = ask(&layer, get()).await;
    assert_eq!(denied.headers()["retry-after"], "7");
    assert_eq!(denied.headers()["cache-control"], "private");
}

#[tokio::test]
async fn a_mapper_that_sets_no_status_does_not_answer_with_a_success() {
    let layer = layer(Policy::new("p", Quota::per_minute(1)))
        .response(|rejection: &Rejection, _: &Parts| axum::Json(json!({ "error": rejection.to_string() })));
    ask(&layer, get()).await;
    let denied = ask(&layer, get()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["content-type"], "application/json");
    assert_eq!(problem(&text(denied).await)["error"], "over the rate limit; try again in 1 minute");
}

#[tokio::test]
async fn a_layer_that_only_reports_admits_and_marks_in_extension_and_header() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let narrow = Policy::new("narrow", Quota::per_hour(1));
    let layer = RateLimitLayer::new(limiter.clone(), narrow, Key::new("all"))
        .rule(Rule::new(Policy::new("wide", Quota::per_hour(9)), Key::new("all")))
        .enforcement(Enforcement::ReportOnly);
    let seen = async |request: Request<String>| {
        let inner = tower::service_fn(|request: Request<String>| async move {
            let denied = Decision::from_extensions(request.extensions())
                .is_some_and(|decision| !decision.is_admitted());
            let field = request.headers().get("x-ratelimit-exceeded").map(|v| v.to_str().unwrap().to_owned());
            Ok::<_, std::convert::Infallible>(Response::new(format!("{denied} {field:?}")))
        });
        let Ok(response) = tower::ServiceExt::oneshot(tower::Layer::layer(&layer, inner), request).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("retry-after"));
        let field = response.headers().get("x-ratelimit-exceeded").map(|v| v.to_str().unwrap().to_owned());
        (field, text(response).await)
    };
    // A value that the client sends in this header is replaced.
    let forged = Request::get("/").header("x-ratelimit-exceeded", "\"forged\"").body(String::new()).unwrap();
    assert_eq!(seen(forged).await, (None, "false None".into()));
    let mark = Some(r#""narrow""#.to_owned());
    assert_eq!(seen(get()).await, (mark.clone(), format!("true {mark:?}")));
    let wide = Policy::new("wide", Quota::per_hour(9));
    assert_eq!(limiter.peek(&wide, &Key::new("all"), 0).await.unwrap().remaining(), Some(8));
    // A missing identity is not rejected, but a blocklist is enforced.
    let strict = RateLimitLayer::new(limiter, wide, Header::new("x-api-key"))
        .enforcement(Enforcement::ReportOnly)
        .block_if(|_| true);
    assert_eq!(ask(&strict, get()).await.status(), 429);
}

#[tokio::test]
async fn the_mark_of_a_layer_that_only_reports_lists_all_policies_that_denied_as_strings() {
    let layer = layer(Policy::new(HOSTILE, Quota::per_hour(1)))
        .rule(Rule::new(Policy::new("wide", Quota::per_hour(9)), Key::new("all")))
        .rule(Rule::new(Policy::new("narrow", Quota::per_day(1)), Key::new("all")))
        .enforcement(Enforcement::ReportOnly);
    ask(&layer, get()).await;
    let marked = ask(&layer, get()).await;
    let names = items(marked.headers(), "x-ratelimit-exceeded");
    assert_eq!(names, [(HOSTILE.to_owned(), Vec::new()), ("narrow".to_owned(), Vec::new())]);
}

#[tokio::test]
async fn a_layer_that_only_reports_admits_undecided_requests_without_a_mark() {
    let policy = || Policy::new("p", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    let memory = MemoryStore::new;
    let later = |_: &Parts| {
        Answer::<Key>::pending(async {
            Err(Error::new(ErrorKind::MissingIdentity, "the request shows no identity"))
        })
    };
    let rows = [
        ("no header", RateLimitLayer::new(memory(), policy(), Header::new("x-api-key"))),
        ("no connect info", RateLimitLayer::new(memory(), policy(), PeerIp::new())),
        ("no identity, after a while", RateLimitLayer::new(memory(), policy(), later)),
        ("store down, closed", RateLimitLayer::new(Down, policy(), Key::new("all"))),
    ];
    for (name, layer) in rows {
        let seen = |request: Request<String>| async move {
            let decided =
                Decision::from_extensions(request.extensions()).is_some_and(|one| one.binding().is_some());
            let marked = request.headers().contains_key("x-ratelimit-exceeded");
            Ok::<_, std::convert::Infallible>(Response::new(format!("{decided} {marked}")))
        };
        let service =
            tower::Layer::layer(&layer.enforcement(Enforcement::ReportOnly), tower::service_fn(seen));
        let forged = Request::get("/").header("x-ratelimit-exceeded", "\"p\"").body(String::new()).unwrap();
        let Ok(response) = tower::ServiceExt::oneshot(service, forged).await;
        assert_eq!(response.status(), 200, "{name}");
        assert!(!response.headers().contains_key("x-ratelimit-exceeded"), "{name}");
        assert_eq!(text(response).await, "false false", "{name}");
    }
}

#[tokio::test]
async fn two_layers_that_only_report_keep_each_others_mark() {
    let reporting =
        |name, limit| layer(Policy::new(name, Quota::per_hour(limit))).enforcement(Enforcement::ReportOnly);
    for (outer, inner) in [(1, 9), (9, 1), (1, 1)] {
        let (outer_layer, inner_layer) = (reporting("outer", outer), reporting("inner", inner));
        let both = async || {
            let service = tower::service_fn(|request: Request<String>| async move {
                let field = request.headers().get("x-ratelimit-exceeded").cloned();
                Ok::<_, std::convert::Infallible>(Response::new(format!("{field:?}")))
            });
            let service = tower::Layer::layer(&outer_layer, tower::Layer::layer(&inner_layer, service));
            let Ok(response) = tower::ServiceExt::oneshot(service, get()).await;
            response
        };
        both().await;
        let response = both().await;
        let marks = response.headers().get_all("x-ratelimit-exceeded").iter().count();
        assert_eq!(marks, usize::from(outer == 1) + usize::from(inner == 1));
        let seen = text(response).await;
        assert_eq!((seen.contains("outer"), seen.contains("inner")), (outer == 1, inner == 1), "{seen}");
    }
}

#[tokio::test]
async fn a_request_keeps_the_marks_of_all_layers_that_it_passed() {
    let limits = |name, limit| layer(Policy::new(name, Quota::per_hour(limit)));
    let reports = |name, limit| limits(name, limit).enforcement(Enforcement::ReportOnly);
    let undecided = Policy::new("middle", Quota::per_hour(1)).failure_mode(FailureMode::Open);
    let undecided = RateLimitLayer::new(Down, undecided, Key::new("all"));
    let two = r#"Some("\"outer\", \"inner\"")"#;
    // With a layer between them that enforces, and one that cannot decide.
    let rows = [
        ("report only", reports("middle", 9), two),
        ("report only and over", reports("middle", 1), r#"Some("\"outer\", \"middle\", \"inner\"")"#),
        ("enforced", limits("middle", 9), two),
        ("undecided", undecided.enforcement(Enforcement::ReportOnly), two),
    ];
    for (name, middle, expected) in rows {
        let (outer, inner) = (reports("outer", 1), reports("inner", 1));
        let service = tower::ServiceBuilder::new().layer(outer).layer(middle).layer(inner).service_fn(
            |request: Request<String>| async move {
                let field =
                    request.headers().get("x-ratelimit-exceeded").map(|v| v.to_str().unwrap().to_owned());
                Ok::<_, std::convert::Infallible>(Response::new(format!("{field:?}")))
            },
        );
        let mut seen = String::new();
        for _ in 0..2 {
            let Ok(response) = tower::ServiceExt::oneshot(service.clone(), get()).await;
            seen = text(response).await;
        }
        assert_eq!(seen, expected, "{name}");
    }
}

#[tokio::test]
async fn a_layer_that_enforces_leaves_the_mark_of_a_gateway_alone() {
    let layer = layer(Policy::new("p", Quota::per_hour(2)));
    let service = tower::Layer::layer(
        &layer,
        tower::service_fn(|request: Request<String>| async move {
            Ok::<_, std::convert::Infallible>(Response::new(format!(
                "{:?}",
                request.headers().get("x-ratelimit-exceeded")
            )))
        }),
    );
    let request =
        Request::get("/").header("x-ratelimit-exceeded", "\"gateway\"").body(String::new()).unwrap();
    let Ok(response) = tower::ServiceExt::oneshot(service, request).await;
    assert!(text(response).await.contains("gateway"));
}

#[tokio::test]
async fn a_limit_without_headers_does_not_suppress_the_headers_of_an_outer_limit() {
    let api = |limit| layer(Policy::new("api", Quota::per_hour(limit)));
    let other = layer(Policy::new("b", Quota::per_hour(3)));
    let on_denials = RateLimitHeaders::default().on_rejections_only();
    let rows = [
        ("on", api(3), vec![r#""api";r=2;t=2400"#]),
        ("off", api(3).headers(RateLimitHeaders::off()), vec![r#""api";r=4;t=2880"#]),
        ("denials only", api(3).headers(on_denials), vec![r#""api";r=4;t=2880"#]),
        ("another name, off", other.headers(RateLimitHeaders::off()), vec![r#""api";r=4;t=2880"#]),
    ];
    for (name, inner, expected) in rows {
        let service = tower::service_fn(|_: Request<String>| async {
            Ok::<_, std::convert::Infallible>(Response::new(String::new()))
        });
        let service = tower::Layer::layer(&api(5), tower::Layer::layer(&inner, service));
        let Ok(response) = tower::ServiceExt::oneshot(service, get()).await;
        let fields: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
        assert_eq!(fields, expected, "{name}");
    }
}

#[tokio::test]
async fn the_t_of_a_fixed_window_is_its_rest() {
    let clock = ManualClock::new();
    let policy = Policy::new("p", Quota::per_hour(10)).algorithm(FixedWindow::anchored());
    let layer = RateLimitLayer::new(MemoryStore::with_clock(clock.clone()), policy.clone(), Key::new("all"));
    for (cost, seconds, expected) in [(7, 0, "r=3;t=3600"), (1, 600, "r=2;t=3000"), (1, 2_940, "r=1;t=60")] {
        clock.advance(Duration::from_secs(seconds));
        let response = ask(&layer.with_same_settings(costing(policy.clone(), cost)), get()).await;
        assert_eq!(response.headers()["ratelimit"], format!(r#""p";{expected}"#), "{seconds}");
    }
}

/// One step fills it, so it is a window. A bucket that needs more steps is not.
#[tokio::test]
async fn the_t_of_a_bucket_that_one_step_fills_is_the_rest_of_the_step() {
    let quota = Quota::per_minute(60).burst(10);
    for (step, expected) in [(10, "r=7;t=6"), (20, "r=7;t=16"), (5, "r=7;t=7")] {
        let clock = ManualClock::new();
        let algorithm = TokenBucket::new().refill_every(Duration::from_secs(step));
        let policy = Policy::new("p", quota).algorithm(algorithm);
        let layer =
            RateLimitLayer::new(MemoryStore::with_clock(clock.clone()), policy.clone(), Key::new("all"));
        ask(&layer.with_same_settings(costing(policy.clone(), 2)), get()).await;
        clock.advance(Duration::from_secs(4));
        let response = ask(&layer.with_same_settings(costing(policy, 1)), get()).await;
        assert_eq!(response.headers()["ratelimit"], format!(r#""p";{expected}"#), "{step}");
    }
}

fn next() -> RateLimitHeaders {
    RateLimitHeaders::new(Dialect::IetfNext)
}

/// An item as [`items`] returns it.
fn item(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    (name.to_owned(), parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect())
}

#[tokio::test]
async fn the_next_text_states_available_units_their_window_and_the_cost_of_the_request() {
    let layer = layer(Policy::new(HOSTILE, Quota::per_minute(5)))
        .rule(costing(Policy::new("wide", Quota::per_day(100)).algorithm(FixedWindow::anchored()), 3))
        .headers(next());
    let admitted = ask(&layer, get()).await;
    assert_eq!(
        items(admitted.headers(), "ratelimit-policy"),
        [item(HOSTILE, &[("q", 5), ("w", 60)]), item("wide", &[("q", 100), ("w", 86_400)])]
    );
    assert_eq!(
        items(admitted.headers(), "ratelimit"),
        [
            item(HOSTILE, &[("a", 4), ("w", 48), ("c", 1)]),
            item("wide", &[("a", 97), ("w", 86_400), ("c", 3)])
        ]
    );
    for _ in 0..4 {
        ask(&layer, get()).await;
    }
    let denied = ask(&layer, get()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "12");
    assert_eq!(denied.headers()["ratelimit-policy"], admitted.headers()["ratelimit-policy"]);
    assert_eq!(
        items(denied.headers(), "ratelimit"),
        // `Retry-After` is shorter than the window of "wide".
        [item(HOSTILE, &[("a", 0), ("w", 12), ("c", 1)]), item("wide", &[("a", 85), ("c", 3)])]
    );
}

#[tokio::test]
async fn the_next_text_leaves_out_a_window_where_no_number_would_be_right() {
    let hourly = || Policy::new("p", Quota::per_hour(5));
    let window = || hourly().algorithm(FixedWindow::anchored());
    let bytes = || hourly().quota_unit(QuotaUnit::ContentBytes);
    let slots = Policy::concurrency("p", 2);
    let short = Policy::new("p", Quota::new(4, Duration::from_millis(500)));
    let rows = [
        ("admitted", costing(hourly(), 2), r#""p";q=5;w=3600"#, r#""p";a=3;w=2160;c=2"#),
        ("free", costing(hourly(), 0), r#""p";q=5;w=3600"#, r#""p";a=5;w=3600;c=0"#),
        ("no window has begun", costing(window(), 0), r#""p";q=5;w=3600"#, r#""p";a=5;c=0"#),
        ("above the capacity", costing(hourly(), 6), r#""p";q=5;w=3600"#, r#""p";a=5;c=6"#),
        ("bytes", costing(bytes(), 4), r#""p";q=5;qu="content-bytes";w=3600"#, r#""p";a=1;w=720;c=4"#),
        (
            "tokens",
            costing(hourly(), 4).unit("tokens"),
            r#""p";q=5;qu="tokens";w=3600"#,
            r#""p";a=1;w=720;c=4"#,
        ),
        (
            "a unit with quotes",
            costing(hourly(), 4).unit("\"a\\"),
            r#""p";q=5;qu="\"a\\";w=3600"#,
            r#""p";a=1;w=720;c=4"#,
        ),
        (
            "a unit that no String can have",
            costing(hourly(), 4).unit("\u{20ac}"),
            r#""p";q=5;w=3600"#,
            r#""p";a=1;w=720;c=4"#,
        ),
        (
            "requests by name",
            costing(hourly(), 4).unit("requests"),
            r#""p";q=5;w=3600"#,
            r#""p";a=1;w=720;c=4"#,
        ),
        ("permits", costing(slots, 1), r#""p";q=2;qu="concurrent-requests""#, r#""p";a=1;c=1"#),
        ("below a second", costing(short, 1), r#""p";q=4"#, r#""p";a=3;w=1;c=1"#),
    ];
    for (name, rule, policy, limit) in rows {
        let store = MemoryStore::with_clock(ManualClock::new());
        let response = ask(&RateLimitLayer::with_rules(store, rule).headers(next()), get()).await;
        assert_eq!(response.headers()["ratelimit-policy"], policy, "{name}");
        assert_eq!(response.headers()["ratelimit"], limit, "{name}");
    }
    let costly = layer(hourly()).headers(next());
    ask(&costly, get()).await;
    let denied = ask(&costly.with_same_settings(costing(hourly(), 5)), get()).await;
    assert_eq!(denied.headers()["retry-after"], "720");
    assert_eq!(denied.headers()["ratelimit"], r#""p";a=4;c=5"#, "units are left");
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

#[tokio::test]
async fn the_dialect_of_each_layer_shows_in_its_items() {
    let of = |name: &str, dialect| {
        layer(Policy::new(name, Quota::per_hour(4))).headers(RateLimitHeaders::new(dialect))
    };
    let rows = [
        ((Dialect::Ietf, Dialect::IetfNext), [r#""inner";r=3;t=2700"#, r#""outer";a=3;w=2700;c=1"#]),
        ((Dialect::IetfNext, Dialect::Ietf), [r#""inner";a=3;w=2700;c=1"#, r#""outer";r=3;t=2700"#]),
        ((Dialect::IetfNext, Dialect::IetfNext), [r#""inner";a=3;w=2700;c=1"#, r#""outer";a=3;w=2700;c=1"#]),
    ];
    for ((inner, outer), expected) in rows {
        let service = tower::service_fn(|_: Request<String>| async {
            Ok::<_, std::convert::Infallible>(Response::new(String::new()))
        });
        let service = tower::Layer::layer(&of("inner", inner), service);
        let service = tower::Layer::layer(&of("outer", outer), service);
        let Ok(response) = tower::ServiceExt::oneshot(service, get()).await;
        let fields: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
        assert_eq!(fields, expected);
        let lines = response.headers().get_all("ratelimit").iter().map(|line| line.to_str().unwrap());
        let list: List = Parser::new(&lines.collect::<Vec<_>>().join(", ")).parse().unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(response.headers().get_all("ratelimit-policy").iter().count(), 2);
    }
}

#[tokio::test]
async fn the_next_text_is_appended_to_a_services_list_and_to_no_dictionary() {
    let rows = [
        ("limit=7, remaining=6, reset=5", vec!["limit=7, remaining=6, reset=5"]),
        (r#""theirs";a=1;w=5"#, vec![r#""theirs";a=1;w=5"#, r#""p";a=3;w=2700;c=1"#]),
        (r#""theirs";r=1;t=5"#, vec![r#""theirs";r=1;t=5"#, r#""p";a=3;w=2700;c=1"#]),
    ];
    for (theirs, expected) in rows {
        let inner = || {
            Response::builder()
                .header("ratelimit", theirs)
                .header("ratelimit-partition", r#""theirs";user_id"#)
                .body(String::new())
                .unwrap()
        };
        let layer = layer(Policy::new("p", Quota::per_hour(4))).headers(next().and(Dialect::LegacyDelta));
        let response = ask_for(&layer, get(), inner).await;
        let fields: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
        assert_eq!(fields, expected);
        let partitions: Vec<_> = response.headers().get_all("ratelimit-partition").iter().collect();
        assert_eq!(partitions, [r#""theirs";user_id"#]);
        assert_eq!(response.headers()["x-ratelimit-remaining"], "3");
    }
}

#[tokio::test]
async fn a_partition_key_of_the_next_text_is_the_same_keyed_hash_and_opaque() {
    let layer = layer(Policy::new("narrow", Quota::per_hour(1)))
        .rule(Rule::new(Policy::new("wide", Quota::per_day(9)), Key::new("user-4")))
        .headers(next().partition_key("0123456789abcdef"));
    for status in [200, 429] {
        let response = ask(&layer, get()).await;
        assert_eq!(response.status(), status);
        let text = response.headers()["ratelimit"].to_str().unwrap();
        let list: List = Parser::new(text).parse().unwrap();
        assert_eq!(list.serialize().as_deref(), Some(text));
        for entry in &list {
            let ListEntry::Item(item) = entry else { panic!("an inner list") };
            assert!(
                matches!(item.params.get("pk"), Some(BareItem::ByteSequence(bytes)) if bytes.len() == 12)
            );
            assert!(matches!(item.params.get("c"), Some(BareItem::Integer(_))));
        }
        assert!(text.ends_with("pk=:ppSViGGL/d/6iBFh:;c=1"), "{text}");
        // It would declare that clients can compute the `pk`.
        assert!(!response.headers().contains_key("ratelimit-partition"));
    }
}

#[tokio::test]
async fn the_next_text_stays_off_redirects_and_is_named_to_cors() {
    let layer = layer(Policy::new("p", Quota::per_hour(4))).headers(next());
    let moved = || Response::builder().status(302).body(String::new()).unwrap();
    assert!(!ask_for(&layer, get(), moved).await.headers().contains_key("ratelimit"));
    assert!(ask(&layer, get()).await.headers().contains_key("ratelimit"));
    assert_eq!(next().names(), ["ratelimit", "ratelimit-policy", "retry-after"]);
    assert_eq!(RateLimitHeaders::default(), RateLimitHeaders::new(Dialect::Ietf));
}
