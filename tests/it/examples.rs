//! The examples answer the curl lines in their doc comments with the responses written there, over real sockets.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/adaptive.rs"]
mod adaptive;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/admin.rs"]
mod admin;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/axum_extractor_key.rs"]
mod axum_extractor_key;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/behind_proxy.rs"]
mod behind_proxy;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/cors.rs"]
mod cors;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/custom_response.rs"]
mod custom_response;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/download_bytes.rs"]
mod download_bytes;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/gateway.rs"]
pub(crate) mod gateway;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/graphql.rs"]
mod graphql;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/llm_prices.rs"]
mod llm_prices;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/llm_stream.rs"]
mod llm_stream;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/llm_tokens.rs"]
mod llm_tokens;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/login_protection.rs"]
mod login_protection;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/mcp.rs"]
mod mcp;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/per_route.rs"]
mod per_route;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/playground/main.rs"]
pub(crate) mod playground;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/reload.rs"]
mod reload;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/shadow_rollout.rs"]
mod shadow_rollout;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../extra/examples/tiers.rs"]
mod tiers;

use std::net::SocketAddr;

use axum::{Router, body::Body};
use http::Request;
use support::{
    Directory, PATIENT, RedisServer, eventually,
    http::{Client, serve},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tower::ServiceExt as _;
use tower_ratelimit::{Limiter, MemoryStore, key::TrustedProxies, store::ManualClock};
use tower_ratelimit_extra::live::LivePolicies;

/// A store whose clock stands still, so that the numbers are exact.
fn store() -> MemoryStore {
    MemoryStore::with_clock(ManualClock::new())
}

/// A line `curl ..`, and the lines below it: a status, headers, a body.
struct Exchange {
    curl: Vec<String>,
    answers: Vec<String>,
}

/// The exchanges in the doc comment at the top of `source`.
fn exchanges(source: &str) -> Vec<Exchange> {
    let mut found: Vec<Exchange> = Vec::new();
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        if let Some(curl) = line.strip_prefix(" curl ") {
            // Words are quoted or not, as in a shell.
            let curl = curl.split('\'').enumerate().flat_map(|(i, text)| match i % 2 {
                0 => text.split_whitespace().map(String::from).collect(),
                _ => vec![text.to_owned()],
            });
            found.push(Exchange { curl: curl.collect(), answers: Vec::new() });
        } else if let (Some(answer), Some(exchange)) = (line.strip_prefix("     "), found.last_mut()) {
            exchange.answers.push(answer.to_owned());
        }
    }
    found
}

/// Sends every curl line to `app` and asserts that the response is the one below it. `count` is the expected number
/// of lines, so that none is overlooked.
async fn says_what_is_written(app: Router, source: &str, count: usize) {
    let server = serve(app).await;
    let client = Client::new();
    let exchanges = exchanges(source);
    assert_eq!(exchanges.len(), count);
    for Exchange { curl, answers } in exchanges {
        let line = curl.join(" ");
        let url = curl.last().unwrap().replace("http://127.0.0.1:3000", &format!("http://{server}"));
        let option = |name: &str| curl.iter().position(|word| word == name).map(|at| curl[at + 1].clone());
        let data = option("-d");
        let usual = if data.is_some() { "POST" } else { "GET" };
        let method = option("-X").unwrap_or_else(|| usual.to_owned());
        let mut request = Request::builder().method(&*method).uri(&url);
        for (at, _) in curl.iter().enumerate().filter(|(_, word)| *word == "-H") {
            let (name, value) = curl[at + 1].split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let response = client.send(request.body(data.unwrap_or_default()).unwrap()).await;
        assert_eq!(response.status().as_str(), answers[0], "{line}");
        let headers = response.headers().clone();
        let body = response.into_body();
        for answer in &answers[1..] {
            match answer.split_once(": ") {
                Some((name, value)) if !name.contains([' ', '"']) => {
                    let lines: Vec<_> =
                        headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
                    assert_eq!(lines.join(", "), value, "{name} of {line}");
                }
                _ => assert_eq!(body.trim_end(), answer, "{line}"),
            }
        }
    }
}

#[tokio::test]
async fn per_route_says_what_is_written() {
    says_what_is_written(per_route::app(store()), include_str!("../../examples/per_route.rs"), 8).await;
}

#[tokio::test]
async fn behind_proxy_says_what_is_written() {
    let app = behind_proxy::app(store(), TrustedProxies::cidrs(["127.0.0.0/8"]).unwrap());
    says_what_is_written(app, include_str!("../../examples/behind_proxy.rs"), 4).await;
}

#[tokio::test]
async fn axum_extractor_key_says_what_is_written() {
    let app = axum_extractor_key::app(store(), "at least 16 bytes");
    says_what_is_written(app, include_str!("../../examples/axum_extractor_key.rs"), 3).await;
}

#[tokio::test]
async fn graphql_says_what_is_written() {
    says_what_is_written(graphql::app(store()), include_str!("../../extra/examples/graphql.rs"), 6).await;
}

/// The status, and the cost or the reason.
async fn graphql_answer(query: &str) -> (u16, String) {
    let server = serve(graphql::app(store())).await;
    let body = serde_json::json!({ "query": query }).to_string();
    let request =
        Request::post(format!("http://{server}/graphql")).header("x-api-key", "k1").body(body).unwrap();
    let response = Client::new().send(request).await;
    let answer: serde_json::Value = serde_json::from_str(response.body()).unwrap();
    let text = answer.get("detail").unwrap_or_else(|| &answer["extensions"]["cost"]);
    (response.status().as_u16(), text.as_str().map_or_else(|| text.to_string(), String::from))
}

#[tokio::test]
async fn graphql_costs_of_hostile_queries_are_counted_in_a_bounded_time() {
    // Each fragment uses the next one 50 times, so the query has 50^8 fields.
    let spreads = |next: usize| format!("...F{next} ").repeat(50);
    let fragments: String =
        (0..8).map(|at| format!("fragment F{at} on A {{ {} }} ", spreads(at + 1))).collect();
    let exponential = format!("{{ ...F0 }} {fragments} fragment F8 on A {{ a }}");
    let lists = "a(first: 9223372036854775807) { ".repeat(9) + "b" + &" }".repeat(9);
    let no_length = "The length of a list must be a positive integer.";
    let long = "The cost of the request exceeds the quota; waiting does not help.";
    for (query, status, text) in [
        (&*exponential, 429, long),
        (&*format!("{{ {lists} }}"), 429, long),
        ("{ ...F } fragment F on A { a ...F }", 400, "A fragment contains itself."),
        ("{ ...F } fragment F on A { ...G } fragment G on A { ...F }", 400, "A fragment contains itself."),
        ("{ ...F }", 400, "The query uses an unknown fragment."),
        (&*"{ a ".repeat(2_000), 400, "The query is not valid GraphQL."),
        ("query A { a } query B { a b c }", 200, "3"),
        ("{ a(first: 0) { b } }", 400, no_length),
        ("{ a(first: -5) { b } }", 400, no_length),
        ("{ a(first: 9.0) { b } }", 400, no_length),
        (r#"{ a(first: "9") { b } }"#, 400, no_length),
        ("{ a(first: 99999999999999999999) { b } }", 400, "The query is not valid GraphQL."),
        ("{ a(first: null) { b } }", 429, long),
        ("{ a(page: {first: 1000000}) { b } }", 429, long),
        ("{ a(page: {size: {last: 7}, after: \"x\"}) { b } }", 200, "8"),
        ("{ a(pages: [{first: 2}, {limit: 3}], name: \"x\") { b } }", 200, "4"),
        ("{ a(page: {first: -1}) { b } }", 400, no_length),
        ("query($n: Int = 9) { a(first: $n) { b } }", 200, "10"),
        ("query($n: Int = 1000000) { a(first: $n) { b } }", 429, long),
        ("query($n: Int = null) { a(first: $n) { b } }", 429, long),
        ("query($n: Int = 0) { a(first: $n) { b } }", 400, no_length),
        ("query($n: Int) { a(first: $n) { b } }", 429, long),
        ("query($n: Int = 1000000) { a(page: {first: $n}) { b } }", 429, long),
        ("query($p: Page = {first: 1000000}) { a(page: $p) { b } }", 429, long),
        ("query($p: [Page] = [{size: {last: 7}}]) { a(page: $p) { b } }", 200, "8"),
        ("query($p: Page = {first: -1}) { a(page: $p) { b } }", 400, no_length),
        ("query($p: Page) { a(page: $p) { b } }", 200, "2"),
        ("mutation($p: Page = {first: 1000000}) { a(page: $p) { b } }", 429, long),
        ("query($p: Page = {first: 1000000}) { ...F } fragment F on A { a(page: $p) { b } }", 429, long),
        // Each operation has its own defaults, and one of them has none.
        (
            "query A($n: Int = 2) { ...F } query B($n: Int = 7) { ...F } fragment F on A { a(first: $n) { b } }",
            200,
            "8",
        ),
        (
            "query A($n: Int = 2) { ...F } query B($n: Int) { ...F } fragment F on A { a(first: $n) { b } }",
            429,
            long,
        ),
        ("query($n: Int = 1, $n: Int = 1000000) { a(first: $n) { b } }", 429, long),
        ("{ a(first: $n) { b } }", 400, "The query uses an unknown variable."),
        ("query($n: Int = $n) { a(first: $n) { b } }", 400, "The query is not valid GraphQL."),
        (
            "{ ...F } fragment F on A { a(first: 1000000) { b } } fragment F on A { a }",
            400,
            "Two fragments have the same name.",
        ),
        ("{ a(first: 2, last: 3) { b } ... on A { c } }", 200, "5"),
    ] {
        let shown: String = query.chars().take(60).collect();
        assert_eq!(graphql_answer(query).await, (status, text.to_owned()), "{shown}");
    }
    for (body, status) in [
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":7}}"#, 200),
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":0}}"#, 400),
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":7.5}}"#, 400),
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":"7"}}"#, 400),
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":null}}"#, 429),
        (r#"{"query":"query($n: Int = 1000000) { a(first: $n) { b } }","variables":{"n":7}}"#, 200),
        (r#"{"query":"query($n: Int = 7) { a(first: $n) { b } }","variables":{"n":1000000}}"#, 429),
        (r#"{"query":"query($n: Int = 7) { a(first: $n) { b } }","variables":{"n":null}}"#, 429),
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":18446744073709551615}}"#, 400),
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":1000000,"n":1}}"#, 400),
        (r#"{"query":"query($n: Int) { a(first: $n) { b } }","variables":{"n":1,"\u006e":1000000}}"#, 400),
        (
            r#"{"query":"query($p: Page) { a(page: $p) { b } }","variables":{"p":{"first":1000000,"first":1}}}"#,
            400,
        ),
        (r#"{"query":"query($p: Page) { a(page: $p) { b } }","variables":{"p":[[{"x":1,"x":1}]]}}"#, 400),
        (
            r#"{"query":"query($p: Page) { a(page: $p) { b } }","variables":{"p":{"a":true,"b":1.5,"c":"","d":null}}}"#,
            200,
        ),
        (r#"{"query":"{ a }","variables":null}"#, 200),
        (r#"{"query":"{ a }","variables":[]}"#, 400),
        (r#"{"query":"query($p: Page) { a(page: $p) { b } }","variables":{"p":{"first":1000000}}}"#, 429),
        (r#"{"query":"query($p: Page) { a(page: $p) { b } }","variables":{"p":[{"last":-1}]}}"#, 400),
        (r#"{"query":"query($p: Page) { a(page: $p) { b } }","variables":{"p":[{"last":7}]}}"#, 200),
        (r#"{"query":"{ a }","Query":"{ a(first: 1000000) { b } }"}"#, 400),
        (r#"{"query":"{ a }","variables":{},"Variables":{}}"#, 400),
    ] {
        let server = serve(graphql::app(store())).await;
        let request = Request::post(format!("http://{server}/graphql")).header("x-api-key", "k1");
        let response = Client::new().send(request.body(body.to_owned()).unwrap()).await;
        assert_eq!(response.status(), status, "{body}: {}", response.body());
    }
}

#[tokio::test]
async fn mcp_says_what_is_written() {
    says_what_is_written(mcp::app(store()), include_str!("../../extra/examples/mcp.rs"), 8).await;
}

#[tokio::test]
async fn custom_response_says_what_is_written() {
    says_what_is_written(custom_response::app(store()), include_str!("../../examples/custom_response.rs"), 7)
        .await;
}

#[tokio::test]
async fn tiers_says_what_is_written() {
    says_what_is_written(tiers::app(store()), include_str!("../../extra/examples/tiers.rs"), 9).await;
}

#[tokio::test]
async fn llm_tokens_says_what_is_written() {
    says_what_is_written(llm_tokens::app(store()), include_str!("../../examples/llm_tokens.rs"), 5).await;
}

#[tokio::test]
async fn gateway_says_what_is_written() {
    let app = gateway::app(store(), gateway::vendor());
    says_what_is_written(app, include_str!("../../extra/examples/gateway.rs"), 5).await;
}

#[tokio::test]
async fn llm_prices_says_what_is_written() {
    says_what_is_written(llm_prices::app(store()), include_str!("../../extra/examples/llm_prices.rs"), 8)
        .await;
}

#[tokio::test]
async fn llm_stream_says_what_is_written() {
    says_what_is_written(llm_stream::app(store()), include_str!("../../examples/llm_stream.rs"), 3).await;
}

#[tokio::test]
async fn llm_stream_charges_a_client_that_leaves_what_it_was_sent() {
    let redis = RedisServer::start();
    for limiter in [Limiter::new(store()), Limiter::new(support::store(&redis).await)] {
        let server = serve(llm_stream::app(limiter.clone())).await;
        let mut connection = TcpStream::connect(server).await.unwrap();
        let request = "POST /stream HTTP/1.1\r\nhost: test\r\nx-api-key: k-ann\r\nx-max-tokens: 900\r\n\
                       content-length: 9\r\n\r\nsay hello";
        connection.write_all(request.as_bytes()).await.unwrap();
        let words = |received: &[u8]| String::from_utf8_lossy(received).matches("hello").count() as u64;
        let mut received = Vec::new();
        while words(&received) < 3 {
            assert!(connection.read_buf(&mut received).await.unwrap() > 0);
        }
        drop(connection);
        limiter.drain(PATIENT).await.unwrap();
        let left = Client::new()
            .send(
                Request::get(format!("http://{server}/left"))
                    .header("x-api-key", "k-ann")
                    .body(String::new())
                    .unwrap(),
            )
            .await;
        let used = 1_000 - left.body().trim_end().parse::<u64>().unwrap();
        // The service may have sent a few more words until it saw that the client has left.
        assert!((2 + words(&received)..900).contains(&used), "{used} of {}", words(&received));
    }
}

#[tokio::test]
async fn login_protection_says_what_is_written() {
    let source = include_str!("../../examples/login_protection.rs");
    says_what_is_written(login_protection::app(store()), source, 11).await;
}

#[tokio::test]
async fn download_bytes_says_what_is_written() {
    says_what_is_written(download_bytes::app(store()), include_str!("../../examples/download_bytes.rs"), 3)
        .await;
}

#[tokio::test]
async fn shadow_rollout_says_what_is_written() {
    says_what_is_written(shadow_rollout::app(store()), include_str!("../../examples/shadow_rollout.rs"), 8)
        .await;
}

#[tokio::test]
async fn admin_says_what_is_written() {
    let source = include_str!("../../extra/examples/admin.rs");
    // The service and its administration have no path in common.
    let (service, admin) = admin::apps(store(), "correct-horse-battery");
    let source = source.replace("http://127.0.0.1:3001", "http://127.0.0.1:3000");
    says_what_is_written(service.merge(admin), &source, 24).await;
}

#[tokio::test]
async fn cors_says_what_is_written() {
    says_what_is_written(cors::app(store()), include_str!("../../examples/cors.rs"), 2).await;
}

#[tokio::test]
async fn playground_says_what_is_written() {
    let source = include_str!("../../examples/playground/main.rs");
    says_what_is_written(playground::app(None), source, 2).await;
}

#[tokio::test]
async fn reload_says_what_is_written() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    std::fs::write(&path, reload::FIRST).unwrap();
    let live = LivePolicies::file(&path).unwrap();
    let app = reload::app(store(), live.clone()).unwrap();
    let source =
        include_str!("../../extra/examples/reload.rs").replace("/tmp/limits.toml", path.to_str().unwrap());
    let state = || (live.version(), live.last_error().map(|error| error.to_string()));
    let mut parts = source.split("//! sed ");
    says_what_is_written(app.clone(), parts.next().unwrap(), 3).await;
    for (part, count) in parts.zip([3, 2, 1]) {
        let (edit, before) = (format!("sed {}", part.lines().next().unwrap()), state());
        assert!(std::process::Command::new("sh").args(["-c", &edit]).status().unwrap().success());
        assert!(eventually(async || state() != before).await, "{edit}");
        let lines: String = part.lines().skip(1).flat_map(|line| [line, "\n"]).collect();
        says_what_is_written(app.clone(), &lines, count).await;
    }
}

#[tokio::test]
async fn adaptive_says_what_is_written() {
    let (app, api) = adaptive::app(store()).unwrap();
    let parts = include_str!("../../extra/examples/adaptive.rs").split("//! sleep ");
    for ((part, count), share) in parts.zip([4, 3, 2]).zip([1.0, 0.25, 1.0]) {
        // While the quota follows, nothing is sent, so its time need not pass.
        tokio::time::pause();
        assert!(eventually(async || api.share() == share).await, "{api:?}");
        tokio::time::resume();
        let lines = part.trim_start_matches(|character: char| character != '/');
        says_what_is_written(app.clone(), lines, count).await;
    }
}

#[tokio::test]
async fn behind_proxy_ignores_the_header_of_clients_that_bypass_the_proxy() {
    let app = behind_proxy::app(store(), TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap());
    let mut statuses = Vec::new();
    for i in 0..3 {
        let request = Request::get("/").header("x-forwarded-for", format!("203.0.113.{i}"));
        let request =
            request.extension(SocketAddr::from(([192, 0, 2, 1], 4711))).body(Body::empty()).unwrap();
        statuses.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}
