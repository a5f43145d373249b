//! JSON-RPC requests, such as calls of MCP tools: [`JsonRpc`] reads them for keys and costs, and
//! [`JsonRpcErrors`] answers rejected ones.
//!
//! # Example
//!
//! Each client may call a tool twice an hour:
//!
//! ```
//! use axum::{Router, body::Body, routing::post};
//! use http::{Request, request::Parts};
//! use http_body_util::BodyExt;
//! use tower::ServiceExt;
//! use tower_ratelimit::{Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
//! use tower_ratelimit_gateway::body::{BufferBodyLayer, json_rpc::{JsonRpc, JsonRpcErrors}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tool = |request: &Parts| JsonRpc::of(request)?.tool().map(String::from);
//! let per_tool = Rule::new(Policy::new("per-tool", Quota::per_hour(2)), (Header::new("x-api-key"), tool))
//!     .skip_if(|request: &Parts| Ok(JsonRpc::of(request)?.tools().count() == 0))
//!     .cost(|request: &Parts| Ok(JsonRpc::of(request)?.tools().count() as u64));
//! let limit = RateLimitLayer::with_rules(MemoryStore::new(), per_tool).response(JsonRpcErrors::new());
//! let buffer = BufferBodyLayer::new(16_384).parse_with(JsonRpc::parse);
//! let app = Router::new().route("/mcp", post(async || "{}")).layer(limit).layer(buffer);
//!
//! let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search"}}"#;
//! let request = |body: String| Request::post("/mcp").header("x-api-key", "k1").body(Body::from(body));
//! assert_eq!(app.clone().oneshot(request(format!("[{call},{call}]"))?).await?.status(), 200);
//!
//! let denied = app.clone().oneshot(request(call.into())?).await?;
//! assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"1800".parse()?));
//! assert_eq!(
//!     denied.into_body().collect().await?.to_bytes(),
//!     r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32029,"message":"over the rate limit; try again in 30 minutes","data":{"retryAfterSeconds":1800}}}"#
//! );
//! // Another tool has its own count, and other methods are not limited.
//! assert_eq!(app.clone().oneshot(request(call.replace("search", "fetch"))?).await?.status(), 200);
//! assert_eq!(app.oneshot(request(call.replace("tools/call", "tools/list"))?).await?.status(), 200);
//! # Ok(())
//! # }
//! ```

mod errors;
mod message;
mod request;

pub use self::{errors::JsonRpcErrors, message::Message, request::JsonRpc};
