use http::{header::AUTHORIZATION, request::Parts};

use super::value;
use crate::{
    base::{Answer, Error, ErrorKind},
    key::{Key, KeyExtractor, extractor::only},
};

/// The token of `Authorization: Bearer <token>` (RFC 6750).
///
/// The scheme counts in any case, with any number of spaces and tabs around it and the token, as RFC 9110 allows:
/// `Bearer t1`, `bearer t1` and `BEARER  t1` are one key.
///
/// The token is not verified. Use this extractor only if the server verifies it.
///
/// # Errors
///
/// * [`MissingIdentity`](ErrorKind::MissingIdentity): the request has no `Authorization` header, or one with another
///   scheme. [`or`](KeyExtractor::or) continues with the next extractor.
/// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the header is sent more than once or is empty; or the token is
///   empty, is not UTF-8, contains a space or a tab, or is longer than 8 KiB.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::Bearer, ErrorKind, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Bearer::new();
/// for written in ["Bearer t0k3n", "bearer t0k3n", "BEARER   t0k3n"] {
///     let (parts, ()) = Request::get("/").header("authorization", written).body(())?.into_parts();
///     assert_eq!(key.extract(&parts).await?, Key::new("t0k3n"));
/// }
///
/// let (parts, ()) = Request::get("/").header("authorization", "Basic YTpi").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await.unwrap_err().kind(), ErrorKind::MissingIdentity);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Bearer(());

impl Bearer {
    /// The bearer token of a request.
    pub const fn new() -> Self {
        Self(())
    }
}

impl KeyExtractor for Bearer {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        key(request).into()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let is_possible = |token: &[u8]| !token.iter().any(is_blank) && value::key(token).is_ok();
        only(named, is_possible, "a bearer token without whitespace")
    }
}

fn key(request: &Parts) -> Result<Key, Error> {
    let invalid = |problem| value::invalid(&AUTHORIZATION, problem);
    let Some(value) = value::single(request, &AUTHORIZATION)? else {
        return Err(value::missing(&AUTHORIZATION));
    };
    if value.is_empty() {
        return Err(invalid("is empty"));
    }
    let (scheme, token) = value.split_at(value.iter().position(is_blank).unwrap_or(value.len()));
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        let message = "the header `authorization` has another scheme than `Bearer`";
        return Err(Error::new(ErrorKind::MissingIdentity, message));
    }
    let token = token.trim_ascii();
    if token.is_empty() {
        return Err(invalid("has no token"));
    }
    if token.iter().any(is_blank) {
        return Err(invalid("has a token with a space in it"));
    }
    value::key(token).map_err(invalid)
}

const fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}
