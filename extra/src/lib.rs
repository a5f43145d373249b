//! Parts of [`tower_ratelimit`] that few services need, each of which is a feature. None is on by default.
//!
//! | feature | module | what it has |
//! |---|---|---|
//! | `adaptive` | `adaptive` | quotas that follow the load of the service, or any other signal |
//! | `lookup` | `lookup` | asynchronous lookups of clients and their policies, cached |
//! | `streamed-credentials` | `credentials` | a credentials provider of redis-rs, such as the one of Entra ID, for a `RedisStore` |
//! | `testing` | `testing` | tests that compare a custom algorithm's Lua file with its Rust twin on random steps |
//!
//! Other features add to these: `metrics` and `tracing` record what happens, `redis` shares state between
//! instances, and `tonic` measures gRPC services. `redis`, `tracing` and the default features of
//! `tower-ratelimit` are on by default. If another dependency turns a feature of this crate on, only logs and
//! metrics are added; `tonic` also turns on the same feature of the core, which
//! [changes](tower_ratelimit#features) what gRPC clients receive.
//!
//! The crate has its own version, and uses the public API of `tower-ratelimit` alone, which it re-exports as
//! [`tower_ratelimit`].
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "lookup")] {
//! use std::time::Duration;
//! use tower_ratelimit_extra::{
//!     lookup::Lookup,
//!     tower_ratelimit::{Error, Quota},
//! };
//!
//! // The quotas of accounts, from a database. Each is kept for a minute.
//! let quotas = Lookup::new(|account: u64| async move { Ok::<_, Error>(Quota::per_minute(60 + account)) })
//!     .ttl(Duration::from_secs(60));
//! # drop(quotas);
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Logs if the feature `tracing` is on. Never pass an identity.
#[allow(unused_macros, reason = "not every part logs")]
macro_rules! log {
    ($level:ident, $($fields:tt)+) => {
        #[cfg(feature = "tracing")]
        {
            // A subscriber that panics changes nothing.
            let _ = crate::panics::caught(|| tracing::$level!(target: "tower_ratelimit", $($fields)+));
        }
    };
}

#[cfg(feature = "adaptive")]
#[cfg_attr(docsrs, doc(cfg(feature = "adaptive")))]
pub mod adaptive;
#[cfg(all(feature = "metrics", feature = "adaptive"))]
mod capacity;
#[cfg(feature = "streamed-credentials")]
#[cfg_attr(docsrs, doc(cfg(feature = "streamed-credentials")))]
pub mod credentials;
#[cfg(feature = "lookup")]
#[cfg_attr(docsrs, doc(cfg(feature = "lookup")))]
pub mod lookup;
#[cfg(any(feature = "adaptive", feature = "lookup"))]
mod outage;
mod panics;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;

pub use tower_ratelimit;
