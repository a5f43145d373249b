//! What the methods of [`KeyExtractor`](crate::KeyExtractor) return.
//!
//! The structs know nothing of the trait, which names them. What they do is in `combine`.

use std::{fmt, sync::Arc};

use super::{IntoKey, Key, Secret};
use crate::base::Answer;

/// An extractor, and another one for requests without the identity that the first looks for. Returned by
/// [`KeyExtractor::or`](crate::KeyExtractor::or).
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::Constant, Header, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Header::new("x-api-key").or(Constant::new("anonymous"));
///
/// let (parts, ()) = Request::get("/").header("x-api-key", "k1").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await?, Key::new("k1"));
///
/// // Requests without an API key share one limit. No API key is in that limit, not even "anonymous".
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_ne!(key.extract(&parts).await?, Key::new("anonymous"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

/// An extractor whose identities a function changes. Returned by [`KeyExtractor::map`](crate::KeyExtractor::map),
/// [`lowercase`](crate::KeyExtractor::lowercase) and [`trim`](crate::KeyExtractor::trim).
#[derive(Clone)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Map<K> {
    pub(super) extractor: K,
    pub(super) change: Arc<dyn Fn(&str) -> Answer<Key> + Send + Sync>,
    /// Whether the function looks keys up.
    pub(super) looks_up: bool,
}

impl<K> Map<K> {
    pub(super) fn new<T: IntoKey>(extractor: K, change: impl Fn(&str) -> T + Send + Sync + 'static) -> Self {
        Self {
            extractor,
            change: Arc::new(move |identity| change(identity).into_key()),
            looks_up: T::LOOKED_UP,
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for Map<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("extractor", &self.extractor).finish_non_exhaustive()
    }
}

/// An extractor whose keys disclose nothing of the identity. Returned by
/// [`KeyExtractor::hashed`](crate::KeyExtractor::hashed).
#[derive(Clone, Debug)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Hashed<K> {
    pub(super) extractor: K,
    pub(super) secret: Secret,
}
