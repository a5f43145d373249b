//! The retries of a client after a denial, in every header dialect, and their budget. The clock is paused in all tests but
//! the last two.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, Request, Response, StatusCode};
use proptest::prelude::*;
use support::table::{self, rows};
use tokio::time::Instant;
use tower::{
    ServiceExt,
    retry::{Retry, budget::TpsBudget},
};
use tower_ratelimit_retry::RetryPolicy;

const FIRST: Duration = Duration::from_millis(100);

/// A policy without jitter: it waits exactly as long as the server says.
pub(crate) fn exact() -> RetryPolicy {
    RetryPolicy::new().jitter(0).backoff(FIRST, FIRST * 50).max_wait(Duration::from_secs(3_600))
}

fn paused<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) type Fields<'a> = &'a [(&'a str, &'a str)];

fn response(status: u16, fields: Fields<'_>) -> Response<()> {
    let response = fields.iter().fold(Response::builder().status(status), |response, (name, value)| {
        response.header(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap())
    });
    response.body(()).unwrap()
}

/// Sends a request to a server that denies `denials` times. The last status, and the wait before each retry.
async fn ask(
    policy: RetryPolicy,
    request: Request<String>,
    denials: usize,
    denial: (u16, Fields<'_>),
) -> (StatusCode, Vec<Duration>) {
    let denial = response(denial.0, denial.1);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let server = tower::service_fn(move |_: Request<String>| {
        let mut asked = log.lock().unwrap();
        asked.push(Instant::now());
        let answer = if asked.len() <= denials { denial.clone() } else { response(200, &[]) };
        async { Ok::<_, Infallible>(answer) }
    });
    let status = Retry::new(policy, server).oneshot(request).await.unwrap().status();
    let asked = asked.lock().unwrap();
    (status, asked.windows(2).map(|pair| pair[1] - pair[0]).collect())
}

fn request(method: &Method) -> Request<String> {
    Request::builder().method(method).uri("/").body(String::new()).unwrap()
}

/// What a client does after one denial.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Returns,
    Waits(Duration),
    BacksOff,
}
use Then::{BacksOff, Returns, Waits};

/// The wait of [`exact`] after a header that cannot be read: the cap of its backoff.
const UNCLEAR: Then = Waits(Duration::from_secs(5));

fn waits(seconds: u64) -> Then {
    Waits(Duration::from_secs(seconds))
}

#[track_caller]
fn check(name: &str, denied: StatusCode, status: StatusCode, waits: &[Duration], then: Then) {
    match then {
        Returns => assert_eq!((status, waits), (denied, &[][..]), "{name}"),
        Waits(wait) => {
            assert_eq!((status, waits.len()), (StatusCode::OK, 1), "{name}");
            let late = waits[0].checked_sub(wait);
            assert!(late.is_some_and(|late| late <= Duration::from_millis(2)), "{name}: {waits:?}");
        }
        BacksOff => {
            assert_eq!((status, waits.len()), (StatusCode::OK, 1), "{name}");
            assert!(waits[0] <= FIRST + Duration::from_millis(2), "{name}: {waits:?}");
        }
    }
}

/// Checks a row of a table in `tables`: name, method and status, what the client does, and the headers of the response,
/// which also has the headers `more`.
pub(crate) fn check_row<S: AsRef<str>>(row: &[S; 4], more: Fields<'_>) {
    let [name, sent, then, headers] = row.each_ref().map(AsRef::as_ref);
    let (method, denied) = sent.split_once(' ').unwrap();
    let then = match then {
        "returns" => Returns,
        "backs off" => BacksOff,
        "waits the longest" => UNCLEAR,
        _ => {
            let seconds = then.strip_prefix("waits ").and_then(|then| then.strip_suffix(" s")).unwrap();
            Waits(Duration::from_secs_f64(seconds.parse().unwrap()))
        }
    };
    let headers = table::headers(headers);
    let fields: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let (fields, denied) = ([&fields, more].concat(), denied.parse().unwrap());
    let request = request(&method.parse().unwrap());
    let (status, waits) = paused(ask(exact(), request, 1, (denied, &fields)));
    check(name, StatusCode::from_u16(denied).unwrap(), status, &waits, then);
}

#[test]
fn each_header_dialect_sets_the_wait() {
    for [name, then, headers] in rows(include_str!("tables/header-dialects.txt")) {
        check_row(&[&*name, "POST 429", &then, &headers], &[]);
    }
}

#[test]
fn only_denied_or_idempotent_requests_are_sent_again() {
    for row in rows(include_str!("tables/retried-requests.txt")) {
        check_row(&row, &[]);
    }
}

#[test]
fn a_grpc_denial_over_http_is_retried_if_it_has_a_hint() {
    for [name, then, headers] in rows(include_str!("tables/grpc-denials.txt")) {
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc-web"] {
            check_row(&[&*name, "POST 200", &then, &headers], &[("content-type", kind)]);
        }
    }
    let fields: Fields<'_> = &[("content-type", "text/plain"), ("grpc-status", "8"), ("retry-after", "7")];
    let (_, waits) = paused(ask(exact(), request(&Method::POST), 1, (200, fields)));
    assert!(waits.is_empty(), "another content type is not gRPC");
}

#[test]
fn a_cost_above_the_capacity_is_sent_once() {
    use tower::Layer;
    use tower_ratelimit::{
        Key, MemoryStore, Policy, Quota, RateLimitHeaders, RateLimitLayer, Rule, response::Dialect,
    };

    let store = MemoryStore::new();
    let policy = Policy::new("p", Quota::per_hour(5));
    for (content_type, dialect) in [
        ("text/plain", Dialect::Ietf),
        ("text/plain", Dialect::IetfNext),
        ("application/grpc", Dialect::Ietf),
    ] {
        let asked = Arc::new(Mutex::new(0));
        let count = asked.clone();
        let rule = Rule::new(policy.clone(), Key::new("all")).cost(move |_| {
            *count.lock().unwrap() += 1;
            6
        });
        let layer = RateLimitLayer::with_rules(store.clone(), rule).headers(RateLimitHeaders::new(dialect));
        let service =
            tower::service_fn(|_: Request<String>| async { Ok::<_, Infallible>(response(200, &[])) });
        let service = layer.layer(service.map_response(|response| response.map(|()| String::new())));
        let request = Request::post("/").header("content-type", content_type).body(String::new()).unwrap();
        paused(Retry::new(RetryPolicy::new(), service).oneshot(request)).unwrap();
        assert_eq!(*asked.lock().unwrap(), 1, "{content_type}, {dialect:?}");
    }
}

#[test]
fn a_wait_above_the_longest_is_not_waited_for() {
    let policy = exact().max_wait(Duration::from_secs(7));
    let rows: &[(&str, Fields<'_>, Then)] = &[
        ("Retry-After at it", &[("retry-after", "7")], waits(7)),
        ("Retry-After above it", &[("retry-after", "8")], Returns),
        ("RateLimit above it", &[("ratelimit", r#""a";r=0;t=8"#)], Returns),
        ("pushback at it", &[("grpc-retry-pushback-ms", "7000")], waits(7)),
        ("pushback above it", &[("grpc-retry-pushback-ms", "7001")], Returns),
    ];
    for (name, fields, then) in rows {
        let (status, waits) = paused(ask(policy.clone(), request(&Method::GET), 1, (429, fields)));
        check(name, StatusCode::TOO_MANY_REQUESTS, status, &waits, *then);
        let jittered = policy.clone().jitter(1_000);
        let (_, waits) = paused(ask(jittered, request(&Method::GET), 1, (429, fields)));
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(7_002)), "{name}, jitter: {waits:?}");
    }
    let patient = exact().max_wait(Duration::MAX);
    let most = Waits(Duration::from_millis(2_147_483_647));
    for (name, pushback, then) in [("31 bits", "2147483647", most), ("32 bits", "2147483648", Returns)] {
        let denial: (u16, Fields<'_>) = (429, &[("grpc-retry-pushback-ms", pushback)]);
        let (status, waits) = paused(ask(patient.clone(), request(&Method::GET), 1, denial));
        check(name, StatusCode::TOO_MANY_REQUESTS, status, &waits, then);
    }
    let short = exact().max_wait(Duration::from_millis(5)).max_retries(50);
    let (_, waits) = paused(ask(short, request(&Method::GET), 50, (429, &[])));
    assert_eq!(waits.len(), 50);
    assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(7)), "the backoff: {waits:?}");
}

#[test]
fn an_unreadable_header_means_a_wait_of_a_second_or_more_within_the_longest() {
    let rows = [
        ("the cap", RetryPolicy::new().jitter(0), waits(10)),
        ("the longest wait", RetryPolicy::new().jitter(0).max_wait(Duration::from_secs(3)), waits(3)),
        ("a short backoff", RetryPolicy::new().jitter(0).backoff(FIRST, FIRST), waits(1)),
        ("a longest wait below a second", RetryPolicy::new().jitter(0).max_wait(FIRST), Returns),
    ];
    for (name, policy, then) in rows {
        let (status, waits) =
            paused(ask(policy, request(&Method::GET), 1, (429, &[("retry-after", "soon")])));
        check(name, StatusCode::TOO_MANY_REQUESTS, status, &waits, then);
    }
}

#[test]
fn the_last_denial_is_returned_when_the_retries_are_used_up() {
    for (name, policy, retries) in [
        ("default", RetryPolicy::new(), 4),
        ("none", RetryPolicy::new().max_retries(0), 0),
        ("six", RetryPolicy::new().max_retries(6), 6),
    ] {
        let denial: (u16, Fields<'_>) = (429, &[("retry-after", "7")]);
        let (status, waits) = paused(ask(policy.clone(), request(&Method::GET), retries, denial));
        assert_eq!((status.as_u16(), waits.len()), (200, retries), "{name}");
        let (status, waits) = paused(ask(policy, request(&Method::GET), retries + 1, denial));
        assert_eq!((status.as_u16(), waits.len()), (429, retries), "{name}");
    }
}

#[test]
fn each_request_has_its_own_retries() {
    let service = Retry::new(
        RetryPolicy::new().max_retries(2),
        tower::service_fn(|asked: Request<Arc<Mutex<u32>>>| {
            *asked.body().lock().unwrap() += 1;
            async { Ok::<_, Infallible>(response(429, &[])) }
        }),
    );
    paused(async {
        for _ in 0..3 {
            let asked = Arc::new(Mutex::new(0));
            service.clone().oneshot(Request::new(asked.clone())).await.unwrap();
            assert_eq!(*asked.lock().unwrap(), 3);
        }
    });
}

#[test]
fn an_error_is_returned_immediately() {
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let server = tower::service_fn(move |_: Request<String>| {
        *count.lock().unwrap() += 1;
        async { Err::<Response<()>, _>("no connection") }
    });
    let result = paused(Retry::new(RetryPolicy::new(), server).oneshot(request(&Method::GET)));
    assert_eq!(result.unwrap_err(), "no connection");
    assert_eq!(*asked.lock().unwrap(), 1);
}

#[test]
fn the_request_is_sent_again_unchanged() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let server = tower::service_fn(move |request: Request<String>| {
        let (head, body) = request.into_parts();
        let extension = head.extensions.get::<u8>().copied();
        log.lock().unwrap().push((head.method, head.uri, head.version, head.headers, extension, body));
        async { Ok::<_, Infallible>(response(429, &[])) }
    });
    let request = Request::patch("http://host/path?query")
        .version(http::Version::HTTP_2)
        .header("accept", "a")
        .header("accept", "b")
        .extension(7_u8)
        .body("body".to_owned())
        .unwrap();
    paused(Retry::new(RetryPolicy::new(), server).oneshot(request)).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().all(|again| *again == seen[0]));
    assert_eq!(seen[0].3.get_all("accept").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((seen[0].4, seen[0].5.as_str()), (Some(7), "body"));
}

#[test]
fn the_backoff_doubles_to_its_cap_and_is_spread_from_zero() {
    let policy = RetryPolicy::new()
        .backoff(Duration::from_millis(100), Duration::from_secs(1))
        .max_retries(8)
        .budget(None);
    let bounds = [100, 200, 400, 800, 1_000, 1_000, 1_000, 1_000].map(Duration::from_millis);
    let mut longest = [Duration::ZERO; 8];
    let mut shortest = [Duration::MAX; 8];
    for _ in 0..200 {
        let (_, waits) = paused(ask(policy.clone(), request(&Method::GET), 8, (429, &[])));
        for (i, wait) in waits.into_iter().enumerate() {
            longest[i] = longest[i].max(wait);
            shortest[i] = shortest[i].min(wait);
        }
    }
    for (i, bound) in bounds.into_iter().enumerate() {
        assert!(longest[i] <= bound + Duration::from_millis(2), "retry {i}: {:?}", longest[i]);
        // The probability that all of 200 draws are on one side of these bounds is one in a billion.
        assert!(longest[i] > bound.mul_f64(0.85), "retry {i}: {:?}", longest[i]);
        assert!(shortest[i] < bound.mul_f64(0.15), "retry {i}: {:?}", shortest[i]);
    }
}

#[test]
fn an_empty_backoff_panics() {
    for (first, cap) in [(0, 5), (0, 0), (6, 5)] {
        let backoff = || RetryPolicy::new().backoff(Duration::from_secs(first), Duration::from_secs(cap));
        assert!(std::panic::catch_unwind(backoff).is_err(), "{first} {cap}");
    }
}

#[test]
fn no_setting_overflows() {
    for (name, fields) in [("said", &[("retry-after", "18446744073709551615")][..]), ("unsaid", &[])] {
        let mut policy = RetryPolicy::new()
            .max_wait(Duration::MAX)
            .backoff(Duration::MAX, Duration::MAX)
            .jitter(u32::MAX)
            .max_retries(u32::MAX)
            .budget(None);
        let mut request = request(&Method::GET);
        let mut answer = Ok::<_, Infallible>(response(429, fields));
        paused(async {
            for _ in 0..200 {
                let wait = tower::retry::Policy::retry(&mut policy, &mut request, &mut answer);
                assert!(wait.is_some(), "{name}");
            }
        });
    }
}

#[test]
fn clients_with_the_same_wait_do_not_retry_at_the_same_time() {
    let minimum = Duration::from_secs(100);
    let mut waits: Vec<_> = (0..50)
        .flat_map(|_| {
            let denial: (u16, Fields<'_>) = (429, &[("ratelimit", r#""a";r=0;t=100"#)]);
            paused(ask(RetryPolicy::new().max_wait(minimum * 2), request(&Method::GET), 1, denial)).1
        })
        .collect();
    waits.sort();
    assert!(waits[0] < minimum.mul_f64(1.03) && waits[49] > minimum.mul_f64(1.07), "{waits:?}");
    waits.dedup();
    assert!(waits.len() > 40, "{waits:?}");
}

/// The statuses of requests sent one after the other, and the number of attempts, to a server that denies those with the
/// body `deny`.
async fn ask_in_turn(policies: &[RetryPolicy], bodies: &[&str]) -> (Vec<u16>, usize) {
    let attempts = Arc::new(Mutex::new(0));
    let count = attempts.clone();
    let server = tower::service_fn(move |request: Request<String>| {
        *count.lock().unwrap() += 1;
        let fails = request.body() == "fail";
        let answer = response(if request.body() == "deny" { 429 } else { 200 }, &[]);
        async move { if fails { Err("no connection") } else { Ok(answer) } }
    });
    let mut statuses = Vec::new();
    for (i, body) in bodies.iter().enumerate() {
        let client = Retry::new(policies[i % policies.len()].clone(), server.clone());
        let result = client.oneshot(Request::new((*body).to_owned())).await;
        statuses.push(result.map_or(0, |response| response.status().as_u16()));
    }
    let attempts = *attempts.lock().unwrap();
    (statuses, attempts)
}

#[test]
fn while_a_server_denies_all_retries_are_a_fifth_of_the_requests_and_ten_a_second() {
    // All of it takes less than ten seconds: 1000 requests, 100 retries, and 200 more for the requests.
    let short = |policy: RetryPolicy| policy.backoff(Duration::from_micros(1), Duration::from_micros(1));
    let policy = short(RetryPolicy::new());
    let clones = [policy.clone(), policy];
    let (statuses, attempts) = paused(ask_in_turn(&clones, &["deny"; 1_000]));
    assert_eq!(statuses, [429; 1_000]);
    assert_eq!(attempts, 1_300, "the clones of a policy share its budget");

    let (_, attempts) = paused(ask_in_turn(&[short(RetryPolicy::new().budget(None))], &["deny"; 1_000]));
    assert_eq!(attempts, 5_000, "no budget");
}

#[test]
fn each_request_counts_once_for_the_budget_with_any_response() {
    let rows: &[(&str, &[&str], usize)] = &[
        ("too few requests", &["ok", "ok", "ok", "deny"], 0),
        ("the fifth request", &["ok", "ok", "ok", "ok", "deny"], 1),
        ("after errors", &["fail", "fail", "ok", "ok", "deny"], 1),
        ("after denials", &["deny"; 5], 1),
        ("retries do not count", &["deny"; 9], 1),
        ("ten requests", &["ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "deny"], 2),
    ];
    for (name, bodies, retries) in rows {
        let policy = RetryPolicy::new().budget(TpsBudget::new(Duration::from_secs(10), 0, 0.2));
        let (_, attempts) = paused(ask_in_turn(&[policy], bodies));
        assert_eq!(attempts, bodies.len() + retries, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn jitter_is_only_upwards_and_within_its_percent(seconds in 1_u64..100_000, percent in 0_u32..300) {
        let policy = RetryPolicy::new().max_wait(Duration::MAX).jitter(percent);
        let after = seconds.to_string();
        let fields: Fields<'_> = &[("retry-after", &after)];
        let (_, waits) = paused(ask(policy, request(&Method::GET), 4, (429, fields)));
        let minimum = Duration::from_secs(seconds);
        prop_assert_eq!(waits.len(), 4);
        for wait in waits {
            prop_assert!(wait >= minimum);
            prop_assert!(wait <= minimum + minimum * percent / 100 + Duration::from_millis(2));
        }
    }

    #[test]
    fn a_429_with_an_unreadable_header_is_not_retried_before_the_cap_of_the_backoff(
        name in prop::sample::select(vec![
            "retry-after", "retry-after-ms", "x-ms-retry-after-ms", "x-ratelimit-retry-after", "ratelimit",
            "ratelimit-reset", "x-ratelimit-reset", "x-ratelimit-reset-after", "x-ratelimit-reset-tokens",
            "anthropic-ratelimit-tokens-reset", "x-rate-limit-reset", "x-app-limit-24hour-reset",
        ]),
        // A `?` is in no form of a wait.
        before in r#"[0-9a-zA-Z=;:., +-]{0,20}"#,
        after in r#"[0-9a-zA-Z=;:., +-]{0,20}"#,
        more in prop::option::of(0_u64..20),
        remaining in prop::option::of(0_u64..2),
    ) {
        let text = format!("{before}?{after}");
        let more = more.map(|seconds| seconds.to_string());
        let remaining = remaining.map(|units| units.to_string());
        let mut fields = vec![(name, text.as_str())];
        fields.extend(more.as_ref().map(|seconds| (name, seconds.as_str())));
        fields.extend(remaining.as_ref().map(|units| ("x-ratelimit-remaining", units.as_str())));
        let (status, waits) = paused(ask(RetryPolicy::new(), request(&Method::POST), 1, (429, &fields)));
        // A readable part may ask for more than the longest wait: then the client gives up.
        let gives_up = status == StatusCode::TOO_MANY_REQUESTS && waits.is_empty();
        prop_assert!(status == StatusCode::OK || gives_up && text.contains(|c: char| c.is_ascii_digit()));
        prop_assert!(waits.iter().all(|wait| *wait >= Duration::from_secs(10)), "{:?}", waits);
    }

    #[test]
    fn no_header_value_panics_or_causes_too_long_a_wait(
        name in prop::sample::select(vec![
            "retry-after", "date", "ratelimit", "ratelimit-remaining", "ratelimit-reset",
            "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after-ms", "grpc-retry-pushback-ms",
            "grpc-status", "grpc-status-details-bin", "content-type",
        ]),
        value in prop_oneof![r#"[ -~]{0,40}"#, r#"["a=;:,0-9rt ()-]{0,40}"#, "[A-Za-z0-9+/]{0,120}"],
        grpc in any::<bool>(),
    ) {
        let mut fields = vec![(name, value.as_str())];
        if grpc {
            fields.extend([("content-type", "application/grpc"), ("grpc-status", "8")]);
        }
        let (_, waits) = paused(ask(RetryPolicy::new(), request(&Method::GET), 1, (429, &fields)));
        prop_assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(60_002)));
    }
}

mod grpc {
    use tonic::{Code, Status, metadata::MetadataMap};
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    fn with_info(code: Code, wait: Duration) -> Status {
        let mut details = ErrorDetails::with_quota_failure_violation("subject", "description");
        details.set_retry_info(Some(wait));
        Status::with_error_details(code, "busy", details)
    }

    fn with_metadata(code: Code, name: &'static str, value: &'static str) -> Status {
        let mut metadata = MetadataMap::new();
        metadata.insert(name, value.parse().unwrap());
        Status::with_metadata(code, "busy", metadata)
    }

    /// One detail of the type `name` which is laid out as a `RetryInfo`, with numbers of any size.
    fn with_detail(name: &str, seconds: u64, nanos: u64) -> Status {
        fn varint(mut number: u64) -> Vec<u8> {
            let mut bytes = Vec::new();
            while number >= 0x80 {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
            bytes
        }
        let message =
            |key: u8, bytes: &[u8]| [&[key << 3 | 2], &varint(bytes.len() as u64)[..], bytes].concat();
        let duration = [&[0x08], &varint(seconds)[..], &[0x10], &varint(nanos)[..]].concat();
        let url = message(1, format!("type.googleapis.com/{name}").as_bytes());
        let any = [url, message(2, &message(1, &duration))].concat();
        Status::with_details(Code::ResourceExhausted, "busy", message(3, &any).into())
    }

    fn with_details(details: &'static [u8]) -> Status {
        Status::with_details(Code::ResourceExhausted, "busy", bytes::Bytes::from_static(details))
    }

    /// Sends a request to a server that denies once.
    async fn ask(policy: RetryPolicy, denial: Status) -> (Result<(), Code>, Vec<Duration>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let server = tower::service_fn(move |request: tonic::Request<String>| {
            assert_eq!(request.metadata().get("authorization").unwrap(), "secret");
            assert_eq!(request.extensions().get::<u8>(), Some(&7));
            let mut asked = log.lock().unwrap();
            asked.push(Instant::now());
            let first = asked.len() == 1;
            let answer = if first { Err(denial.clone()) } else { Ok(tonic::Response::new(())) };
            assert_eq!(request.into_inner(), "message");
            async { answer }
        });
        let mut request = tonic::Request::new("message".to_owned());
        request.metadata_mut().insert("authorization", "secret".parse().unwrap());
        request.extensions_mut().insert(7_u8);
        let result = Retry::new(policy, server).oneshot(request).await;
        let asked = asked.lock().unwrap();
        let waits = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        (result.map(tonic::Response::into_inner).map_err(|status| status.code()), waits)
    }

    #[test]
    fn a_status_is_retried_if_it_has_a_hint() {
        use Code::{Internal, ResourceExhausted, Unavailable};
        let pushback = "grpc-retry-pushback-ms";
        let waited = Duration::from_millis(7_500);
        let rows = [
            ("8 with RetryInfo", with_info(ResourceExhausted, waited), Waits(waited)),
            ("14 with RetryInfo", with_info(Unavailable, waited), Waits(waited)),
            ("8 with RetryInfo of 0", with_info(ResourceExhausted, Duration::ZERO), Waits(FIRST)),
            ("8 with RetryInfo too long", with_info(ResourceExhausted, Duration::from_secs(9_999)), Returns),
            ("13 with RetryInfo", with_info(Internal, waited), Returns),
            ("8 without a hint", Status::resource_exhausted("too large"), Returns),
            ("14 without a hint", Status::unavailable("gone"), Returns),
            ("8 with pushback", with_metadata(ResourceExhausted, pushback, "7000"), waits(7)),
            ("14 with pushback", with_metadata(Unavailable, pushback, "7000"), waits(7)),
            ("8 with negative pushback", with_metadata(ResourceExhausted, pushback, "-1"), Returns),
            ("8 with bad pushback", with_metadata(ResourceExhausted, pushback, "soon"), Returns),
            ("8 with retry-after", with_metadata(ResourceExhausted, "retry-after", "7"), waits(7)),
            ("14 with retry-after", with_metadata(Unavailable, "retry-after", "7"), waits(7)),
            ("written by hand", with_detail("google.rpc.RetryInfo", 7, 999_999_999), waits(8)),
            ("a whole second of nanos", with_detail("google.rpc.RetryInfo", 7, 1_000_000_000), Returns),
            ("negative nanos", with_detail("google.rpc.RetryInfo", 7, -1_i64 as u64), Returns),
            ("negative seconds", with_detail("google.rpc.RetryInfo", -7_i64 as u64, 0), Returns),
            ("most seconds", with_detail("google.rpc.RetryInfo", i64::MAX as u64, 0), Returns),
            ("another detail", with_detail("google.rpc.DebugInfo", 7, 0), Returns),
            ("garbage", with_details(b"garbage"), Returns),
            ("all ones", with_details(&[0xff; 64]), Returns),
            ("a length beyond the end", with_details(&[0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f]), Returns),
            ("a group", with_details(&[0x1b, 0x1c]), Returns),
        ];
        for (name, denial, then) in rows {
            let denied = denial.code();
            let (result, waits) = paused(ask(exact(), denial));
            let status = if result.is_ok() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
            assert!(result.is_ok() || result == Err(denied), "{name}");
            check(name, StatusCode::TOO_MANY_REQUESTS, status, &waits, then);
        }
    }

    proptest! {
        #[test]
        fn details_are_read_as_they_were_written(seconds in 0_u64..3_600, millis in 1_u32..1_000) {
            let wait = Duration::new(seconds, millis * 1_000_000);
            let (result, waits) = paused(ask(exact(), with_info(Code::Unavailable, wait)));
            prop_assert_eq!(result, Ok(()));
            prop_assert!(waits[0] >= wait && waits[0] <= wait + Duration::from_millis(2));
        }

        #[test]
        fn damaged_details_do_not_panic(
            cut in 0_usize..200,
            at in 0_usize..200,
            byte in any::<u8>(),
            noise in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let whole = with_info(Code::ResourceExhausted, Duration::new(7, 500_000_000));
            let mut details = whole.details().to_vec();
            details.truncate(cut);
            if let Some(place) = details.get_mut(at) {
                *place = byte;
            }
            for details in [details, noise] {
                let denial = Status::with_details(Code::ResourceExhausted, "", details.into());
                let (_, waits) = paused(ask(exact(), denial));
                prop_assert!(waits.len() <= 1);
            }
        }
    }
}

#[tokio::test]
async fn all_requests_are_admitted_by_a_real_limit_with_the_policy_and_not_without() {
    use std::net::SocketAddr;

    use axum::{Router, routing::post};
    use tower_ratelimit::{Header, MemoryStore, Policy, Quota, RateLimitLayer};

    let policy = Policy::new("api", Quota::per_second(5).burst(1));
    let app = Router::new().route("/", post(async |body: String| body)).layer(RateLimitLayer::new(
        MemoryStore::new(),
        policy,
        Header::new("x-client"),
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let server = reqwest::Client::builder().no_proxy().build().unwrap();
    // Eight concurrent clients get the same wait. The jitter spreads their retries.
    let patient = RetryPolicy::new().max_retries(20).jitter(100);
    for (client, policy) in [("patient", patient), ("hasty", RetryPolicy::new().max_retries(0))] {
        let service = Retry::new(policy, server.clone());
        let mut requests = tokio::task::JoinSet::new();
        for i in 0..8 {
            let request = server
                .post(format!("http://{address}/"))
                .header("x-client", client)
                .body(format!("order {i}"))
                .build()
                .unwrap();
            let answer = service.clone().oneshot(request);
            requests.spawn(async move {
                let answer: reqwest::Response = answer.await.unwrap();
                let status = answer.status();
                let body = answer.text().await.unwrap();
                assert_eq!(body == format!("order {i}"), status == StatusCode::OK, "{body}");
                status
            });
        }
        let admitted = requests.join_all().await.into_iter().filter(StatusCode::is_success).count();
        match client {
            "patient" => assert_eq!(admitted, 8),
            _ => assert!((1..8).contains(&admitted), "{admitted}"),
        }
    }
}

#[tokio::test]
async fn a_request_of_reqwest_is_sent_again_unless_its_body_is_a_stream_or_it_fails() {
    use axum::{Router, extract::State, routing::any};

    let asked = Arc::new(Mutex::new(Vec::new()));
    let answer = async |State(asked): State<Arc<Mutex<Vec<String>>>>, body: String| {
        asked.lock().unwrap().push(body);
        (StatusCode::SERVICE_UNAVAILABLE, [("ratelimit", r#""a";r=0;t=0"#)])
    };
    let app = Router::new().route("/", any(answer)).with_state(asked.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: reqwest::Url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let backoff = Duration::from_millis(1);
    let policy = RetryPolicy::new().max_retries(2).backoff(backoff, backoff);
    let client = Retry::new(policy, reqwest::Client::builder().no_proxy().build().unwrap());
    let body = || reqwest::Body::from("body");
    let stream = reqwest::Body::wrap(http_body_util::Full::new(bytes::Bytes::from("body")));
    let rows = [
        ("an idempotent request", Method::PUT, body(), 3),
        ("another request", Method::POST, body(), 1),
        ("a stream", Method::PUT, stream, 1),
    ];
    for (name, method, body, attempts) in rows {
        let mut request = reqwest::Request::new(method, url.clone());
        *request.body_mut() = Some(body);
        let answer = client.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 503, "{name}");
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()), vec!["body"; attempts], "{name}");
    }
    let nowhere = reqwest::Request::new(Method::GET, "http://127.0.0.1:1/".parse().unwrap());
    assert!(client.oneshot(nowhere).await.unwrap_err().is_connect());
}

#[test]
fn a_client_gets_a_permit_a_second_after_its_denial_if_it_is_free_by_then() {
    use tower_ratelimit::{Key, MemoryStore, Policy, RateLimitLayer};

    let rows = [("HTTP", "text/plain"), ("gRPC", "application/grpc")];
    for (name, kind) in rows {
        paused(async {
            let exports = Policy::concurrency("exports", 1);
            let limiter = tower_ratelimit::Limiter::new(MemoryStore::new());
            let running = limiter.check(&exports, &Key::new("all"), 1).await.unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(500)).await;
                drop(running);
            });
            let layer = RateLimitLayer::new(limiter, exports, Key::new("all"));
            let server = tower::Layer::layer(
                &layer,
                tower::service_fn(async |_: Request<String>| {
                    Ok::<_, Infallible>(Response::new(String::from("exported")))
                }),
            );
            let started = Instant::now();
            let request = Request::post("/").header("content-type", kind).body(String::new()).unwrap();
            let response = Retry::new(exact(), server).oneshot(request).await.unwrap();
            assert!(response.status() == 200 && !response.headers().contains_key("grpc-status"), "{name}");
            let waited = started.elapsed();
            assert!((1_000..=1_100).contains(&waited.as_millis()), "{name}: {waited:?}");
        });
    }
}
