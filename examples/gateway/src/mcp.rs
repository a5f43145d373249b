//! MCP tools: each client has a limit on tool calls, and a stricter one on an expensive tool. Rejections are
//! JSON-RPC errors with the wait, and clients see their limits at `/usage`.
//!
//! Run with
//!
//! ```text
//! cargo run -p example-gateway --bin example-gateway-mcp
//! ```
//!
//! and, in another terminal, run the lines right after each other. A client may call six tools a minute, and
//! `render` twice an hour. A batch is charged for each of its calls, all or nothing.
//!
//! ```text
//! curl -i -H 'x-api-key: k-ann' -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}' http://127.0.0.1:3000/mcp
//!     200
//!     ratelimit: "tool-calls";r=5;t=50, "render";r=2;t=3600, "per-ip";r=19;t=57, "in-flight";r=7
//!     {"id":1,"jsonrpc":"2.0","result":{"content":[{"text":"called search","type":"text"}]}}
//! curl -i -H 'x-api-key: k-ann' -d '[{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"render"}},{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"render"}}]' http://127.0.0.1:3000/mcp
//!     200
//!     ratelimit: "tool-calls";r=3;t=30, "render";r=0;t=1800, "per-ip";r=18;t=54, "in-flight";r=7
//! curl -i -H 'x-api-key: k-ann' -d '{"jsonrpc":"2.0","id":"r-4","method":"tools/call","params":{"name":"render"}}' http://127.0.0.1:3000/mcp
//!     429
//!     retry-after: 1800
//!     content-type: application/json
//!     {"jsonrpc":"2.0","id":"r-4","error":{"code":-32029,"message":"over the rate limit; try again in 30 minutes","data":{"retryAfterSeconds":1800}}}
//! curl -i -H 'x-api-key: k-ann' -d '{"jsonrpc":"2.0","id":5,"method":"tools/list"}' http://127.0.0.1:3000/mcp
//!     200
//!     ratelimit: "tool-calls";r=3;t=30, "render";r=0;t=1800, "per-ip";r=16;t=48, "in-flight";r=7
//! curl -i -H 'x-api-key: k-ann' -d '{"jsonrpc":"2.0","id":6,"method":"tools/list","method":"tools/call","params":{"name":"render"}}' http://127.0.0.1:3000/mcp
//!     400
//!     {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the body of the request is not valid JSON-RPC"}}
//! curl -i -H 'x-api-key: k-ann' -H 'content-encoding: gzip' -d 'compressed' http://127.0.0.1:3000/mcp
//!     415
//!     accept-encoding: identity
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/usage
//!     200
//!     {"limits":[{"policy":"tool-calls","quota":"6/min","unit":"requests","capacity":6,"used":3,"remaining":3,"owed":0,"reset_after":30.0,"banned_for":null},{"policy":"render","quota":"2/h","unit":"requests","capacity":2,"used":2,"remaining":0,"owed":0,"reset_after":3600.0,"banned_for":null}]}
//! curl -i http://127.0.0.1:3000/usage
//!     400
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Extension, Json, Router, body::Bytes, routing::post};
use http::{StatusCode, request::Parts};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_ratelimit::{
    Header, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rule, layer::Rules,
};
use tower_ratelimit_gateway::body::{
    BufferBodyLayer,
    json_rpc::{JsonRpc, JsonRpcErrors},
};
use tower_ratelimit_operate::usage::UsageRoute;

/// How often the request calls a tool, or the tool `name`.
fn calls(request: &Parts, name: Option<&str>) -> Result<u64, tower_ratelimit::Error> {
    let is_counted = |tool: &&str| name.is_none_or(|name| name == *tool);
    Ok(JsonRpc::of(request)?.tools().filter(is_counted).count() as u64)
}

/// The service. Its SDK would parse the body. Here, what the limits have read is enough.
async fn mcp(Extension(rpc): Extension<JsonRpc>, body: Bytes) -> Result<Json<Value>, StatusCode> {
    let body: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let answer = |message: &Value, tool: Option<&str>| {
        let result = match tool {
            Some(tool) => json!({ "content": [{ "text": format!("called {tool}"), "type": "text" }] }),
            None => json!({}),
        };
        json!({ "id": message["id"], "jsonrpc": "2.0", "result": result })
    };
    let mut tools = rpc.messages().iter().map(|message| message.tool());
    Ok(Json(match &body {
        Value::Array(batch) => batch.iter().zip(tools).map(|(message, tool)| answer(message, tool)).collect(),
        message => answer(message, tools.next().flatten()),
    }))
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let (limiter, errors) = (limiter.into(), JsonRpcErrors::new());

    // In front of the buffer: clients behind an address cannot fill the memory, or guess API keys, faster
    // than this, and have no more than eight bodies in memory.
    let per_ip = Rule::new(Policy::new("per-ip", Quota::per_minute(20)), PeerIp::new());
    let in_flight = Rule::new(Policy::concurrency("in-flight", 8), PeerIp::new());
    let addresses =
        RateLimitLayer::with_rules(limiter.clone(), Rules::new().always(per_ip).always(in_flight));

    let buffer = BufferBodyLayer::new(64 * 1024)
        .timeout(Duration::from_secs(5))
        .max_total_bytes(32 << 20)
        .reject_unread()
        .parse_with(JsonRpc::parse)
        .response(move |rejection, _| errors.of_body(rejection));

    // The expensive tool has its own rule, whose key is the client alone. So the names of tools that clients
    // invent make no keys, and a batch may call several tools.
    let per_call = Rule::new(Policy::new("tool-calls", Quota::per_minute(6)), Header::new("x-api-key"))
        .cost(|request| calls(request, None));
    let per_render = Rule::new(Policy::new("render", Quota::per_hour(2)), Header::new("x-api-key"))
        .cost(|request| calls(request, Some("render")));
    let tools = RateLimitLayer::with_rules(limiter, Rules::new().always(per_call).always(per_render));
    let tools = tools.response(errors);

    let usage = UsageRoute::new(&tools).into_route();
    Router::new()
        .route("/mcp", post(mcp))
        .layer(tools)
        .layer(buffer)
        // Layers apply to the routes above them.
        .route("/usage", usage)
        .layer(addresses.response(errors))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(MemoryStore::new()).into_make_service_with_connect_info::<SocketAddr>())
        .await?;
    Ok(())
}
