//! What a collector receives of decisions: names, kinds, attributes with their types, parents and links, as the guide to
//! tracing lists them.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod receiver;

use std::{collections::BTreeSet, future::poll_fn, pin::pin, process::Command, sync::LazyLock, task::Poll};

use example_observed::{
    SERVICE, app, call, greeter::greeter_client::GreeterClient, serve, telemetry, trace_headers,
};
use futures_util::future::join_all;
use http::{Request, StatusCode};
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::trace::SdkTracerProvider;
use receiver::{Receiver, attributes, tree};
use support::{RedisServer, day, eventually, settings, store};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use tower_ratelimit::{FailureMode, Key, Limiter, MemoryStore, RedisStore};
use tracing::{Instrument as _, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

const API_KEY: &str = "sk-0c27f4a1-of-alice";

/// A process has one subscriber, so the tests share it, and the runtime of its exporter.
struct Exported {
    runtime: Runtime,
    receiver: Receiver,
    provider: SdkTracerProvider,
}

static EXPORTED: LazyLock<Exported> = LazyLock::new(|| {
    let runtime = Runtime::new().unwrap();
    let receiver = Receiver::default();
    let provider = runtime.block_on(async {
        let address = receiver.listen().await;
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(format!("http://{address}"));
        telemetry(exporter.build().unwrap())
    });
    Exported { runtime, receiver, provider }
});

/// Runs a test. Nothing that any test has exported until its end has an identity or an API key.
fn run(test: impl AsyncFnOnce(&Exported)) {
    EXPORTED.runtime.block_on(test(&EXPORTED));
    EXPORTED.provider.force_flush().unwrap();
    for secret in [API_KEY, SERVICE] {
        assert!(!EXPORTED.receiver.has(secret), "{secret} is exported");
    }
    assert!(EXPORTED.receiver.has("ratelimit.decision"), "the search finds what is there");
}

impl Exported {
    /// The trace `id` with the `expected` number of spans. A server's span ends after its client has the response.
    async fn trace(&self, id: &[u8], expected: usize) -> Vec<Span> {
        let all = eventually(async || {
            self.provider.force_flush().unwrap();
            self.receiver.trace(id).len() >= expected
        });
        let all = all.await;
        let trace = self.receiver.trace(id);
        assert!(all && trace.len() == expected, "{expected} spans: {}", tree(&trace));
        trace
    }
}

fn trace_id(span: &tracing::Span) -> [u8; 16] {
    span.context().span().span_context().trace_id().to_bytes()
}

/// The status of one request of Alice, and the id of its trace, which has a root.
async fn ask(limiter: &Limiter) -> (StatusCode, [u8; 16]) {
    let address = serve(limiter).await.unwrap();
    let span = info_span!("test");
    let response = call(address, API_KEY).instrument(span.clone()).await.unwrap();
    (response.status(), trace_id(&span))
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[test]
fn a_request_through_two_limited_services_is_one_trace() {
    run(async |exported| {
        let server = RedisServer::start();
        let (status, id) = ask(&Limiter::new(store(&server).await)).await;
        assert_eq!(status, StatusCode::OK);
        let trace = exported.trace(&id, 9).await;
        let call = |indent: &str| {
            format!(
                r#"{indent}EVALSHA (client)
{indent}  . db.operation.name = "EVALSHA"
{indent}  . db.system.name = "redis"
{indent}  . ratelimit.batch.size = 1
{indent}  . server.address = "127.0.0.1"
{indent}  . server.port = {}
"#,
                server.port()
            )
        };
        let expected = format!(
            r#"test (internal)
  GET /hello (client)
    /hello (server)
      ratelimit.decision (internal)
        . ratelimit.action = "charge"
        . ratelimit.limit = 3
        . ratelimit.policy = "api"
        . ratelimit.remaining = 2
        . ratelimit.source = "store"
        . ratelimit.verdict = "admitted"
{}      greeter.Greeter/SayHello (client)
        /greeter.Greeter/SayHello (server)
          ratelimit.decision (internal)
            . ratelimit.action = "charge"
            . ratelimit.limit = 100
            . ratelimit.policy = "calls"
            . ratelimit.remaining = 99
            . ratelimit.source = "store"
            . ratelimit.verdict = "admitted"
{}"#,
            call("        "),
            call("            ")
        );
        let seen = tree(&trace);
        assert_eq!(seen, expected);
    });
}

#[test]
fn a_denied_request_has_its_wait_and_calls_no_further_service() {
    run(async |exported| {
        let server = RedisServer::start();
        let limiter = Limiter::new(store(&server).await);
        for _ in 0..3 {
            assert_eq!(ask(&limiter).await.0, StatusCode::OK);
        }
        for (source, calls) in [("store", 1), ("deny_cache", 0)] {
            let (status, id) = ask(&limiter).await;
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            let trace = exported.trace(&id, 4 + calls).await;
            assert_eq!(named(&trace, "EVALSHA").len(), calls);
            let decision = attributes(named(&trace, "ratelimit.decision")[0]);
            assert_eq!(decision["ratelimit.verdict"], r#""denied""#);
            assert_eq!(decision["ratelimit.source"], format!("{source:?}"));
            assert_eq!(decision["ratelimit.remaining"], "0");
            let wait = &decision["ratelimit.retry_after"];
            assert!(wait.contains('.') && (0.0..=20.0).contains(&wait.parse().unwrap()), "a double: {wait}");
        }
    });
}

#[test]
fn a_batch_is_a_trace_that_is_linked_with_the_traces_of_its_decisions() {
    run(async |exported| {
        let server = RedisServer::start();
        let limiter = Limiter::new(settings().pool_size(1).connect(&server.url()).await.unwrap());
        // The greeter is another store, so that only decisions of this service share calls.
        let greeter = example_observed::listen(example_observed::greeter(MemoryStore::new())).await.unwrap();
        let greeter = GreeterClient::connect(format!("http://{greeter}")).await.unwrap();
        let app = app(limiter, greeter);
        let ask = async |number: usize| {
            let span = info_span!("test");
            let id = trace_id(&span);
            let mut request = Request::get("/hello")
                .header("x-api-key", format!("{API_KEY}-{number}"))
                .body(String::new())
                .unwrap();
            request.headers_mut().extend(span.in_scope(trace_headers));
            let response = app.clone().oneshot(request).instrument(span).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            id
        };
        ask(0).await;
        // The only connection waits for an answer while the decisions collect.
        server.signal("STOP");
        let mut asked = pin!(join_all((1..=20).map(ask)));
        assert!(poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx).is_pending())).await);
        server.signal("CONT");

        let (mut decisions, mut batches) = (Vec::new(), BTreeSet::new());
        let asked = asked.await;
        exported.provider.force_flush().unwrap();
        for id in asked {
            let trace = exported.receiver.trace(&id);
            let decision = named(&trace, "ratelimit.decision")[0].clone();
            batches.extend(decision.links.iter().map(|link| link.trace_id.clone()));
            decisions.push(decision);
        }
        assert!(!batches.is_empty());
        for id in batches {
            let trace = exported.trace(&id, 1).await;
            let batch = &trace[0];
            assert_eq!((&*batch.name, batch.parent_span_id.len()), ("EVALSHA", 0));
            let of_batch = |decision: &&Span| {
                decision
                    .links
                    .iter()
                    .any(|link| link.span_id == batch.span_id && link.trace_id == batch.trace_id)
            };
            let expected: BTreeSet<_> =
                decisions.iter().filter(of_batch).map(|span| (&span.trace_id, &span.span_id)).collect();
            let linked: BTreeSet<_> =
                batch.links.iter().map(|link| (&link.trace_id, &link.span_id)).collect();
            assert_eq!(linked, expected);
            assert_eq!(attributes(batch)["ratelimit.batch.size"], expected.len().to_string());
        }
    });
}

#[test]
fn an_outage_has_the_failure_mode_and_the_kind_of_the_failure() {
    run(async |exported| {
        let down = RedisStore::builder().connect_lazy("redis://127.0.0.1:1").unwrap();
        let limiter = Limiter::new(down);
        let (status, id) = ask(&limiter).await;
        assert_eq!(status, StatusCode::OK);
        let trace = exported.trace(&id, 7).await;
        let decision = attributes(named(&trace, "ratelimit.decision")[0]);
        assert_eq!(decision["ratelimit.source"], r#""local""#);
        assert_eq!(decision["ratelimit.failure_mode"], r#""local""#);
        assert_eq!(decision["error.type"], r#""unreachable""#);

        let span = info_span!("test");
        let closed = day("closed", 10).failure_mode(FailureMode::Closed);
        let id = trace_id(&span);
        let check = async { limiter.check(&closed, &Key::new(API_KEY), 1).await };
        check.instrument(span).await.unwrap_err();
        let seen = tree(&exported.trace(&id, 2).await);
        assert!(seen.contains("  ratelimit.decision (internal, an error)\n"), "{seen}");
    });
}

#[test]
fn a_call_that_fails_is_an_error_in_the_trace_of_its_decision() {
    run(async |exported| {
        let mut server = RedisServer::start();
        let limiter = Limiter::new(store(&server).await);
        let (policy, key) = (day("plan", 10), Key::new(API_KEY));
        limiter.check(&policy, &key, 1).await.unwrap();
        server.signal("STOP");
        let span = info_span!("test");
        let id = trace_id(&span);
        let mut check = Box::pin(async { limiter.check(&policy, &key, 1).await }.instrument(span));
        assert!(poll_fn(|cx| Poll::Ready(check.as_mut().poll(cx).is_pending())).await);
        server.kill();
        assert!(check.await.unwrap().failure().is_some());
        let trace = exported.trace(&id, 3).await;
        let seen = tree(&trace);
        let kind = &attributes(named(&trace, "ratelimit.decision")[0])["error.type"];
        assert!(seen.contains("\n    EVALSHA (client, an error)\n"), "{seen}");
        assert_eq!(&attributes(named(&trace, "EVALSHA")[0])["error.type"], kind);
    });
}

#[test]
fn a_trace_that_its_client_does_not_sample_has_no_span_here() {
    run(async |exported| {
        let server = RedisServer::start();
        let limiter = Limiter::new(store(&server).await);
        let address = serve(&limiter).await.unwrap();
        let request = |flags: &str| {
            let (trace, url) = ("5f3c1e0b7a9d42688b0c6a1d2e3f4a5b", format!("http://{address}/hello"));
            let request = reqwest::Client::builder().no_proxy().build().unwrap().get(url);
            let parent = format!("00-{trace}-1a2b3c4d5e6f7081-{flags}");
            request.header("x-api-key", API_KEY).header("traceparent", parent).send()
        };
        assert_eq!(request("00").await.unwrap().status(), StatusCode::OK);
        assert_eq!(request("01").await.unwrap().status(), StatusCode::OK);
        let id = 0x5f3c_1e0b_7a9d_4268_8b0c_6a1d_2e3f_4a5b_u128.to_be_bytes();
        // Only the second request has spans.
        let trace = exported.trace(&id, 7).await;
        assert_eq!(attributes(named(&trace, "ratelimit.decision")[0])["ratelimit.remaining"], "1");
    });
}

#[test]
fn the_program_exports_what_it_prints() {
    run(async |exported| {
        let receiver = Receiver::default();
        let endpoint = format!("http://{}", receiver.listen().await);
        let mut program = Command::new(env!("CARGO_BIN_EXE_example-observed"));
        program.env_remove("REDIS_URL").env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        let output = exported.runtime.spawn_blocking(move || program.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = printed.lines().filter_map(|line| line.rsplit_once(' ')).collect();
        let statuses: Vec<_> = lines.iter().map(|(status, _)| &status[..3]).collect();
        assert_eq!(statuses, ["200", "200", "200", "429"]);
        for (status, id) in lines {
            let trace = receiver.trace(&u128::from_str_radix(id, 16).unwrap().to_be_bytes());
            let verdict = if status.starts_with("200") { r#""admitted""# } else { r#""denied""# };
            let decision = attributes(named(&trace, "ratelimit.decision")[0]);
            assert_eq!(decision["ratelimit.verdict"], verdict);
        }
        for secret in ["key-of-alice", SERVICE] {
            assert!(!receiver.has(secret), "{secret} is exported");
        }
    });
}

/// The guide shows the function that these tests run.
#[test]
fn the_guide_has_this_setup() {
    let guide = include_str!("../../../src/guide/tracing.md");
    let section = guide.split("## Export\n").nth(1).unwrap();
    let shown = section.split("```rust,ignore\n").nth(1).unwrap().split("```").next().unwrap();
    let unindented = |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    let code = unindented(include_str!("../src/lib.rs"));
    assert!(code.contains(&unindented(shown)), "{shown}");
}
