//! Asynchronous lookups of clients and their policies, cached: [`Lookup`].
//!
//! # Example
//!
//! ```
//! use tower_ratelimit::{Error, ErrorKind};
//! use tower_ratelimit_extra::lookup::Lookup;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let accounts = Lookup::new(|api_key: String| async move {
//!     let account = (api_key == "k-ann").then_some(7_u64);
//!     account.ok_or_else(|| Error::new(ErrorKind::UnknownIdentity, "no account has this API key"))
//! });
//! assert_eq!(accounts.get("k-ann").await.unwrap(), 7);
//! assert_eq!(accounts.get("k-bob").await.unwrap_err().kind(), ErrorKind::UnknownIdentity);
//! # }
//! ```

mod lookup;
mod settings;
mod shared;

pub use self::lookup::Lookup;
