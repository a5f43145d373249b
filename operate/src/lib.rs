//! For those who operate limits of [`tower_ratelimit`]: optional parts, each of which is a feature. None is on by default.
//!
//! | feature | module | what it has |
//! |---|---|---|
//! | `admin` | `admin` | an axum router for operators: why a client is denied, reset, refund, ban |
//! | `cli` | `cli` | the options of a command that uses the limits in Redis, for clap |
//! | `explain` | `explain` | what would be decided about a key or a request, and why, as text and as JSON |
//! | `live` | `live` | policies that change while the service runs, from a file or from Redis; networks that operators block |
//! | `prices` | `live` | the same for prices of `tower-ratelimit-gateway`, from a file |
//! | `serde` | `config`, `answer` | policies in configuration files; explanations are serialized; the answers of the router, as types |
//! | `usage` | `usage` | a route on which clients see their own limits: used, remaining, until when |
//!
//! Other features add to these: `metrics` and `tracing` record what happens, `redis` shares state between instances, `yaml`
//! reads live files in YAML, and `time-zones` calendar periods in time zones. `redis`, `tracing` and the default features
//! of `tower-ratelimit` are on by default. If another dependency turns a feature of this crate on, only logs and metrics
//! are added.
//!
//! The crate has its own version, and uses the public API of `tower-ratelimit` alone, which it re-exports as
//! [`tower_ratelimit`].
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "explain")]
//! use tower_ratelimit_operate::{
//!     explain::Explanation,
//!     tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota},
//! };
//!
//! # #[cfg(feature = "explain")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_ratelimit::Error> {
//! let limiter = Limiter::new(MemoryStore::new());
//! let api = Policy::new("api", Quota::per_minute(5));
//! let alice = Key::new("alice");
//!
//! limiter.check(&api, &alice, 5).await?;
//! let explanation = Explanation::of(&limiter, &api, &alice, 1).await?;
//! assert!(!explanation.decision().is_admitted());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "explain"))]
//! # fn main() {}
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

#[cfg(feature = "admin")]
#[cfg_attr(docsrs, doc(cfg(feature = "admin")))]
pub mod admin;
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
pub mod answer;
#[cfg(all(feature = "metrics", feature = "live"))]
mod capacity;
#[cfg(feature = "cli")]
#[cfg_attr(docsrs, doc(cfg(feature = "cli")))]
pub mod cli;
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
pub mod config;
#[cfg(feature = "explain")]
#[cfg_attr(docsrs, doc(cfg(feature = "explain")))]
pub mod explain;
#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
pub mod live;
mod panics;
#[cfg(any(feature = "admin", feature = "usage"))]
mod reply;
#[cfg(feature = "usage")]
#[cfg_attr(docsrs, doc(cfg(feature = "usage")))]
pub mod usage;

pub use tower_ratelimit;
