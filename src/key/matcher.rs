use http::request::Parts;

use crate::{
    base::{Answer, Error, ErrorKind},
    key::{AnyOf, KeyExtractor},
};

/// Decides which requests a layer [exempts](crate::RateLimitLayer::exempt) or [blocks](crate::RateLimitLayer::block), and
/// which a rule [skips](crate::Rule::skip).
///
/// Closures over the head of the request implement this trait, and so do the results of
/// [`KeyExtractor::any_of`](crate::KeyExtractor::any_of), [`PeerIp::within`](crate::PeerIp::within) and
/// [`ClientIp::within`](crate::ClientIp::within). See [`RateLimitLayer::exempt`](crate::RateLimitLayer::exempt) for
/// an example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not match requests",
    note = "closures must write their argument's type: `|parts: &http::request::Parts| ...`",
    note = "and return a `bool`",
    note = "an extractor becomes a matcher with `.any_of([..])`, and `PeerIp` and `ClientIp` with `.within([..])`"
)]
pub trait RequestMatcher: Send + Sync + 'static {
    /// Whether the matcher matches the request with the head `request`.
    ///
    /// # Errors
    ///
    /// * [`MissingIdentity`](ErrorKind::MissingIdentity): the request has nothing to match. It is neither exempt nor
    ///   blocked.
    /// * Any other kind: the matcher cannot decide. The request is not exempt. A blocklist rejects it: with 400 if the
    ///   kind is [`InvalidIdentity`](ErrorKind::InvalidIdentity), with 401 if it is
    ///   [`UnknownIdentity`](ErrorKind::UnknownIdentity), else with 500.
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

/// The error for a request whose client is not known and whose proxy is matched.
pub(super) fn not_determined() -> Error {
    Error::new(ErrorKind::InvalidIdentity, "the client behind the proxy could not be determined")
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
