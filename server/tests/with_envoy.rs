//! A real Envoy with the HTTP filter, over HTTP/1.1 and HTTP/2.

use std::sync::atomic::Ordering;

use http::{HeaderMap, Request, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use support::RedisServer;

use crate::{
    envoy::{Envoy, Settings, program},
    process::{Files, Server},
};

const LIMITS: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3, name: users } }
";
/// A limit for each value of the header `x-user`.
const USERS: &str = "[{ actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }] }]";
/// Longer than an answer takes on any machine.
const PATIENT: &str = "timeout: 20s";

/// What a client gets: the status, the headers and the body.
async fn get(envoy: &Envoy, version: Version, user: &str) -> (u16, HeaderMap, String) {
    let mut builder = Client::builder(TokioExecutor::new());
    let client = builder.http2_only(version == Version::HTTP_2).build_http::<Empty<Bytes>>();
    let request =
        Request::get(envoy.url("/")).version(version).header("x-user", user).body(Empty::new()).unwrap();
    let (parts, body) = client.request(request).await.unwrap().into_parts();
    assert_eq!(parts.version, version);
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), parts.headers, String::from_utf8(body.to_vec()).unwrap())
}

async fn statuses(envoy: &Envoy, user: &str, requests: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..requests {
        statuses.push(get(envoy, Version::HTTP_11, user).await.0);
    }
    statuses
}

#[tokio::test]
async fn a_limit_holds_over_http_1_and_http_2_and_clients_see_it() {
    let Some(program) = program() else { return };
    let (files, redis) = (Files::new(LIMITS), RedisServer::start());
    let servers = [Server::start(&files, &redis, &[]).await, Server::start(&files, &redis, &[]).await];
    let settings = Settings {
        servers: servers.iter().map(|server| server.calls).collect(),
        filter: "timeout: 20s\n                      enable_x_ratelimit_headers: DRAFT_VERSION_03",
        rate_limits: USERS,
        ..Settings::default()
    };
    let envoy = Envoy::start(&program, &settings).await;
    envoy.sees(2).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let user = format!("{version:?}");
        for rest in ["2", "1", "0"] {
            let (status, headers, body) = get(&envoy, version, &user).await;
            assert_eq!(
                (status, body.as_str(), &headers["x-ratelimit-remaining"]),
                (200, "hello", &rest.parse().unwrap())
            );
        }
        let (status, headers, body) = get(&envoy, version, &user).await;
        assert_eq!((status, body.as_str()), (429, ""));
        assert_eq!(headers["x-ratelimit-limit"], "3, 3;w=31536000;name=\"users\"");
        assert_eq!(headers["x-envoy-ratelimited"], "true");
        assert!(!headers.contains_key("ratelimit") && !headers.contains_key("retry-after"), "{headers:?}");
    }
    assert_eq!(envoy.served.load(Ordering::Relaxed), 6);
    assert_eq!(envoy.stat("cluster.service.ratelimit.over_limit").await, 2);
    // A request without the header has no descriptor, and so no limit.
    assert_eq!(support::http::Client::new().get(&envoy.url("/")).await.status(), 200);
}

#[tokio::test]
async fn the_servers_headers_and_its_problem_reach_the_client() {
    let Some(program) = program() else { return };
    let files = Files::new(LIMITS);
    let server = Server::alone(&files, &["--headers", "--problem-body"]).await;
    let settings =
        Settings { servers: vec![server.calls], filter: PATIENT, rate_limits: USERS, ..Settings::default() };
    let envoy = Envoy::start(&program, &settings).await;
    envoy.sees(1).await;
    for rest in [2, 1, 0] {
        let (status, headers, _) = get(&envoy, Version::HTTP_11, "ann").await;
        let shown = format!("\"d.user\";r={rest};t=");
        assert!(status == 200 && headers["ratelimit"].to_str().unwrap().starts_with(&shown), "{headers:?}");
    }
    let (status, headers, body) = get(&envoy, Version::HTTP_11, "ann").await;
    assert_eq!(status, 429);
    for (name, value) in
        [("content-type", "application/problem+json"), ("ratelimit-policy", "\"d.user\";q=3;w=31536000")]
    {
        assert_eq!(headers.get_all(name).iter().collect::<Vec<_>>(), [value], "{headers:?}");
    }
    assert_eq!(headers.get_all("retry-after").iter().count(), 1, "{headers:?}");
    assert!(body.contains("\"violated-policies\":[\"d.user\"]"), "{body}");
}

#[tokio::test]
async fn the_failure_mode_of_envoy_decides_only_if_no_server_is_there() {
    let Some(program) = program() else { return };
    for (filter, status) in [
        ("timeout: 20s\n                      failure_mode_deny: true", 500),
        ("timeout: 20s\n                      failure_mode_deny: false", 200),
    ] {
        let (files, mut redis) = (Files::new(LIMITS), RedisServer::start());
        let mut server = Server::start(&files, &redis, &[]).await;
        let settings = Settings {
            servers: vec![server.calls],
            filter,
            rate_limits: USERS,
            is_quick_to_check: true,
            ..Settings::default()
        };
        let envoy = Envoy::start(&program, &settings).await;
        envoy.sees(1).await;
        assert_eq!(statuses(&envoy, "ann", 4).await, [200, 200, 200, 429]);
        // Without Redis, the server's failure mode decides.
        redis.kill();
        assert_eq!(statuses(&envoy, "bob", 4).await, [200, 200, 200, 429]);
        let errors = envoy.stat("cluster.service.ratelimit.error").await;
        assert_eq!(errors, 0);
        redis.restart();
        assert_eq!(server.stop(), Some(0));
        assert_eq!(statuses(&envoy, "ann", 2).await, [status, status]);
    }
}

#[tokio::test]
async fn local_limits_of_envoy_come_first() {
    let Some(program) = program() else { return };
    let files = Files::new(LIMITS);
    let server = Server::alone(&files, &[]).await;
    let local = r#"
                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: local
                      token_bucket: { max_tokens: 5, tokens_per_fill: 1, fill_interval: 86400s }
                      filter_enabled: { default_value: { numerator: 100 } }
                      filter_enforced: { default_value: { numerator: 100 } }"#;
    let settings = Settings {
        servers: vec![server.calls],
        filter: PATIENT,
        rate_limits: USERS,
        before: local,
        ..Settings::default()
    };
    let envoy = Envoy::start(&program, &settings).await;
    envoy.sees(1).await;
    // Three of a user, one more that the server denies, one of another user; then Envoy alone denies.
    assert_eq!(statuses(&envoy, "ann", 4).await, [200, 200, 200, 429]);
    assert_eq!(statuses(&envoy, "bob", 3).await, [200, 429, 429]);
    assert_eq!(server.metric("ratelimit_server_calls_total{code=\"ok\"}").await, Some(4.0));
    assert_eq!(server.metric("ratelimit_server_calls_total{code=\"over_limit\"}").await, Some(1.0));
}

#[tokio::test]
async fn tokens_are_checked_before_a_request_and_charged_when_its_stream_is_done() {
    let Some(program) = program() else { return };
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: tokens } }]\n");
    let policies = files
        .beside("policies.toml", "[[policies]]\nname = 'tokens'\nquota = '1000/month'\nmax_debt = 5000\n");
    let redis = RedisServer::start();
    let server = Server::start(&files, &redis, &["--policies", &policies]).await;
    // Envoy knows hits only in the limits of its filter.
    let tokens = "timeout: 20s
                      rate_limits:
                        - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                          hits_addend: { number: 0 }
                        - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                          hits_addend: { format: '%RESP(x-tokens)%' }
                          apply_on_stream_done: true";
    let settings =
        Settings { servers: vec![server.calls], filter: tokens, rate_limits: "[]", ..Settings::default() };
    let envoy = Envoy::start(&program, &settings).await;
    envoy.sees(1).await;
    let mut statuses = Vec::new();
    for answered in [2.0, 4.0, 5.0] {
        statuses.push(get(&envoy, Version::HTTP_11, "ann").await.0);
        // The charge is on its way when the client has the response.
        let mut calls = 0.0;
        let all = support::eventually(async || {
            calls = 0.0;
            for code in ["ok", "over_limit"] {
                let name = format!("ratelimit_server_calls_total{{code=\"{code}\"}}");
                calls += server.metric(&name).await.unwrap_or_default();
            }
            calls >= answered
        });
        assert!(all.await && calls == answered, "{calls}");
    }
    // 600 and 600 of 1,000: the second exceeds it, and the third is not admitted.
    assert_eq!(statuses, [200, 200, 429]);
    let (_, page) = server.get("/limits/policies/tokens/keys/ann").await;
    assert!(page.contains("\"owed\":200"), "{page}");
}
