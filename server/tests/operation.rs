//! What operators rely on: readiness, health checks, stopping, pages, TLS, logs and traces.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::Stdio,
    time::Duration,
};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use http::Request;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use support::{RedisServer, certificates::Authority, eventually, http::Client};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tonic::{
    Response, Status,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::process::{Caller, Files, Server, brief, command, descriptor, prepared, with_hits};

const LIMITS: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
";

async fn health(address: SocketAddr, service: &str) -> &'static str {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let request = HealthCheckRequest { service: service.into() };
    HealthClient::new(channel).check(request).await.unwrap().into_inner().status().as_str_name()
}

#[tokio::test]
async fn it_is_ready_once_redis_was_seen_and_stays_so_in_an_outage() {
    let (files, mut redis) = (Files::new(LIMITS), RedisServer::start());
    let url = redis.url();
    redis.kill();
    let server = Server::begin(&files, &["--redis", &url], &[]);
    let names = ["", "envoy.service.ratelimit.v3.RateLimitService"];
    server.logs("not ready: ").await;
    assert_eq!(server.get("/ready").await.0, 503);
    for name in names {
        assert_eq!(health(server.calls, name).await, "NOT_SERVING");
    }
    // Calls are answered: the failure mode decides.
    let caller = server.caller().await;
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 2 of 3/YEAR");
    redis.restart();
    server.is_ready(true).await;
    for name in names {
        assert_eq!(health(server.calls, name).await, "SERVING");
    }
    redis.kill();
    assert_eq!(caller.admitted(5, &[descriptor("user=bob")]).await, 3);
    assert_eq!(server.get("/ready").await.0, 200);
    assert_eq!(health(server.calls, "").await, "SERVING");
}

#[tokio::test]
async fn policies_of_redis_are_waited_for_unless_a_file_has_their_defaults() {
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: p } }]\n");
    let policies = files.beside("policies.toml", "[[policies]]\nname = 'p'\nquota = '2/week'\n");
    let mut redis = RedisServer::start();
    redis.command::<i64>(&["HSET", "rl:policies", "p", r#"{"quota": "5/week"}"#]);
    redis.command::<String>(&["SAVE"]);
    let url = redis.url();
    redis.kill();
    let with_defaults = Server::begin(&files, &["--redis", &url, "--live", "--policies", &policies], &[]);
    assert_eq!(with_defaults.caller().await.ask(&[descriptor("user=ann")]).await, "OK: OK 1 of 2/WEEK");
}

// Stopping the server blocks a thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_charges_what_was_admitted_without_redis() {
    let (files, mut redis) = (Files::new(LIMITS), RedisServer::start());
    let mut server = Server::start(&files, &redis, &[]).await;
    redis.kill();
    assert_eq!(server.caller().await.ask(&[with_hits("user=ann", 2)]).await, "OK: OK 1 of 3/YEAR");
    redis.restart();
    assert_eq!(server.stop(), Some(0));
    let other = Server::start(&files, &redis, &[]).await;
    assert_eq!(other.caller().await.ask(&[descriptor("user=ann")]).await, "OK: OK 0 of 3/YEAR");
}

// Stopping the server blocks a thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_answers_the_calls_under_way_and_hands_over_what_an_outage_left() {
    let (files, redis) = (Files::new(LIMITS), RedisServer::start());
    let mut server = Server::start(&files, &redis, &["--deadline", "1s", "--shutdown-delay", "500ms"]).await;
    let caller = server.caller().await;
    redis.signal("STOP");
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 2 of 3/YEAR");
    redis.signal("CONT");
    server.signal("TERM");
    server.is_ready(false).await;
    // It goes on answering while callers leave.
    assert_eq!(health(server.calls, "").await, "NOT_SERVING");
    assert!(caller.ask(&[descriptor("user=ann")]).await.starts_with("OK: OK"));
    assert_eq!(server.stop(), Some(0));
    // What was admitted without Redis is charged there.
    let other = Server::start(&files, &redis, &[]).await;
    assert_eq!(other.caller().await.ask(&[with_hits("user=ann", 0)]).await, "OK: OK 1 of 3/YEAR");
}

#[tokio::test]
async fn operators_see_why_a_client_is_denied_and_change_it() {
    let (files, redis) = (Files::new(LIMITS), RedisServer::start());
    let server = Server::start(&files, &redis, &[]).await;
    let caller = server.caller().await;
    assert_eq!(caller.admitted(5, &[descriptor("user=ann")]).await, 3);
    let (status, why) = server.get("/limits/keys/ann").await;
    assert_eq!(status, 200);
    assert!(why.contains("\"verdict\":\"denied\"") && why.contains("\"policy\":\"d.user\""), "{why}");
    let (_, top) = server.get("/limits/denials/top").await;
    assert!(top.contains("\"denials\":2"), "{top}");
    // What the dashboard and the alerts query.
    let (_, page) = server.get("/metrics").await;
    for name in [
        "ratelimit_decisions_total{policy=\"d.user\"",
        "ratelimit_used_share_bucket",
        "ratelimit_decision_duration_seconds_bucket",
    ] {
        assert!(page.contains(name), "{name}: {page}");
    }
    let (_, page) = server.get("/limits/probe").await;
    assert!(page.contains("\"can_decide\":true"), "{page}");

    let url = |path: &str| format!("http://{}/limits{path}", server.operators);
    let reset = Request::delete(url("/policies/d.user/keys/ann")).body(String::new()).unwrap();
    assert_eq!(Client::new().send(reset).await.status(), 204);
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 2 of 3/YEAR");

    // The switch for all limits.
    let report = Request::put(url("/enforcement")).header("content-type", "application/json");
    let report = report.body(r#"{"enforcement": "report-only"}"#.to_owned()).unwrap();
    assert_eq!(Client::new().send(report).await.status(), 200);
    assert_eq!(caller.admitted(5, &[descriptor("user=ann")]).await, 5);
    let shadow = "ratelimit_server_hits_total{descriptor=\"d.user\",verdict=\"shadow\"}";
    assert_eq!(server.metric(shadow).await, Some(3.0));
    assert_eq!(server.metric("ratelimit_server_calls_total{code=\"over_limit\"}").await, Some(2.0));
    assert_eq!(server.metric("ratelimit_server_connections{listener=\"calls\"}").await, Some(1.0));
}

#[tokio::test]
async fn operators_on_other_hosts_need_a_token() {
    let files = Files::new(LIMITS);
    let rejected =
        command(&["serve", &files.path(), "--memory", "--operators", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(rejected.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&rejected.stderr).contains("set RATELIMIT_TOKEN"));
    let server = Server::begin(&files, &["--memory"], &[("RATELIMIT_TOKEN", "correct-horse")]);
    server.is_ready(true).await;
    let status = async |path: &str, token: Option<&str>| {
        let mut request = Request::get(format!("http://{}{path}", server.operators));
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        Client::new().send(request.body(String::new()).unwrap()).await.status().as_u16()
    };
    for path in ["/limits/policies", "/config"] {
        for wrong in [
            None,
            Some("Bearer "),
            Some("Bearer correct-hors"),
            Some("Bearer correct-horse-"),
            Some("correct-horse"),
        ] {
            assert_eq!(status(path, wrong).await, 401, "{path} {wrong:?}");
        }
        assert_eq!(status(path, Some("Bearer correct-horse")).await, 200, "{path}");
    }
    assert_eq!((status("/metrics", None).await, status("/ready", None).await), (200, 200));
}

#[tokio::test]
async fn options_that_do_not_fit_are_errors() {
    let files = Files::new(LIMITS);
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    let rows: [(&str, &[&str], i32, &str); 8] = [
        ("an empty token", &["--memory", "--token", ""], 2, "a value is required for '--token <TOKEN>'"),
        ("no connections", &["--memory", "--max-connections", "0"], 2, "0 is not in 1..=1048576"),
        ("no store", &[], 2, "name the server with --redis"),
        ("two stores", &["--memory", "--cluster"], 2, "cannot be used with"),
        ("several servers", &["--redis", "redis://a,redis://b"], 2, "add --cluster or --sentinel"),
        ("a key alone", &["--memory", "--key", "k.pem"], 2, "--certificate"),
        (
            "no certificate",
            &["--memory", "--certificate", "/nowhere.pem", "--key", "/nowhere.pem"],
            2,
            "/nowhere.pem: ",
        ),
        ("a busy address", &["--memory", "--listen", &busy], 1, "cannot listen on "),
    ];
    for (name, options, code, expected) in rows {
        let directory = files.path();
        let words = [&["serve", &directory, "--operators", "127.0.0.1:0"], options].concat();
        let ended = command(&words).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{name}: {said}");
        assert!(said.contains(expected), "{name}: {said}");
    }
}

#[tokio::test]
async fn callers_and_redis_can_use_tls_with_certificates_of_both_sides() {
    let authority = Authority::new();
    if !RedisServer::has_tls() {
        return eprintln!("this redis-server has no TLS");
    }
    let files = Files::new(LIMITS);
    let (_redis, url) = authority.serve(&[]);
    let [ca, certificate, key] =
        [("ca.pem", &authority.ca), ("server.pem", &authority.certificate), ("server.key", &authority.key)]
            .map(|(name, text)| files.beside(name, text));
    let options = [
        "--redis",
        &url,
        "--ca",
        &ca,
        "--client-certificate",
        &certificate,
        "--client-key",
        &key,
        "--certificate",
        &certificate,
        "--key",
        &key,
        "--client-ca",
        &ca,
        "--deadline",
        "20s",
    ];
    let server = Server::begin(&files, &options, &[]);
    server.is_ready(true).await;
    let endpoint = |identity: Option<Identity>| {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&authority.ca))
            .domain_name("localhost");
        let tls = identity.into_iter().fold(tls, ClientTlsConfig::identity);
        Endpoint::from_shared(format!("https://{}", server.calls)).unwrap().tls_config(tls).unwrap()
    };
    let ours = Identity::from_pem(&authority.certificate, &authority.key);
    let caller = Caller(RateLimitServiceClient::new(endpoint(Some(ours)).connect().await.unwrap()));
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 2 of 3/YEAR");
    let stranger = match endpoint(None).connect().await {
        Ok(channel) => Caller(RateLimitServiceClient::new(channel))
            .call(prepared(&[descriptor("user=ann")]))
            .await
            .is_err(),
        Err(_) => true,
    };
    assert!(stranger, "a caller without a certificate is answered");
}

#[tokio::test]
async fn more_connections_than_allowed_are_closed_and_others_are_served() {
    let files = Files::new(LIMITS);
    let server = Server::alone(&files, &["--max-connections", "2"]).await;
    let caller = server.caller().await;
    let mut silent = TcpStream::connect(server.calls).await.unwrap();
    assert!(
        eventually(
            async || server.metric("ratelimit_server_connections{listener=\"calls\"}").await == Some(2.0)
        )
        .await
    );
    let mut third = TcpStream::connect(server.calls).await.unwrap();
    assert_eq!(third.read(&mut [0; 9]).await.unwrap_or(0), 0, "the third is closed");
    assert_eq!(
        server.metric("ratelimit_server_rejected_connections_total{listener=\"calls\"}").await,
        Some(1.0)
    );
    assert!(caller.ask(&[descriptor("user=ann")]).await.starts_with("OK"));
    // Other bytes than HTTP/2 end only their connection.
    silent.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\nmore than a preface").await.unwrap();
    assert!(
        eventually(
            async || server.metric("ratelimit_server_connections{listener=\"calls\"}").await == Some(1.0)
        )
        .await
    );
    assert!(caller.ask(&[descriptor("user=ann")]).await.starts_with("OK"));
    let mut partial = TcpStream::connect(server.calls).await.unwrap();
    partial.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    // A caller that sends no more is cut off after ten seconds.
    let mut rest = Vec::new();
    assert!(tokio::time::timeout(Duration::from_secs(60), partial.read_to_end(&mut rest)).await.is_ok());
}

#[tokio::test]
async fn logs_have_no_identities() {
    let files = Files::new(LIMITS);
    let server = Server::begin(&files, &["--memory"], &[("RUST_LOG", "trace")]);
    server.is_ready(true).await;
    let caller = server.caller().await;
    assert_eq!(caller.admitted(5, &[descriptor("user=secret-ann@example.org")]).await, 3);
    server.logs("denied").await;
    let log = server.log();
    let ours =
        log.lines().filter(|line| line.contains("tower_ratelimit") || line.contains("ratelimit_server"));
    assert!(ours.clone().count() > 3 && ours.clone().any(|line| line.contains("key_hash")), "{log}");
    for line in ours {
        assert!(!line.contains("secret-ann"), "{line}");
    }
}

#[tokio::test]
async fn a_connection_ends_with_its_age_after_the_calls_under_way() {
    let (files, redis) = (Files::new(LIMITS), RedisServer::start());
    let server = Server::start(&files, &redis, &["--max-connection-age", "200ms", "--deadline", "1s"]).await;
    let caller = server.caller().await;
    redis.signal("STOP");
    // It takes longer than the connection is old.
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 2 of 3/YEAR");
    redis.signal("CONT");
    let connections = "ratelimit_server_connections{listener=\"calls\"}";
    assert!(eventually(async || server.metric(connections).await == Some(0.0)).await);
}

// Reading the log blocks a thread.
#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_stopped_while_it_waits_for_redis() {
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: p } }]\n");
    let mut redis = RedisServer::start();
    let url = redis.url();
    redis.kill();
    let mut waiting = command(&["serve", &files.path(), "--redis", &url, "--live"]);
    let mut waiting = waiting
        .args(["--listen", "127.0.0.1:0", "--operators", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("the policies stay as they are")));
    let killed =
        std::process::Command::new("kill").args(["-s", "TERM", &waiting.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

/// A collector of spans.
struct Collector(mpsc::UnboundedSender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes =
            request.into_inner().resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            let _ = self.0.send(span);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

// Stopping the server blocks a thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_span_continues_the_trace_of_the_caller() {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let collector = format!("http://{}", incoming.local_addr().unwrap());
    let (sender, mut spans) = mpsc::unbounded_channel();
    let router = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
    tokio::spawn(router.serve_with_incoming(incoming));
    let (files, redis) = (Files::new(LIMITS), RedisServer::start());
    let url = redis.url();
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.as_str())];
    let mut server = Server::begin(&files, &["--redis", &url, "--deadline", "20s"], &environment);
    server.is_ready(true).await;
    let caller = server.caller().await;
    let mut call = prepared(&[descriptor("user=ann")]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    call.metadata_mut().insert("traceparent", format!("00-{trace}-b7ad6b7169203331-01").parse().unwrap());
    assert_eq!(brief(&caller.call(call).await.unwrap()), "OK: OK 2 of 3/YEAR");
    // The last spans are exported before the process ends.
    assert_eq!(server.stop(), Some(0));
    let mut names = Vec::new();
    while let Ok(span) = spans.try_recv() {
        let id = span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if id == trace {
            names.push((span.name, span.parent_span_id == [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]));
        }
    }
    names.sort();
    let call = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit".to_owned();
    assert_eq!(
        names,
        [("EVALSHA".to_owned(), false), (call, true), ("ratelimit.decision".to_owned(), false)]
    );
}
