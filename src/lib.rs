//! Rate limits for Axum, tonic and any Tower service: shared by every instance through Redis, or in
//! process.
//!
//! [`RateLimitLayer`] wraps a service. A [key](KeyExtractor) says who is asking, a [`Policy`] how much is
//! allowed and how it is counted, a [store](Store) keeps the counts, and a client that asked too much gets
//! a 429 it can act on.
//!
//! # Example
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::{Router, body::Body, extract::ConnectInfo, routing::get};
//! use http::Request;
//! use tower::ServiceExt;
//! use tower_ratelimit::{MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // With `RedisStore::connect("redis://..").await?` every instance shares the limit.
//! let store = MemoryStore::new();
//! let limit = RateLimitLayer::new(store, Policy::new("per-ip", Quota::per_minute(2)), PeerIp::new());
//! let app = Router::new().route("/", get(async || "hello")).layer(limit);
//!
//! // What axum adds to a request of `app.into_make_service_with_connect_info::<SocketAddr>()`.
//! let peer = ConnectInfo(SocketAddr::from(([203, 0, 113, 7], 4711)));
//! let request = || Request::get("/").extension(peer).body(Body::empty());
//!
//! assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
//! assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
//! let refused = app.oneshot(request()?).await?;
//! assert_eq!(refused.status(), 429);
//! assert_eq!(refused.headers()["retry-after"], "30");
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//!
//! | part | built in | your own |
//! |---|---|---|
//! | who: [`KeyExtractor`] | [`PeerIp`], [`ClientIp`], [`Header`], [`Cookie`], [`FromExtractor`] and more; [`or`](KeyExtractor::or), tuples | a closure over the request's head |
//! | how much: [`PolicySource`] | a [`Policy`], or one chosen per request | |
//! | counted how: [`Algorithm`] | [`Gcra`], [`FixedWindow`], [`SlidingLog`] and more; see [which one when](algorithm) | a Lua file |
//! | where: [`Store`] | [`RedisStore`], [`MemoryStore`] | the trait |
//! | store down: [`FailureMode`] | open, closed | |
//! | what the client sees: [`ResponseMapper`], [`Headers`] | [`ProblemDetails`], [`GrpcStatus`], IETF and legacy fields | a closure |
//!
//! Requests that are not HTTP are limited by [`KeyedRateLimitLayer`], and what is no request by [`Limiter`].
//!
//! # What is promised
//!
//! * However many ask at once, on however many instances: exactly the limit is admitted, as long as the
//!   store answers in time.
//! * A refused request is charged nothing, and several policies are charged together or not at all.
//! * The wait that a refusal names is the shortest that helps: exactly then the same request is admitted.
//! * A request waits for its decision at most as long as the store's
//!   [deadline](RedisStore::deadline); then its policy's [`FailureMode`] decides.
//! * No identity is never a shared bucket by accident: it is an answer of its own, 400 or 500.
//!
//! # What is not
//!
//! * More decisions at once than the store's connections carry within the deadline count as a failing store.
//! * When Redis fails over to a replica, what was not replicated is forgotten.
//! * While the store is away, [`FailureMode::Open`] limits nothing.
//! * A reply that came too late may stand for a charge that was made.
//! * Policies whose identities differ are atomic on one Redis server. In a Cluster they are decided one after the
//!   other: what was taken is given back where a later one refuses.
//!
//! # Features
//!
//! | name | what it adds | default |
//! |---|---|---|
//! | `axum` | [`PeerIp`] reads axum's `ConnectInfo`; [`FromExtractor`], [`MatchedRoute`]; [`Decision`] and [`Limiter`] are extractors, [`Rejection`] a response | yes |
//! | `cluster` | [`RedisStore`] on Redis Cluster | no |
//! | `redis` | [`RedisStore`] | yes |
//! | `retry` | `RetryPolicy`, the client's half: waits as long as a server that refused a request asks for | no |
//! | `serde` | [`Policy`], [`Quota`], [`FailureMode`] and [`Headers`] are read [from configuration files](policy) | no |
//! | `tonic` | gRPC rejections carry `RetryInfo` and `QuotaFailure`; [`Rejection`] becomes a `tonic::Status`; [`PeerIp`] reads tonic's connect info | no |
//! | `tonic-tls` | [`PeerIp`] reads it under TLS streams that you hand to tonic yourself | no |
//! | `tracing` | refusals at debug, admissions at trace, store trouble and extractors that fail at warn once an episode, set-up mistakes at error once | yes |
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Logs where the feature `tracing` is on. Never an identity.
macro_rules! log {
    ($level:ident, $($fields:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_ratelimit", $($fields)+);
    };
}

pub mod algorithm;
mod answer;
pub mod decision;
mod error;
pub mod key;
pub mod keyed;
pub mod layer;
mod limiter;
pub mod policy;
mod quota;
pub mod response;
#[cfg(feature = "retry")]
#[cfg_attr(docsrs, doc(cfg(feature = "retry")))]
pub mod retry;
pub mod store;
mod util;

/// The pool and the client that [`RedisStore`] is built on, in the versions it is built with.
#[cfg(feature = "redis")]
pub use bb8_redis;

#[cfg(feature = "redis")]
pub use self::store::RedisStore;
pub use self::{
    answer::Answer,
    decision::{Charge, Decision, Verdict},
    error::{Error, ErrorKind},
    key::{ClientIp, Header, Key, KeyExtractor, PeerIp, TrustedProxies},
    layer::{RateLimitLayer, Rule},
    limiter::Limiter,
    policy::{FailureMode, Policy, PolicySource},
    quota::Quota,
    response::{Headers, Rejection},
    store::{ManualClock, MemoryStore},
};

/// The README's programs compile.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
