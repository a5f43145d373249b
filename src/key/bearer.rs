use http::{header::AUTHORIZATION, request::Parts};

use super::{Key, KeyExtractor, header, matcher::only};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// The token of `Authorization: Bearer <token>` (RFC 6750).
///
/// The scheme may be written in any case, with any number of spaces and tabs around it and the token, as
/// RFC 9110 allows: `Bearer t1`, `bearer t1` and `BEARER  t1` are one key. The token is not verified: key
/// by it only where the server does that.
///
/// # Errors
///
/// * [`MissingIdentity`](ErrorKind::MissingIdentity): the request has no `Authorization` header, or one of
///   another scheme; [`or`](KeyExtractor::or) goes on with the next extractor.
/// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the header stands more than once or is empty, or the
///   token is empty, not UTF-8, has a space or a tab inside, or is longer than 8 KiB.
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
pub struct Bearer(());

impl Bearer {
    /// The bearer token of a request.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl KeyExtractor for Bearer {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        key(request).into()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        only(named, |token| !token.iter().any(is_blank) && header::identity(token).is_ok(), "a bearer token")
    }
}

fn key(request: &Parts) -> Result<Key, Error> {
    let missing = |message: &'static str| Err(Error::new(ErrorKind::MissingIdentity, message));
    let invalid = |problem| header::invalid(&AUTHORIZATION, problem);
    let Some(value) = header::only_value(request, &AUTHORIZATION)? else {
        return missing("the request lacks the header `authorization`");
    };
    if value.is_empty() {
        return Err(invalid("is empty"));
    }
    let (scheme, token) = value.split_at(value.iter().position(is_blank).unwrap_or(value.len()));
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return missing("the header `authorization` has another scheme than `Bearer`");
    }
    let token = token.trim_ascii();
    if token.is_empty() {
        return Err(invalid("has no token"));
    }
    if token.iter().any(is_blank) {
        return Err(invalid("has a token with a space inside"));
    }
    header::identity(token).map_err(invalid)
}

const fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}
