//! What would be decided about a key or a request, and why, for people and programs: [`Explanation`].
//!
//! # Example
//!
//! ```
//! use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
//! use tower_ratelimit_operate::explain::Explanation;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_ratelimit::Error> {
//! let limiter = Limiter::new(MemoryStore::new());
//! let login = Policy::new("login", Quota::per_minute(5));
//!
//! let explanation = Explanation::of(&limiter, &login, &Key::new("alice"), 6).await?;
//! assert!(explanation.to_string().ends_with("a request of 6 units is denied; waiting does not help\n"));
//! # Ok(())
//! # }
//! ```

mod explain;
mod explanation;
#[cfg(feature = "serde")]
mod serialize;
mod text;

pub use self::explanation::{ExplainedCharge, Explanation};
