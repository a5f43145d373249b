//! What the methods of [`KeyExtractor`](crate::KeyExtractor) return.
//!
//! The structs know nothing of the trait, which names them. What they do is in `combine`.

use std::sync::Arc;

use super::{IntoKey, Key, Secret};
use crate::base::Answer;

/// An extractor, and another one for requests without the identity that the first looks for.
pub(super) struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

/// An extractor whose identities a function changes.
pub(super) struct Map<K> {
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

/// An extractor whose keys disclose nothing of the identity.
pub(super) struct Hashed<K> {
    pub(super) extractor: K,
    pub(super) secret: Secret,
}
