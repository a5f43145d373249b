//! Rate limits for Axum, tonic and any Tower service, shared by every instance through Redis or kept in one
//! process.
//!
//! [`RateLimitLayer`] wraps a service. A [key](KeyExtractor) identifies the client, a [`Policy`] sets the
//! limit, and a [store](store::Store) keeps the counts. A client over the limit gets a 429 response that
//! states when to retry.
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
//! // A server adds this: `axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())`.
//! let peer = ConnectInfo(SocketAddr::from(([203, 0, 113, 7], 4711)));
//! let request = || Request::get("/").extension(peer).body(Body::empty());
//!
//! assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
//! assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
//! let rejection = app.oneshot(request()?).await?;
//! assert_eq!(rejection.status(), 429);
//! assert_eq!(rejection.headers()["retry-after"], "30");
//! # Ok(())
//! # }
//! ```
//!
//! # Guides
//!
//! New to the crate: [quickstart](guide::quickstart), [concepts and glossary](guide::concepts),
//! [coming from another limiter](guide::migration), [FAQ](guide::faq).
//!
//! Before production: [**the client's address behind proxies**](guide::client_ip),
//! [**deployment checklist**](guide::deployment), [failure modes](guide::failure), [Redis](guide::redis),
//! [metrics and alerts](guide::metrics_and_alerts).
//!
//! By task: [keys](guide::keys), [numbers and algorithms](guide::choosing), [several limits, routes and
//! costs](guide::several_limits), [logins and abuse](guide::logins), [LLM tokens and
//! streams](guide::streams), [MCP and GraphQL](guide::body), [gRPC](guide::grpc),
//! [WebSocket](guide::websocket), [jobs and outgoing calls](guide::outgoing), [testing](guide::testing).
//!
//! In operation: [troubleshooting by log line and error](guide::troubleshooting),
//! [operations](guide::operations), [upgrades and rolling deploys](guide::upgrades).
//!
//! # The parts
//!
//! | question | built in | your own | module |
//! |---|---|---|---|
//! | Which client? [`KeyExtractor`] | [`PeerIp`], [`ClientIp`], [`Header`], [`Cookie`](key::Cookie), [`from_extractor`](key::from_extractor) and more; [`or`](KeyExtractor::or), tuples | [a closure](key::from_fn) over the request's head | [`key`] |
//! | Which limit? [`PolicySource`] | one [`Policy`] for all requests, one that changes while the service runs, or one chosen per request; tables of [routes](layer::Rules) | a closure over the request's head and its key, which may look the policy up | [`policy`], [`layer`] |
//! | How are units counted? [`Algorithm`](algorithm::Algorithm) | [`Gcra`](algorithm::Gcra), [`FixedWindow`](algorithm::FixedWindow), [`SlidingLog`](algorithm::SlidingLog) and more | a Lua file, and a twin in Rust for [`MemoryStore`] | [`algorithm`], with a guide to choosing one |
//! | Where are the counts? [`Store`](store::Store) | [`RedisStore`], [`MemoryStore`] | the trait | [`store`] |
//! | What if the store is unavailable? [`FailureMode`] | count in this process, admit, or reject with 503 | | [`policy`] |
//! | What does the client see? [`ResponseMapper`](response::ResponseMapper), [`RateLimitHeaders`] | [`ProblemDetails`](response::ProblemDetails), [`GrpcStatus`](response::GrpcStatus), IETF and legacy headers | a closure | [`response`] |
//!
//! Crates beside this one have what fewer services need. `tower-ratelimit-operate`: policies in configuration files and
//! policies that change while the service runs, networks that operators block, a router for operators.
//! `tower-ratelimit-gateway`: limits that read the body, and prices of language models. `tower-ratelimit-extra`: quotas
//! that follow the load, cached lookups, tests of custom algorithms.
//!
//! For requests that are not HTTP, use [`KeyedRateLimitLayer`](keyed::KeyedRateLimitLayer). To decide without
//! a layer, use [`Limiter`]. Clients retry with the crate `tower-ratelimit-retry`, in the folder `retry` of
//! the repository.
//!
//! # Guarantees
//!
//! As long as the store answers in time:
//!
//! * Exactly what the algorithm allows is admitted, with any number of concurrent requests and instances. The
//!   default algorithm allows a burst in addition to the rate: see [why a limit of 5 admits
//!   9](guide::faq#why-did-a-limit-of-5-admit-9).
//! * A denied request is charged nothing. Several policies are charged together or not at all; in a Redis
//!   Cluster, those with different keys are decided [one after the other](guide::redis#cluster).
//! * `Retry-After` is exact: the same request is admitted after it, unless the quota was used in the
//!   meantime. Under [`Concurrency`](algorithm::Concurrency), it is an estimate: permits are released sooner,
//!   or renewed.
//!
//! Always:
//!
//! * A request waits for the store no longer than the [deadline](store::RedisStoreBuilder::deadline). Time
//!   during which an overloaded process cannot poll the request does not count towards it, except in a Redis
//!   Cluster. After the deadline, the policy's [`FailureMode`] decides.
//! * Requests without an identity are rejected with 400, 401 or 500, while limits are enforced; they do not
//!   share a limit. There are two exceptions: requests that a trusted proxy sends [without a usable
//!   address](ClientIp) share the proxy's limit, and [CORS preflights](RateLimitLayer#cors-preflights)
//!   without credentials share one for each peer.
//!
//! # Limitations
//!
//! * Decisions that an overloaded Redis cannot make within the deadline count as failures of the store.
//! * If Redis fails over to a replica, charges that were not replicated are lost.
//! * While the store is unavailable, each instance counts separately, see [`FailureMode::Local`];
//!   [`FailureMode::Open`] limits nothing.
//! * If a reply misses the deadline, the request may have been charged.
//! * Policies with different keys are decided atomically on one Redis server. In a Redis Cluster they are
//!   decided one after the other; if one denies, the charges before it are refunded.
//! * With [leases](Policy::max_lease), one instance may hold unused units while another denies requests.
//!
//! # Features
//!
//! | name | what it adds | default |
//! |---|---|---|
//! | `axum` | [`PeerIp`] reads axum's `ConnectInfo`; [`from_extractor`](key::from_extractor), [`MatchedRoute`](key::MatchedRoute); [`Decision`] and [`Limiter`] are extractors, [`Rejection`] is a response | yes |
//! | `cluster` | [`RedisStore`] on Redis Cluster: [`Servers::cluster`](store::Servers::cluster) | no |
//! | `metrics` | counters, histograms and gauges for any exporter of the facade `metrics`; their [`BUCKETS`](metrics::BUCKETS) | no |
//! | `redis` | [`RedisStore`] on one server, and its [`ProbeReport`](store::ProbeReport) | yes |
//! | `settlement-tokens` | a reservation as a sealed text that [another process settles](settlement) | no |
//! | `sentinel` | [`RedisStore`] on the primary of Redis Sentinel: [`Servers::sentinel`](store::Servers::sentinel) | no |
//! | `serde` | [`Quota`], [`FailureMode`], [`QuotaUnit`](policy::QuotaUnit) and [`Enforcement`](policy::Enforcement) are read from configuration files; whole policies with `tower-ratelimit-operate` | no |
//! | `tls-rustls` | [`RedisStore`] on `rediss://` URLs, with rustls and ring | no |
//! | `tls-rustls-no-provider` | the same, with the crypto provider that your program installs | no |
//! | `tonic` | gRPC rejections carry `RetryInfo` and `QuotaFailure`; [`Rejection`] becomes a `tonic::Status`; [`PeerIp`] reads tonic's connect info | no |
//! | `time-zones` | [calendar windows in time zones](algorithm::FixedWindow::time_zone), with their rules for summer time | no |
//! | `tonic-tls` | [`PeerIp`] reads the address of TLS streams that you pass to tonic | no |
//! | `tracing` | logs: denials at debug, admissions at trace, the start of an outage at warn, setup errors once at error | yes |
//!
//! Cargo turns a feature on for the whole program if any dependency asks for it. These features then change
//! what a program does without a change of its code; all others only add items:
//!
//! | name | what changes |
//! |---|---|
//! | `axum` | A table of [routes](layer::Rules) matches the path in axum's `OriginalUri`, if a request has one: inside a nested router, the path with the prefix. [`PeerIp`] prefers axum's `ConnectInfo` to a `SocketAddr` in the request's extensions. A closure as a [`ResponseMapper`](response::ResponseMapper) may return anything that is `IntoResponse`, so the compiler may ask for its return type |
//! | `cluster` | [`RedisStoreBuilder::build`](store::RedisStoreBuilder::build) rejects a pool of connections to a Redis Cluster, which it cannot recognize without the feature |
//! | `metrics`, `tracing` | metrics are recorded, logs are written |
//! | `tls-rustls` | If the program has installed no crypto provider of rustls when a store is made for a `rediss://` URL, ring is installed for the process; with `tls-rustls-no-provider` alone, this is an error |
//! | `tonic`, `tonic-tls` | The rejection of a denied gRPC call has the header `grpc-status-details-bin`. [`PeerIp`] prefers tonic's connect info to a `SocketAddr` in the request's extensions |
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Logs if the feature `tracing` is on. Never pass an identity. A subscriber that panics changes nothing.
#[cfg(feature = "tracing")]
macro_rules! log {
    (@level error) => { tracing::Level::ERROR };
    (@level warn) => { tracing::Level::WARN };
    (@level info) => { tracing::Level::INFO };
    (@level debug) => { tracing::Level::DEBUG };
    (@level trace) => { tracing::Level::TRACE };
    ($level:ident, $($fields:tt)+) => {
        // Most lines are of levels that nothing listens to.
        if tracing::level_enabled!(log!(@level $level)) {
            let _ = crate::base::panics::caught(|| tracing::$level!(target: "tower_ratelimit", $($fields)+));
        }
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! log {
    ($level:ident, $($name:ident = $(%)? $value:expr,)* $text:literal $(, $argument:expr)*) => {
        // The values count as used. None is made.
        if false {
            $(let _ = &$value;)*
            let _ = format_args!($text $(, $argument)*);
        }
    };
}

/// Records a metric if the feature `metrics` is on. Never pass an identity.
macro_rules! metric {
    ($name:ident($($argument:expr),*)) => {
        #[cfg(feature = "metrics")]
        crate::metrics::record::$name($($argument),*);
    };
}

/// An error of an invalid configuration, with a formatted message.
macro_rules! invalid {
    ($($message:tt)+) => {
        crate::base::Error::new(crate::base::ErrorKind::InvalidConfig, format!($($message)+))
    };
}

/// Returns an error of an invalid configuration with `message`, unless `condition` holds.
macro_rules! ensure {
    ($condition:expr, $message:expr $(,)?) => {
        if !$condition {
            return Err(crate::base::Error::invalid($message));
        }
    };
}

/// Implements `Debug` without the fields of a type.
macro_rules! opaque_debug {
    ($name:ident $(<$parameter:ident>)?) => {
        impl $(<$parameter>)? std::fmt::Debug for $name $(<$parameter>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

pub mod algorithm;
mod base;
pub mod decision;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
pub mod key;
pub mod keyed;
pub mod layer;
mod limiter;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub mod metrics;
pub mod policy;
pub mod response;
#[cfg(feature = "settlement-tokens")]
#[cfg_attr(docsrs, doc(cfg(feature = "settlement-tokens")))]
pub mod settlement;
pub mod store;

/// The connection pool of [`RedisStore`], for [`build`](store::RedisStoreBuilder::build): re-exported so your
/// own pool has the same version. No other part of the API has types of `bb8` or `redis`.
#[cfg(feature = "redis")]
pub use bb8_redis;

#[cfg(feature = "redis")]
pub use self::store::redis::RedisStore;
pub use self::{
    base::{Answer, Error, ErrorKind, Quota},
    decision::{charge::Charge, decision::Decision},
    key::{
        extractor::KeyExtractor,
        header::Header,
        ip::{ClientIp, PeerIp},
        key::Key,
    },
    layer::{layer::RateLimitLayer, rule::Rule},
    limiter::{Limiter, Operator, Reservation, Units},
    policy::{criticality::Criticality, failure_mode::FailureMode, policy::Policy, source::PolicySource},
    response::{headers::RateLimitHeaders, rejection::Rejection},
    store::memory::MemoryStore,
};

/// Compiles the programs in the README.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
