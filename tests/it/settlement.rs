//! What a layer charges once the response is known: refunds, reservations and the bytes of bodies.

use std::{
    convert::Infallible,
    future::{Ready, pending},
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, routing};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use support::{Fake, PATIENT, day, eventually, http::serve, inner::text, on_redis, units_left};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{Notify, Semaphore},
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Key, Limiter, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer, Reservation, Rule,
    algorithm::LeakyBucket,
    layer::Rules,
    store::{Action, ManualClock},
};

use crate::stores::stores;

async fn becomes(limiter: &Limiter, policy: &Policy, expected: u64, name: &str) {
    let is = eventually(async || units_left(limiter, policy).await == expected).await;
    assert!(is, "{name}: {expected} must remain, {} do", units_left(limiter, policy).await);
}

fn rule(policy: &Policy) -> Rule {
    Rule::new(policy.clone(), Key::new("all"))
}

fn ruled(limiter: &Limiter, rule: Rule) -> RateLimitLayer {
    RateLimitLayer::with_rules(limiter.clone(), rule)
}

fn layer(limiter: &Limiter, policy: &Policy) -> RateLimitLayer {
    ruled(limiter, rule(policy))
}

/// Answers with the status in the body of the request.
async fn echo(request: Request<String>) -> Result<Response<String>, Infallible> {
    let status: u16 = request.body().parse().unwrap();
    Ok(Response::builder().status(status).body(String::new()).unwrap())
}

#[tokio::test]
async fn only_responses_that_count_are_charged() {
    for (name, limiter) in stores("settled-only-responses-count").await {
        let policy = day("failures", 2);
        let rule = rule(&policy).count_if(|response| response.status == StatusCode::UNAUTHORIZED);
        let service = ruled(&limiter, rule).layer(service_fn(echo));
        let mut remaining = Vec::new();
        for (asked, expected) in
            [("200", 200), ("200", 200), ("401", 401), ("500", 500), ("200", 200), ("401", 401), ("200", 429)]
        {
            let response = service.clone().oneshot(Request::new(asked.into())).await.unwrap();
            assert_eq!(response.status().as_u16(), expected, "{name}");
            let header = response.headers()["ratelimit"].to_str().unwrap();
            remaining.push(header.split(';').nth(1).unwrap().to_owned());
        }
        // The refund is made before the response is sent, which shows it.
        assert_eq!(remaining, ["r=2", "r=2", "r=1", "r=1", "r=1", "r=0", "r=0"], "{name}");
        assert_eq!(units_left(&limiter, &policy).await, 0, "{name}");
    }
}

/// A table in which each rule has its own, and policies that are chosen per request.
#[tokio::test]
async fn a_rule_counts_only_the_responses_that_count_for_it() {
    for (name, limiter) in stores("settled-rule-counts-only").await {
        let [all, failed, created, shared] = ["all", "failed", "created", "shared"].map(|name| day(name, 9));
        let chosen = created.clone();
        let chosen = PolicySource::per_request(move |_, _| chosen.clone());
        let rules = Rules::new()
            .always(rule(&all))
            .route("/a", rule(&failed).count_if(|response| response.status == StatusCode::UNAUTHORIZED))
            .route("/a", Rule::new(chosen, Key::new("all")).count_if(|response| response.status == 201))
            // The same policy on two routes, counted in two ways.
            .route("/b", rule(&shared).count_if(|_| false))
            .route("/c", rule(&shared));
        let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
        let service = layer.layer(service_fn(echo));
        for (path, status, expected) in [
            ("/a", "200", [8, 9, 9, 9]),
            ("/a", "401", [7, 8, 9, 9]),
            ("/a", "201", [6, 8, 8, 9]),
            ("/b", "200", [5, 8, 8, 9]),
            ("/c", "200", [4, 8, 8, 8]),
            ("/", "401", [3, 8, 8, 8]),
        ] {
            let request = Request::post(path).body(status.to_owned()).unwrap();
            service.clone().oneshot(request).await.unwrap();
            let mut remaining = Vec::new();
            for policy in [&all, &failed, &created, &shared] {
                remaining.push(units_left(&limiter, policy).await);
            }
            assert_eq!(remaining, expected, "{name}: {path} {status}");
        }
        // Without a response, only what needs one is refunded.
        let fails = service_fn(|_: Request<String>| async { Err::<Response<String>, _>("failed") });
        layer.layer(fails).oneshot(Request::post("/a").body(String::new()).unwrap()).await.unwrap_err();
        becomes(&limiter, &all, 2, name).await;
        becomes(&limiter, &failed, 8, name).await;
        becomes(&limiter, &created, 8, name).await;
    }
}

#[tokio::test]
async fn clones_of_a_rule_are_charged_by_their_own_functions() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = day("shared", 100);
    let base = rule(&policy);
    let rules = Rules::new()
        .route("/two", base.clone().cost(|_| 2))
        .route("/five", base.clone().cost(|_| 5))
        .route("/uncounted", base.count_if(|_| false));
    let service = RateLimitLayer::with_rules(limiter.clone(), rules).layer(service_fn(echo));
    for (path, left) in [("/two", 98), ("/five", 93), ("/uncounted", 93)] {
        service.clone().oneshot(Request::post(path).body("200".to_owned()).unwrap()).await.unwrap();
        assert_eq!(units_left(&limiter, &policy).await, left, "{path}");
    }
}

/// The policies have the same name, as two plans of a database may, and different keys.
#[tokio::test]
async fn of_two_rules_that_choose_their_policies_each_counts_by_its_own_function() {
    for (name, limiter) in stores("settled-two-rules-choose").await {
        let plan = day("plan", 9);
        let chosen = |key: &'static str| {
            let plan = plan.clone();
            Rule::new(PolicySource::per_request(move |_, _| Some(plan.clone())), Key::new(key))
        };
        let errors = chosen("errors").count_if(|response| response.status.is_client_error());
        let layer = RateLimitLayer::with_rules(
            limiter.clone(),
            Rules::new().always(chosen("requests")).always(errors),
        );
        for status in [200, 404, 200] {
            let service = layer.layer(service_fn(move |_: Request<String>| async move {
                Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap())
            }));
            service.oneshot(Request::new(String::new())).await.unwrap();
        }
        limiter.drain(PATIENT).await.unwrap();
        let left = async |key| limiter.peek(&plan, &Key::new(key), 0).await.unwrap().remaining();
        assert_eq!([left("requests").await, left("errors").await], [Some(6), Some(8)], "{name}");
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_during_its_delay_is_refunded() {
    for (name, limiter) in stores("settled-request-cancelled-during").await {
        let policy = Policy::new("queued", Quota::per_day(1))
            .algorithm(LeakyBucket::queue(Duration::from_secs(30 * 86_400)));
        let key = Key::new("all");
        assert!(!limiter.check(&policy, &key, 1).await.unwrap().verdict().is_denied());
        let before = units_left(&limiter, &policy).await;
        let mut service = layer(&limiter, &policy).refund_cancelled().layer(service_fn(echo));
        let waits = tokio::spawn(service.ready().await.unwrap().call(Request::new("200".into())));
        becomes(&limiter, &policy, before - 1, name).await;
        waits.abort();
        waits.await.unwrap_err();
        becomes(&limiter, &policy, before, name).await;
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_during_its_decision_is_refunded() {
    let (_server, limiter) = on_redis().await;
    for refunds in [false, true] {
        let policy = day(if refunds { "refunded" } else { "charged" }, 5);
        let layer = layer(&limiter, &policy);
        let layer = if refunds { layer.refund_cancelled() } else { layer };
        let mut service = layer.layer(service_fn(echo));
        let mut response = Box::pin(service.ready().await.unwrap().call(Request::new("200".into())));
        assert!(response.as_mut().now_or_never().is_none());
        becomes(&limiter, &policy, 4, "charged").await;
        drop(response);
        limiter.drain(PATIENT).await.unwrap();
        assert_eq!(units_left(&limiter, &policy).await, if refunds { 5 } else { 4 });
    }
}

#[tokio::test]
async fn an_estimate_cancelled_during_the_decision_is_refunded_under_or_refund_only() {
    let (_server, limiter) = on_redis().await;
    let (kept, refunded, plain) = (day("kept", 100), day("refunded", 100), day("plain", 100));
    let estimate = |policy: &Policy| rule(policy).cost(|_| 20);
    let layer = ruled(&limiter, estimate(&kept).reserve())
        .rule(estimate(&refunded).reserve_or_refund())
        .rule(estimate(&plain));
    // The last one denies, so nothing is charged, and nothing of another request may be refunded.
    let denied = layer.clone().rule(rule(&day("denies", 1)).cost(|_| 2));
    limiter.check(&refunded, &Key::new("all"), 20).await.unwrap();
    for (layer, [of_kept, of_refunded]) in [(layer, [80, 80]), (denied, [80, 80])] {
        let mut service = layer.layer(service_fn(echo));
        let mut response = Box::pin(service.ready().await.unwrap().call(Request::new("200".into())));
        assert!(response.as_mut().now_or_never().is_none());
        becomes(&limiter, &plain, 80, "charged").await;
        drop(response);
        limiter.drain(PATIENT).await.unwrap();
        let remaining = [units_left(&limiter, &kept).await, units_left(&limiter, &refunded).await];
        assert_eq!((remaining, units_left(&limiter, &plain).await), ([of_kept, of_refunded], 80));
    }
    // Of a request that one rule cannot identify, the charge under the others stays, or guesses would be free.
    let guess = ruled(&limiter, estimate(&refunded).reserve_or_refund())
        .rule(Rule::new(day("keys", 5), tower_ratelimit::Header::new("x-api-key")));
    let mut service = guess.layer(service_fn(echo));
    let mut response = Box::pin(service.ready().await.unwrap().call(Request::new("200".into())));
    assert!(response.as_mut().now_or_never().is_none());
    becomes(&limiter, &refunded, 60, "guessed").await;
    drop(response);
    limiter.drain(PATIENT).await.unwrap();
    assert_eq!(units_left(&limiter, &refunded).await, 60);
}

#[tokio::test(start_paused = true)]
async fn the_units_of_a_delayed_request_are_reserved() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let policy =
        Policy::new("queued", Quota::per_second(100)).algorithm(LeakyBucket::queue(Duration::from_secs(1)));
    assert!(limiter.check(&policy, &Key::new("all"), 1).await.unwrap().is_admitted());
    let before = units_left(&limiter, &policy).await;
    let service = ruled(&limiter, rule(&policy).reserve_or_refund()).layer(service_fn(echo));
    let response = service.oneshot(Request::new("200".into())).await.unwrap();
    assert_eq!(units_left(&limiter, &policy).await, before - 1);
    drop(response);
    assert_eq!(units_left(&limiter, &policy).await, before);
}

/// A service that is ready once, and then fails.
#[derive(Clone)]
struct FailsLater(Arc<AtomicBool>);

impl Service<Request<String>> for FailsLater {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(if self.0.swap(true, Ordering::Relaxed) { Err("failed") } else { Ok(()) })
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        unreachable!("it fails before its first call")
    }
}

#[tokio::test]
async fn a_request_whose_service_fails_after_the_delay_does_not_count() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock));
    let policy =
        Policy::new("queued", Quota::per_second(100)).algorithm(LeakyBucket::queue(Duration::from_secs(1)));
    limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
    let before = units_left(&limiter, &policy).await;
    let service = ruled(&limiter, rule(&policy).count_if(|_| true)).layer(FailsLater(Arc::default()));
    let failed = service.oneshot(Request::new(String::new())).await;
    assert_eq!(failed.unwrap_err(), "failed");
    becomes(&limiter, &policy, before, "memory").await;
}

#[tokio::test]
async fn the_refund_of_a_response_is_made_although_the_client_leaves() {
    let (store, refunds) = Fake::gated(MemoryStore::new(), &[Action::Refund]);
    let limiter = Limiter::new(store);
    let policy = day("failures", 5);
    let mut service = ruled(&limiter, rule(&policy).count_if(|_| false)).layer(service_fn(echo));
    let mut response = Box::pin(service.ready().await.unwrap().call(Request::new("200".into())));
    assert!(response.as_mut().now_or_never().is_none(), "the refund is under way");
    assert_eq!(units_left(&limiter, &policy).await, 4);
    drop(response);
    refunds.add_permits(1);
    becomes(&limiter, &policy, 5, "refunded").await;
}

#[tokio::test]
async fn a_response_that_does_not_count_ends_the_debits_of_its_reservation() {
    let (store, debits) = Fake::gated(MemoryStore::new(), &[Action::Debit]);
    let limiter = Limiter::new(store);
    let policy = day("tokens", 100);
    let handler = service_fn(async |request: Request<String>| {
        let reservation = Reservation::from_extensions(request.extensions()).unwrap();
        drop([20, 50].map(|units| reservation.extend_to(units)));
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let rule = rule(&policy).cost(|_| 10).reserve().count_if(|_| false);
    ruled(&limiter, rule).layer(handler).oneshot(Request::new(String::new())).await.unwrap();
    assert_eq!(units_left(&limiter, &policy).await, 100, "the estimate is refunded");
    // The debit that was under way is made, and no other one.
    debits.add_permits(1);
    becomes(&limiter, &policy, 90, "debited").await;
    debits.add_permits(1);
    limiter.drain(PATIENT).await.unwrap();
    assert_eq!(units_left(&limiter, &policy).await, 90);
}

type Download =
    StreamBody<futures_util::stream::BoxStream<'static, Result<http_body::Frame<Bytes>, Infallible>>>;

/// A body of this many parts of 100,000 bytes.
fn download(parts: usize) -> Download {
    let part = || Ok(http_body::Frame::data(Bytes::from(vec![0; 100_000])));
    StreamBody::new(Box::pin(futures_util::stream::iter((0..parts).map(move |_| part()))))
}

#[tokio::test]
async fn the_bytes_of_a_body_are_charged_as_they_are_sent() {
    for (name, limiter) in stores("settled-bytes-body-are").await {
        let policy = day("bytes", 1_000_000).max_debt(500_000);
        let built = ruled(&limiter, rule(&policy).response_bytes());
        let service = |parts| {
            let service = service_fn(move |_: Request<()>| async move {
                Ok::<_, Infallible>(Response::new(download(parts)))
            });
            built.layer(service)
        };
        let response = service(3).oneshot(Request::new(())).await.unwrap();
        assert_eq!(text(response).await.len(), 300_000, "{name}");
        becomes(&limiter, &policy, 700_000, name).await;

        // A client that leaves is charged what it was sent. Parts are charged before the end.
        let mut body = service(9).oneshot(Request::new(())).await.unwrap().into_body();
        for _ in 0..3 {
            assert!(body.frame().await.unwrap().is_ok());
        }
        becomes(&limiter, &policy, 400_000, name).await;
        assert!(body.frame().await.unwrap().is_ok());
        drop(body);
        becomes(&limiter, &policy, 300_000, name).await;

        // No body: the unit for the request stays charged.
        drop(service(0).oneshot(Request::new(())).await.unwrap());
        limiter.drain(PATIENT).await.unwrap();
        assert_eq!(units_left(&limiter, &policy).await, 299_999, "{name}");

        // A response beyond what remains is sent as a whole, and the debt is bounded.
        let response = service(7).oneshot(Request::new(())).await.unwrap();
        assert_eq!(text(response).await.len(), 700_000, "{name}");
        becomes(&limiter, &policy, 0, name).await;
        let denied = service(1).oneshot(Request::new(())).await.unwrap();
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS, "{name}");
        // 1,400,001 of 1,500,000 are used.
        let decision = limiter.peek(&policy, &Key::new("all"), 0).await.unwrap();
        let debited = limiter.debit(&decision, 1_000_000).await.unwrap();
        assert_eq!(debited.outcomes()[0].granted(), 99_999, "{name}");
    }
}

#[tokio::test]
async fn the_bytes_of_a_long_body_are_one_debit_for_each_256_kibibytes() {
    let store = Fake::default();
    let limiter = Limiter::new(store.clone());
    let built = ruled(&limiter, rule(&day("bytes", 1_000_000)).response_bytes());
    let service =
        built.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(download(9)))));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 900_000);
    limiter.drain(PATIENT).await.unwrap();
    // After 300,000, 600,000 and 900,000 bytes.
    assert_eq!(store.asked(Action::Debit).len(), 3);
}

#[tokio::test]
async fn a_permit_is_held_as_always_beside_a_reservation() {
    let policy = day("bytes", 1_000_000);
    let limiter = Limiter::new(MemoryStore::new());
    let permits = Policy::concurrency("permits", 1);
    let bytes = rule(&policy).response_bytes().count_if(|response| response.status.is_success());
    let built = ruled(&limiter, bytes)
        .rule(rule(&permits).count_if(|response| response.status.is_success()))
        .refund_cancelled();
    let service = built.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(vec![0; 10])))
    }));
    let first = service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), 429);
    drop(first);
    assert_eq!(service.oneshot(Request::new(())).await.unwrap().status(), StatusCode::OK);
}

/// A request of `/slow`.
#[derive(Default)]
struct Slow {
    runs: Notify,
    dropped: Notify,
}

struct Dropped(Arc<Slow>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.notify_one();
    }
}

/// An app whose requests end as their path says, behind `layer`.
fn endings(layer: RateLimitLayer, slow: &Arc<Slow>) -> Router {
    let slow = slow.clone();
    let slow = async move || {
        slow.runs.notify_one();
        let _dropped = Dropped(slow);
        pending::<String>().await
    };
    Router::new()
        .route("/slow", routing::get(slow))
        .route("/panic", routing::get(async || -> String { panic!("a handler that panics") }))
        .route("/empty", routing::get(async || StatusCode::NO_CONTENT))
        .route("/small", routing::get(async || "x".repeat(700)))
        .route("/large", routing::get(async || "x".repeat(50_000)))
        .layer(layer)
}

/// Sends a request over a new connection.
async fn send(server: SocketAddr, request: &str) -> TcpStream {
    let mut connection = TcpStream::connect(server).await.unwrap();
    let head = format!("{request} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
}

/// Sends a request to [`endings`]. Returns once it is over.
async fn end(server: SocketAddr, request: &str, slow: &Slow) {
    let mut connection = send(server, request).await;
    if request.ends_with("/slow") {
        // The client leaves while the handler works.
        slow.runs.notified().await;
        drop(connection);
        slow.dropped.notified().await;
    } else {
        connection.read_to_end(&mut Vec::new()).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_whose_bytes_are_charged_pays_the_larger_of_its_cost_and_its_bytes() {
    let rows = [
        ("GET /slow", 1_000),
        ("GET /panic", 1_000),
        ("HEAD /large", 1_000),
        ("GET /empty", 1_000),
        ("GET /small", 1_000),
        ("GET /large", 50_000),
    ];
    let mut charged = Vec::new();
    for (name, limiter) in stores("settled-request-whose-bytes").await {
        for (request, expected) in rows {
            let policy = day(&request.replace(['/', ' '], "-"), 1_000_000);
            let rule = rule(&policy).cost(|_| 1_000).response_bytes();
            let built = layer(&limiter, &day("requests", 100)).rule(rule);
            let slow = Arc::default();
            end(serve(endings(built, &slow)).await, request, &slow).await;
            limiter.drain(PATIENT).await.unwrap();
            let units = 1_000_000 - units_left(&limiter, &policy).await;
            charged.push((name, request, units, expected));
        }
    }
    assert!(charged.iter().all(|(_, _, units, expected)| units == expected), "{charged:?}");
}

#[tokio::test]
async fn refund_cancelled_refunds_no_request_whose_handler_panics() {
    let mut charged = Vec::new();
    for (name, limiter) in stores("settled-refund-cancelled-refunds").await {
        for (request, expected) in [("GET /slow", 0), ("GET /panic", 1), ("GET /small", 1)] {
            let policy = day(&request.replace(['/', ' '], "-"), 100);
            let slow = Arc::default();
            let app = endings(layer(&limiter, &policy).refund_cancelled(), &slow);
            end(serve(app).await, request, &slow).await;
            limiter.drain(PATIENT).await.unwrap();
            charged.push((name, request, 100 - units_left(&limiter, &policy).await, expected));
        }
        // A layer outside that catches the panic drops the request later.
        let policy = day("caught", 100);
        let panics = service_fn(async |_: Request<()>| -> Result<Response<String>, Infallible> {
            panic!("a handler that panics")
        });
        let service = layer(&limiter, &policy).refund_cancelled().layer(panics);
        let request = tokio::spawn(AssertUnwindSafe(service.oneshot(Request::new(()))).catch_unwind());
        assert!(request.await.unwrap().is_err());
        limiter.drain(PATIENT).await.unwrap();
        charged.push((name, "caught", 100 - units_left(&limiter, &policy).await, 1));
    }
    assert!(charged.iter().all(|(_, _, units, expected)| units == expected), "{charged:?}");
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_is_charged_what_it_was_sent() {
    /// A word of the stream for each permit.
    async fn stream(reservation: Reservation, words: Arc<Semaphore>) -> axum::body::Body {
        let parts = futures_util::stream::unfold(0, move |sent| {
            let (reservation, words) = (reservation.clone(), words.clone());
            async move {
                words.acquire().await.unwrap().forget();
                reservation.record(10 + sent + 1);
                Some((Ok::<_, Infallible>("word "), sent + 1))
            }
        });
        axum::body::Body::from_stream(parts)
    }

    for (name, limiter) in stores("settled-client-leaves-stream").await {
        for or_refund in [false, true] {
            let tokens = day(&format!("tokens {or_refund}"), 1_000);
            let rule = rule(&tokens).cost(|_| 100);
            let rule = if or_refund { rule.reserve_or_refund() } else { rule.reserve() };
            let built = layer(&limiter, &day("requests", 100)).rule(rule);
            let words = Arc::new(Semaphore::new(3));
            let handler = {
                let words = words.clone();
                async move |reservation: Reservation| stream(reservation, words).await
            };
            let app = Router::new().route("/", routing::get(handler).layer(built));
            let mut connection = send(serve(app).await, "GET /").await;
            let mut received = Vec::new();
            while received.windows(5).filter(|part| part == b"word ").count() < 3 {
                assert!(connection.read_buf(&mut received).await.unwrap() > 0);
            }
            assert_eq!(units_left(&limiter, &tokens).await, 900, "{name}");
            drop(connection);
            limiter.drain(PATIENT).await.unwrap();
            assert_eq!(units_left(&limiter, &tokens).await, 1_000 - 13, "{name}, {or_refund}");
        }
    }
}
