use http::request::Parts;

use crate::{
    base::{Answer, Error},
    key::{Key, KeyExtractor, extractor::only},
};

/// The path of the request's URI, without its query.
///
/// The client chooses it: `/a`, `/a/` and `/%61` are three keys, and a router may treat them as one route. To limit a
/// route, give the route a separate layer, or use [`MatchedRoute`](crate::key::MatchedRoute).
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct RequestPath(());

impl RequestPath {
    /// The path of a request.
    pub const fn new() -> Self {
        Self(())
    }
}

impl KeyExtractor for RequestPath {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        Answer::ready(Ok(Key::new(request.uri.path())))
    }

    fn warning(&self) -> Option<String> {
        let warning = "the path of a request is a key, and the client chooses it: each new path has a separate quota. \
                       Use MatchedRoute, or a table of routes (layer::Rules)";
        Some(warning.to_owned())
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let is_possible = |path: &[u8]| {
            matches!(path, b"" | b"*" | [b'/', ..]) && !path.iter().any(|byte| matches!(byte, b'?' | b'#'))
        };
        only(named, is_possible, "a path, which begins with a slash and has no query")
    }
}
