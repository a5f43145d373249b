//! Which requests a layer exempts or blocks, and a rule skips.

use std::sync::Arc;

use http::request::Parts;

use crate::base::{Answer, Error, ErrorKind};

/// Whether a request with this head matches.
pub(crate) type Matcher = Arc<dyn Fn(&Parts) -> Answer<bool> + Send + Sync>;

/// The matcher that calls `matches`.
pub(crate) fn matcher<M: Into<Answer<bool>>>(
    matches: impl Fn(&Parts) -> M + Send + Sync + 'static,
) -> Matcher {
    Arc::new(move |request: &Parts| matches(request).into())
}

/// The error for a request whose client is not known and whose proxy is matched.
pub(super) fn not_determined() -> Error {
    Error::new(ErrorKind::InvalidIdentity, "the client behind the proxy could not be determined")
}
