//! The examples of the crate answer the curl lines in their doc comments with the responses written there.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/gateway/src/main.rs"]
pub(crate) mod gateway;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../gateway/examples/graphql.rs"]
mod graphql;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../gateway/examples/llm_prices.rs"]
mod llm_prices;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/gateway/src/mcp.rs"]
mod mcp;

use http::Request;
use support::{
    examples::{says_what_is_written, store},
    http::{Client, serve},
};

#[tokio::test]
async fn graphql_says_what_is_written() {
    says_what_is_written(graphql::app(store()), include_str!("../../gateway/examples/graphql.rs"), 6).await;
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
    says_what_is_written(mcp::app(store()), include_str!("../../examples/gateway/src/mcp.rs"), 8).await;
}

#[tokio::test]
async fn gateway_says_what_is_written() {
    let app = gateway::app(store(), gateway::vendor());
    says_what_is_written(app, include_str!("../../examples/gateway/src/main.rs"), 5).await;
}

#[tokio::test]
async fn llm_prices_says_what_is_written() {
    says_what_is_written(llm_prices::app(store()), include_str!("../../gateway/examples/llm_prices.rs"), 8)
        .await;
}
