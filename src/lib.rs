//! Rate limits for Axum, tonic and any Tower service: shared by every instance through Redis, or in
//! process.
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Logs where the feature `tracing` is on. Never an identity.
macro_rules! log {
    ($level:ident, $($fields:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "tower_ratelimit", $($fields)+);
    };
}

pub mod algorithm;
mod body;
mod clock;
mod config;
mod decision;
mod error;
mod future;
mod key;
mod layer;
mod limiter;
mod policy;
mod quota;
mod response;
mod rule;
#[cfg(feature = "redis")]
mod script;
mod service;
mod store;

#[cfg(feature = "redis")]
pub use bb8_redis;

#[cfg(feature = "redis")]
pub use self::store::RedisStore;
pub use self::{
    algorithm::{Algorithm, FixedWindow, Gcra},
    body::ResponseBody,
    clock::ManualClock,
    decision::{Charge, Decision, Outcome, Verdict},
    error::{Error, ErrorKind},
    future::ResponseFuture,
    key::{Constant, Header, IntoKey, Key, KeyExtractor, Or, PeerIp},
    layer::RateLimitLayer,
    limiter::{Check, Limiter},
    policy::{FailureMode, Policy},
    quota::Quota,
    response::{Headers, ProblemDetails, RefusalBody, Rejection, ResponseMapper},
    rule::PolicySource,
    service::RateLimit,
    store::{Answer, MemoryStore, Store},
};
