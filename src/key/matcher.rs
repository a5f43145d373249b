use http::request::Parts;

use super::{Key, KeyExtractor};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

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
    /// Whether the request with the head `request` is one of them.
    ///
    /// # Errors
    ///
    /// [`MissingIdentity`](ErrorKind::MissingIdentity): the request shows nothing to match, so it is not one of
    /// them. Any other kind: it cannot be decided whether it is. Such a request is not
    /// [exempt](crate::RateLimitLayer::exempt), and a [ban](crate::RateLimitLayer::ban) rejects it as a key with
    /// this error does: 400 for [`InvalidIdentity`](ErrorKind::InvalidIdentity), else 500.
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
    pub(super) fn new(extractor: K, identities: impl Iterator<Item = Key>) -> Result<Self, Error> {
        let mut keys = Vec::new();
        for (i, identity) in identities.enumerate() {
            // A key in its final form, from an extractor or a decision, names itself.
            if identity.is_final() {
                keys.push(identity.stored());
                continue;
            }
            let found = extractor
                .keys_of(&identity)
                .map_err(|error| Error::new(error.kind(), format!("identity {}: {error}", i + 1)))?;
            keys.extend(found.into_iter().map(Key::stored));
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(Self { extractor, keys: keys.into() })
    }
}

impl<K: KeyExtractor> RequestMatcher for AnyOf<K> {
    fn matches(&self, request: &Parts) -> Answer<bool> {
        let keys = self.keys.clone();
        self.extractor.extract(request).then(move |key| {
            let key = key?;
            match keys.binary_search(&key) {
                Ok(_) if key.is_assumed() => Err(not_determined()),
                found => Ok(found.is_ok()),
            }
        })
    }
}

/// Of a request whose client is unknown, where its proxy is one of those that a matcher is about.
pub(crate) fn not_determined() -> Error {
    Error::new(ErrorKind::InvalidIdentity, "the client behind the proxy could not be determined")
}

/// The key of the identity that `named` has, if it is `possible`.
pub(super) fn only(
    named: &Key,
    possible: impl FnOnce(&[u8]) -> bool,
    expected: &'static str,
) -> Result<Vec<Key>, Error> {
    match named.raw() {
        Some(identity) if possible(&identity) => Ok(vec![Key::new(identity)]),
        _ => Err(never(expected)),
    }
}

/// The error over an identity that no request shows to an extractor which gives `expected`. It does not show the
/// identity, which may be a secret.
pub(super) fn never(expected: &'static str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("no request has this identity: it must be {expected}"))
}
