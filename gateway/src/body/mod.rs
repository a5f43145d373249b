//! A bounded reader of request bodies, so that keys and costs can depend on the body: [`BufferBodyLayer`].
//! [`json_rpc`] reads MCP and other JSON-RPC requests.
//!
//! Put it between two limits: in front of it a limit by address, so that a client cannot fill the memory, and
//! behind it the limits that read the body. [`BodyBytes::of`] reads the body in a key extractor or a cost. With
//! [`parse_with`](BufferBodyLayer::parse_with), the body is parsed once for all rules and the handler.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, body::Body, routing::post};
//! use http::{Request, request::Parts};
//! use tower::ServiceExt;
//! use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
//! use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let per_ip = RateLimitLayer::new(MemoryStore::new(), Policy::new("ip", Quota::per_hour(9)), Key::new("127.0.0.1"));
//! // A line of the body costs a unit.
//! let lines = |request: &Parts| Ok(BodyBytes::of(request)?.split(|byte| *byte == b'\n').count() as u64);
//! let per_line = Rule::new(Policy::new("lines", Quota::per_hour(3)), Key::new("all")).cost(lines);
//! let buffer = BufferBodyLayer::new(16).timeout(Duration::from_secs(5)).max_total_bytes(1 << 20).reject_unread();
//! let app = Router::new()
//!     .route("/", post(async |body: String| body))
//!     .layer(RateLimitLayer::with_rules(MemoryStore::new(), per_line))
//!     .layer(buffer)
//!     // By address, such as with `PeerIp`.
//!     .layer(per_ip);
//!
//! for (body, status) in [("one\ntwo", 200), ("one\ntwo", 429), ("one", 200), ("more than 16 bytes", 413)] {
//!     let request = Request::post("/").body(Body::from(body))?;
//!     assert_eq!(app.clone().oneshot(request).await?.status(), status);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What a client can cause
//!
//! A client holds at most the bound on one body per request, for at most the timeout and the time that the
//! service takes. All clients together hold at most the [total](BufferBodyLayer::max_total_bytes). When the
//! total is used up, requests with a body are answered with 503, so a client without a limit in front of this
//! layer can keep others out. A rate by address does not bound slow bodies, because each request is charged
//! once: add a [concurrency](tower_ratelimit::Policy::concurrency) policy by address to that limit.

mod body_bytes;
mod collect;
mod head;
pub mod json_rpc;
mod layer;
mod rejection;
mod request_body;
mod response;
mod service;
mod settings;
mod total;

/// The response future.
pub mod future {
    pub use super::service::ResponseFuture;
}

pub use self::{
    body_bytes::{BodyBytes, Unread},
    layer::BufferBodyLayer,
    rejection::{BodyRejection, BodyRejectionKind},
    request_body::RequestBody,
    response::MaybeRejected,
    service::BufferBody,
};
pub use crate::strict_names::StrictNames;
