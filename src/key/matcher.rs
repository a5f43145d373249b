use http::request::Parts;

use super::{Key, KeyExtractor};
use crate::Answer;

/// Says whether a request is one of those that a layer [exempts](crate::RateLimitLayer::exempt) or
/// [bans](crate::RateLimitLayer::ban).
///
/// Implemented by closures over the request's head, and by what
/// [`KeyExtractor::any_of`](crate::KeyExtractor::any_of), [`PeerIp::within`](crate::PeerIp::within)
/// and [`ClientIp::within`](crate::ClientIp::within) give. See
/// [`RateLimitLayer::exempt`](crate::RateLimitLayer::exempt) for an example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which requests it is about",
    note = "closures must write their argument's type: `|parts: &http::request::Parts| ...`",
    note = "and return a `bool`"
)]
pub trait RequestMatcher: Send + Sync + 'static {
    /// Whether the request with the head `request` is one of them. An error means that it is not.
    fn matches(&self, request: &Parts) -> Answer<bool>;
}

impl<F> RequestMatcher for F
where
    F: Fn(&Parts) -> bool + Send + Sync + 'static,
{
    fn matches(&self, request: &Parts) -> Answer<bool> {
        Answer::ready(Ok(self(request)))
    }
}

/// The requests of these identities. Made by [`KeyExtractor::any_of`](crate::KeyExtractor::any_of).
#[derive(Clone, Debug)]
pub struct AnyOf<K> {
    extractor: K,
    /// Sorted.
    keys: std::sync::Arc<[Key]>,
}

impl<K: KeyExtractor> AnyOf<K> {
    pub(super) fn new(extractor: K, identities: impl Iterator<Item = Key>) -> Self {
        let keys = |identity: Key| {
            let mut keys = extractor.keys_of(&identity);
            // Who has a key in its final form, from an extractor, may name that too.
            keys.push(identity);
            keys
        };
        let mut keys: Vec<_> = identities.flat_map(keys).collect();
        keys.sort_unstable();
        keys.dedup();
        Self { extractor, keys: keys.into() }
    }
}

impl<K: KeyExtractor> RequestMatcher for AnyOf<K> {
    fn matches(&self, request: &Parts) -> Answer<bool> {
        let keys = self.keys.clone();
        self.extractor.extract(request).then(move |key| Ok(keys.binary_search(&key?).is_ok()))
    }
}
