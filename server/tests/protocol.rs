//! Each field of `envoy.service.ratelimit.v3`.

use std::{fs, time::Duration};

use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_response::rate_limit::Unit,
};
use support::{PATIENT, RedisServer, eventually};
use tonic::Code;

use crate::process::{Files, Server, brief, descriptor, prepared, request, with_hits, with_limit};

/// Two limits of windows that no test outlives.
const TWO: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: month, requests_per_unit: 5 }
  - key: path
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: free
    rate_limit: { unlimited: true }
  - key: blocked
    rate_limit: { unit: second, requests_per_unit: 0 }
";

#[tokio::test]
async fn all_descriptors_of_a_call_are_one_decision() {
    let (files, redis) = (Files::new(TWO), RedisServer::start());
    let server = Server::start(&files, &redis, &[]).await;
    let caller = server.caller().await;
    let both = [descriptor("user=ann"), descriptor("path=/a")];
    assert_eq!(caller.ask(&both).await, "OK: OK 4 of 5/MONTH, OK 1 of 2/YEAR");
    assert_eq!(caller.ask(&both).await, "OK: OK 3 of 5/MONTH, OK 0 of 2/YEAR");
    for _ in 0..3 {
        // The user is not charged for what the path denies.
        assert_eq!(caller.ask(&both).await, "OVER_LIMIT: OK 3 of 5/MONTH, OVER_LIMIT 0 of 2/YEAR");
    }
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 2 of 5/MONTH");
    // Each value has separate counts.
    assert_eq!(caller.ask(&[descriptor("user=bob")]).await, "OK: OK 4 of 5/MONTH");
}

#[tokio::test]
async fn each_descriptor_has_a_status_even_without_a_limit() {
    let server = Server::alone(&Files::new(TWO), &[]).await;
    let caller = server.caller().await;
    let all = ["unknown=1", "user=ann", "free=1", "user=ann path=/a"].map(descriptor);
    assert_eq!(caller.ask(&all).await, "OK: OK, OK 4 of 5/MONTH, OK 4294967295, OK");
    let unknown = caller.call(request("other", &[descriptor("user=ann")])).await.unwrap();
    assert_eq!(brief(&unknown), "OK: OK");

    let response = caller.call(request("d", &all)).await.unwrap();
    let resets = response.statuses.iter().map(|status| status.duration_until_reset.map(|time| time.seconds));
    let days = resets.map(|seconds| seconds.map(|seconds| (seconds + 3_600) / 86_400));
    assert_eq!(days.collect::<Vec<_>>(), [None, Some(30), None, None]);
    assert!(response.quota.is_none() && response.request_headers_to_add.is_empty());
    assert!(response.dynamic_metadata.is_none());
}

#[tokio::test]
async fn a_limit_of_0_blocks_and_nothing_else_is_charged() {
    let server = Server::alone(&Files::new(TWO), &[]).await;
    let caller = server.caller().await;
    let both = ["blocked=1", "user=ann"].map(descriptor);
    for _ in 0..2 {
        assert_eq!(caller.ask(&both).await, "OVER_LIMIT: OVER_LIMIT 0 of 0/SECOND, OK 5 of 5/MONTH");
    }
    assert_eq!(caller.ask(&both[..1]).await, "OVER_LIMIT: OVER_LIMIT 0 of 0/SECOND");
}

#[tokio::test]
async fn hits_of_a_descriptor_replace_the_requests() {
    let server = Server::alone(&Files::new(TWO), &[]).await;
    let caller = server.caller().await;
    let call = async |hits_addend, descriptors: &[_]| {
        let request = RateLimitRequest { hits_addend, ..request("d", descriptors) };
        brief(&caller.call(request).await.unwrap())
    };
    // 0 of a request is 1.
    assert_eq!(call(0, &[descriptor("user=a")]).await, "OK: OK 4 of 5/MONTH");
    assert_eq!(call(3, &[descriptor("user=a")]).await, "OK: OK 1 of 5/MONTH");
    assert_eq!(
        call(3, &[with_hits("user=b", 4), descriptor("user=c")]).await,
        "OK: OK 1 of 5/MONTH, OK 2 of 5/MONTH"
    );
    // Both are of one client, so their hits are added.
    assert_eq!(
        call(2, &[descriptor("user=d"), descriptor("user=d")]).await,
        "OK: OK 1 of 5/MONTH, OK 1 of 5/MONTH"
    );
    let most = [with_hits("user=e", u64::MAX), with_hits("user=e", 2)];
    assert_eq!(call(1, &most).await, "OVER_LIMIT: OVER_LIMIT 5 of 5/MONTH, OVER_LIMIT 5 of 5/MONTH");
    // A counter does not overflow.
    let over = "ratelimit_server_hits_total{descriptor=\"d.user\",verdict=\"over_limit\"}";
    assert_eq!(server.metric(over).await, Some(f64::from(u32::MAX) + 2.0));
    assert_eq!(call(4, &[descriptor("user=f")]).await, "OK: OK 1 of 5/MONTH");
    assert_eq!(call(1, &[descriptor("user=f")]).await, "OK: OK 0 of 5/MONTH");
    // Less than a fifth remains.
    let near = "ratelimit_server_hits_total{descriptor=\"d.user\",verdict=\"near_limit\"}";
    assert_eq!(server.metric(near).await, Some(1.0));
}

#[tokio::test]
async fn a_descriptor_with_0_hits_asks_whether_one_remains() {
    let (files, redis) = (Files::new(TWO), RedisServer::start());
    let server = Server::start(&files, &redis, &[]).await;
    let caller = server.caller().await;
    for _ in 0..3 {
        assert_eq!(caller.ask(&[with_hits("path=/a", 0)]).await, "OK: OK 2 of 2/YEAR");
    }
    // A question beside a charge: the charge is made, and the question charges nothing.
    let both = [with_hits("path=/a", 0), descriptor("user=ann")];
    assert_eq!(caller.ask(&both).await, "OK: OK 2 of 2/YEAR, OK 4 of 5/MONTH");
    assert_eq!(caller.ask(&[with_hits("path=/a", 2)]).await, "OK: OK 0 of 2/YEAR");
    for _ in 0..2 {
        assert_eq!(caller.ask(&both).await, "OVER_LIMIT: OVER_LIMIT 0 of 2/YEAR, OK 4 of 5/MONTH");
    }
}

#[tokio::test]
async fn what_envoy_does_not_send_is_an_invalid_argument() {
    let server = Server::alone(&Files::new(TWO), &["--max-descriptors", "3"]).await;
    let caller = server.caller().await;
    let negative =
        |mut descriptor: envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor| {
            descriptor.is_negative_hits = true;
            descriptor
        };
    let rows = [
        ("no domain", request("", &[descriptor("user=ann")]), "the domain is empty"),
        ("no descriptor", request("d", &[]), "there is no descriptor"),
        ("negative hits", request("d", &[negative(with_hits("user=ann", 3))]), "hits are negative"),
        (
            "negative hits of an unknown one",
            request("d", &[negative(descriptor("unknown=1"))]),
            "hits are negative",
        ),
        (
            "many descriptors",
            request("d", &["user=a", "user=b", "user=c", "user=d"].map(descriptor)),
            "more than 3",
        ),
        ("a unit of no time", request("d", &[with_limit("user=ann", 1, Unit::Unknown)]), "an unknown unit"),
    ];
    for (name, call, expected) in rows {
        let status = caller.call(call).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status}");
        assert!(status.message().contains(expected), "{name}: {status}");
    }
    let mut call = prepared(&[descriptor("user=ann")]);
    call.metadata_mut().insert("x-ratelimit-criticality", "urgent".parse().unwrap());
    assert_eq!(caller.call(call).await.unwrap_err().code(), Code::InvalidArgument);
    let large = caller.call(request("d", &[descriptor(&format!("user={}", "a".repeat(40_000)))])).await;
    assert_eq!(large.unwrap_err().code(), Code::OutOfRange);
    // Nothing was charged.
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 4 of 5/MONTH");
    assert_eq!(server.metric("ratelimit_server_calls_total{code=\"error\"}").await, Some(7.0));
}

#[tokio::test]
async fn a_request_can_set_a_limit_of_a_known_domain() {
    let server = Server::alone(&Files::new(TWO), &[]).await;
    let caller = server.caller().await;
    let three = [with_limit("user=ann", 3, Unit::Month)];
    assert_eq!(caller.ask(&three).await, "OK: OK 2 of 3/MONTH");
    // The configuration's limit has other counts.
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 4 of 5/MONTH");
    // A raised limit keeps what was charged.
    assert_eq!(caller.ask(&[with_limit("user=ann", 10, Unit::Month)]).await, "OK: OK 8 of 10/MONTH");
    assert_eq!(caller.ask(&[with_limit("user=ann", 10, Unit::Week)]).await, "OK: OK 9 of 10/WEEK");
    assert_eq!(
        caller.ask(&[with_limit("user=ann", 0, Unit::Hour)]).await,
        "OVER_LIMIT: OVER_LIMIT 0 of 0/HOUR"
    );
    // Of two for the same client, the stricter one counts.
    let mut two = [with_limit("user=bob", 1, Unit::Year), with_limit("user=bob", 9, Unit::Year)];
    assert_eq!(caller.ask(&two).await, "OVER_LIMIT: OVER_LIMIT 1 of 1/YEAR, OVER_LIMIT 1 of 9/YEAR");
    two.reverse();
    assert_eq!(caller.ask(&two).await, "OVER_LIMIT: OVER_LIMIT 1 of 9/YEAR, OVER_LIMIT 1 of 1/YEAR");
    let other = caller.call(request("other", &three)).await.unwrap();
    assert_eq!(brief(&other), "OK: OK");
}

#[tokio::test]
async fn a_unit_that_the_protocol_lacks_is_unknown_with_the_name_and_numbers_saturate() {
    let files = Files::new(
        "
domain: d
descriptors:
  - { key: ten, rate_limit: { policy: ten-seconds } }
  - { key: large, rate_limit: { policy: large } }
  - { key: month, rate_limit: { policy: calendar, name: plan } }
  - { key: minute, rate_limit: { unit: minute, requests_per_unit: 9 } }
",
    );
    let policies = "
[[policies]]
name = 'ten-seconds'
quota = '5/10s'
[[policies]]
name = 'large'
quota = '5000000000/h'
[[policies]]
name = 'calendar'
quota = { limit = 7, per = 'month', zone = 'Europe/Berlin' }
";
    let policies = files.beside("policies.toml", policies);
    let server = Server::alone(&files, &["--policies", &policies]).await;
    let caller = server.caller().await;
    let all = ["ten=1", "large=1", "month=1", "minute=1"].map(descriptor);
    assert_eq!(
        caller.ask(&all).await,
        "OK: OK 4 of 5/UNKNOWN \"ten-seconds\", OK 4294967295 of 4294967295/HOUR, OK 6 of 7/MONTH \"plan\", OK 8 of 9/MINUTE"
    );
}

#[tokio::test]
async fn only_options_add_headers_and_a_problem() {
    let files = Files::new(TWO);
    let headers_of = async |options: &[&str]| {
        let server = Server::alone(&files, options).await;
        let caller = server.caller().await;
        let mut texts = Vec::new();
        for hits in [2, 1] {
            let response = caller.call(request("d", &[with_hits("path=/a", hits)])).await.unwrap();
            let headers = response.response_headers_to_add.iter().map(|header| header.key.clone());
            texts.push((headers.collect::<Vec<_>>(), String::from_utf8(response.raw_body).unwrap()));
        }
        texts
    };
    let (none, nothing) = (Vec::<String>::new(), String::new());
    assert_eq!(headers_of(&[]).await, [(none.clone(), nothing.clone()), (none.clone(), nothing.clone())]);
    let ietf = ["ratelimit-policy", "ratelimit"].map(str::to_owned).to_vec();
    let denied = [&["retry-after".to_owned()], &ietf[..]].concat();
    assert_eq!(headers_of(&["--headers"]).await, [(ietf, nothing.clone()), (denied, nothing.clone())]);
    let [admitted, (headers, body)] = &headers_of(&["--problem-body"]).await[..] else { panic!() };
    assert_eq!(*admitted, (none, nothing));
    assert!(
        headers.contains(&"content-type".to_owned()) && headers.contains(&"retry-after".to_owned()),
        "{headers:?}"
    );
    assert!(body.contains("\"violated-policies\"") && body.contains("\"status\":429"), "{body}");
}

#[tokio::test]
async fn a_call_is_answered_by_the_failure_mode_before_its_caller_stops_waiting() {
    let files = Files::new(TWO);
    let policies = "
[[policies]]
name = 'shut'
quota = '5/week'
failure_mode = 'closed'
[[policies]]
name = 'open'
quota = '5/week'
failure_mode = 'open'
";
    let policies = files.beside("policies.toml", policies);
    files.write(
        "limits.yaml",
        "
domain: d
descriptors:
  - { key: shut, rate_limit: { policy: shut } }
  - { key: open, rate_limit: { policy: open } }
  - { key: local, rate_limit: { unit: year, requests_per_unit: 2 } }
",
    );
    let redis = RedisServer::start();
    let server = Server::start(&files, &redis, &["--policies", &policies]).await;
    let caller = server.caller().await;
    redis.signal("STOP");
    let ask = async |text: &str| {
        let mut call = prepared(&[descriptor(text)]);
        // Much more than the answer takes, and less than the server's own deadline.
        call.set_timeout(PATIENT / 4);
        brief(&caller.call(call).await.unwrap())
    };
    assert_eq!(ask("shut=1").await, "OVER_LIMIT: OVER_LIMIT");
    assert_eq!(ask("open=1").await, "OK: OK");
    let local = [ask("local=1").await, ask("local=1").await, ask("local=1").await];
    assert_eq!(local[0], "OK: OK 1 of 2/YEAR");
    assert_eq!(local[2], "OVER_LIMIT: OVER_LIMIT 0 of 2/YEAR");
    redis.signal("CONT");
}

#[tokio::test]
async fn without_a_deadline_of_the_caller_the_servers_applies() {
    let (files, redis) = (Files::new(TWO), RedisServer::start());
    let server = Server::start(&files, &redis, &["--deadline", "50ms"]).await;
    let caller = server.caller().await;
    redis.signal("STOP");
    assert_eq!(caller.ask(&[descriptor("user=ann")]).await, "OK: OK 4 of 5/MONTH");
    redis.signal("CONT");
}

#[tokio::test]
async fn a_limit_whose_policy_allows_debt_charges_work_that_was_done() {
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: tokens } }]\n");
    let policies = "[[policies]]\nname = 'tokens'\nquota = '1000/month'\nmax_debt = 5000\n";
    let policies = files.beside("policies.toml", policies);
    let redis = RedisServer::start();
    let server = Server::start(&files, &redis, &["--policies", &policies]).await;
    let caller = server.caller().await;
    let asks = [with_hits("user=ann", 0)];
    assert_eq!(caller.ask(&asks).await, "OK: OK 1000 of 1000/MONTH");
    assert_eq!(caller.ask(&[with_hits("user=ann", 900)]).await, "OK: OK 100 of 1000/MONTH");
    // More than remains: the answer says so, and the client is charged.
    assert_eq!(caller.ask(&[with_hits("user=ann", 400)]).await, "OVER_LIMIT: OVER_LIMIT 100 of 1000/MONTH");
    assert_eq!(caller.ask(&asks).await, "OVER_LIMIT: OVER_LIMIT 0 of 1000/MONTH");
    let (_, page) = server.get("/limits/policies/tokens/keys/ann").await;
    assert!(page.contains("\"owed\":300"), "{page}");
}

#[tokio::test]
async fn the_metadata_of_a_call_says_how_critical_it_is() {
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: site } }]\n");
    let policies = "[[policies]]\nname = 'site'\nquota = '10/month'\nheadroom = { sheddable = 4 }\n";
    let policies = files.beside("policies.toml", policies);
    let server = Server::alone(&files, &["--policies", &policies]).await;
    let caller = server.caller().await;
    let crawler = async |hits| {
        let mut call = prepared(&[with_hits("user=all", hits)]);
        call.metadata_mut().insert("x-ratelimit-criticality", "sheddable".parse().unwrap());
        brief(&caller.call(call).await.unwrap())
    };
    // What remains is what remains for it.
    assert_eq!(crawler(6).await, "OK: OK 0 of 10/MONTH");
    assert_eq!(crawler(1).await, "OVER_LIMIT: OVER_LIMIT 0 of 10/MONTH");
    assert_eq!(crawler(0).await, "OVER_LIMIT: OVER_LIMIT 0 of 10/MONTH");
    assert_eq!(caller.ask(&[with_hits("user=all", 4)]).await, "OK: OK 0 of 10/MONTH");
}

#[tokio::test]
async fn the_time_until_a_reset_is_the_wait_of_a_denial() {
    let files = Files::new("domain: d\ndescriptors: [{ key: user, rate_limit: { policy: smooth } }]\n");
    let policies = files.beside("policies.toml", "[[policies]]\nname = 'smooth'\nquota = '24/day'\n");
    let server = Server::alone(&files, &["--policies", &policies]).await;
    let caller = server.caller().await;
    let hours = async |hits| {
        let response = caller.call(request("d", &[with_hits("user=ann", hits)])).await.unwrap();
        let time = response.statuses[0].duration_until_reset.unwrap();
        (Duration::from_secs(time.seconds.unsigned_abs() + 1).as_secs()) / 3_600
    };
    // All 24 are there again after a day, and one after an hour.
    assert_eq!([hours(24).await, hours(1).await], [24, 1]);
}

#[tokio::test]
async fn debts_are_charged_beside_questions_and_where_limits_only_report() {
    let files = Files::new(
        "
domain: d
descriptors:
  - { key: user, rate_limit: { policy: tokens } }
  - { key: path, rate_limit: { unit: year, requests_per_unit: 2 } }
",
    );
    let policies =
        "enforcement = 'report-only'\n[[policies]]\nname = 'tokens'\nquota = '1000/month'\nmax_debt = 5000\n";
    let policies = files.beside("policies.toml", policies);
    let redis = RedisServer::start();
    let server = Server::start(&files, &redis, &["--policies", &policies]).await;
    let caller = server.caller().await;
    let owed = async || {
        let (_, page) = server.get("/limits/policies/tokens/keys/ann").await;
        page.split("\"owed\":").nth(1).unwrap().trim_end_matches(['}', ']', '\n']).to_owned()
    };
    assert!(caller.ask(&[with_hits("user=ann", 1_200)]).await.starts_with("OK: OK"));
    assert_eq!(owed().await, "200");
    files.beside("policies.toml", &fs::read_to_string(&policies).unwrap().replace("report-only", "on"));
    assert!(eventually(async || server.get("/limits/enforcement").await.1.contains("\"on\"")).await);
    let both = [with_hits("path=/a", 0), with_hits("user=ann", 300)];
    assert_eq!(caller.ask(&both).await, "OVER_LIMIT: OK 2 of 2/YEAR, OVER_LIMIT 0 of 1000/MONTH");
    assert_eq!(owed().await, "500");
}

#[tokio::test]
async fn a_policy_that_is_not_enforced_is_ok_beside_one_that_denies() {
    let files = Files::new(
        "
domain: d
descriptors:
  - { key: user, rate_limit: { policy: trial } }
  - { key: path, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    let policies =
        files.beside("policies.toml", "[[policies]]\nname = 'trial'\nquota = '1/month'\nenforced = 0\n");
    let server = Server::alone(&files, &["--policies", &policies]).await;
    let caller = server.caller().await;
    let both = ["user=ann", "path=/a"].map(descriptor);
    assert_eq!(caller.ask(&both).await, "OK: OK 0 of 1/MONTH, OK 0 of 1/YEAR");
    assert_eq!(caller.ask(&both).await, "OVER_LIMIT: OK 0 of 1/MONTH, OVER_LIMIT 0 of 1/YEAR");
    let over = "ratelimit_server_hits_total{descriptor=\"d.user\",verdict=\"over_limit\"}";
    assert_eq!(server.metric(over).await, Some(0.0));
}
