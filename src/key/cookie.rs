use std::borrow::Cow;

use http::{header::COOKIE, request::Parts};

use super::{Key, KeyExtractor, header::MAX_VALUE, identity::decode, matcher::only};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// The value of a cookie, such as a session's, percent-decoded.
///
/// Names and values are decoded as the crate `cookie` does it, and with it axum-extra's `CookieJar` and
/// tower-cookies: `session=s1`, `session=s%31` and `s%65ssion=s1` are one cookie and one key. A `%` without two
/// hex digits stands for itself, and quotes are part of the value. Where the server does not decode its cookies,
/// call [`raw`](Self::raw): a value that the server takes for another one must have another key.
///
/// A client that may choose its own cookies chooses its own limit: key by this only where the server checks
/// the cookie.
///
/// # Errors
///
/// As for [`Header`](crate::Header): a request without the cookie is a
/// [`MissingIdentity`](ErrorKind::MissingIdentity); an empty or repeated one, one whose value, or decoded value,
/// is not UTF-8, and one longer than 8 KiB an [`InvalidIdentity`](ErrorKind::InvalidIdentity).
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::Cookie, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let with = |line| Request::get("/").header("cookie", line).body(()).unwrap().into_parts().0;
/// let session = Cookie::new("session");
/// assert_eq!(session.extract(&with("theme=dark; session=s1")).await?, Key::new("s1"));
/// assert_eq!(session.extract(&with("session=s%31")).await?, Key::new("s1"));
/// assert_eq!(session.raw().extract(&with("session=s%31")).await?, Key::new("s%31"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cookie {
    name: Box<str>,
    raw: bool,
}

impl Cookie {
    /// The cookie `name`. Its case counts.
    ///
    /// # Panics
    ///
    /// If `name` is empty or has a character that no cookie's name can have: a control, a space, `=`, `;`, `,`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let legible = name.bytes().all(|byte| byte.is_ascii_graphic() && !b"=;,\"".contains(&byte));
        assert!(!name.is_empty() && legible, "{name:?} is not a cookie's name");
        Self { name: name.into(), raw: false }
    }

    /// Takes the name and the value as they stand, without percent-decoding. Defaults to decoding them.
    ///
    /// For a server that does not decode its cookies either.
    #[must_use]
    pub fn raw(mut self) -> Self {
        self.raw = true;
        self
    }

    fn key(&self, request: &Parts) -> Result<Key, Error> {
        let invalid =
            |problem| Error::new(ErrorKind::InvalidIdentity, format!("the cookie `{}` {problem}", self.name));
        let mut found = None;
        for pair in
            request.headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|b| *b == b';'))
        {
            let Some(at) = pair.iter().position(|byte| *byte == b'=') else { continue };
            let name = self.decoded(trim(&pair[..at]));
            if *name == *self.name.as_bytes() && found.replace(trim(&pair[at + 1..])).is_some() {
                return Err(invalid("must stand once"));
            }
        }
        let Some(value) = found else {
            return Err(Error::new(
                ErrorKind::MissingIdentity,
                format!("the request lacks the cookie `{}`", self.name),
            ));
        };
        if value.is_empty() {
            return Err(invalid("is empty"));
        }
        if value.len() > MAX_VALUE {
            return Err(invalid("is longer than 8192 bytes"));
        }
        let value = self.decoded(value);
        str::from_utf8(&value).map(Key::new).map_err(|_| invalid("is not UTF-8"))
    }

    fn decoded<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        if self.raw { Cow::Borrowed(text) } else { decode(text) }
    }
}

/// `text` without the white space around it, which in UTF-8 is all that Unicode has, as for the crate `cookie`.
fn trim(text: &[u8]) -> &[u8] {
    let trimmed = text.trim_ascii();
    let ends = [trimmed.first(), trimmed.last()];
    if ends.iter().flatten().all(|byte| byte.is_ascii()) {
        return trimmed;
    }
    str::from_utf8(trimmed).map_or(trimmed, |text| text.trim().as_bytes())
}

impl KeyExtractor for Cookie {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        self.key(request).into()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let is_value = |value: &[u8]| {
            let stands = !self.raw || (trim(value) == value && !value.contains(&b';'));
            stands && (1..=MAX_VALUE).contains(&value.len()) && str::from_utf8(value).is_ok()
        };
        only(named, is_value, "the value of a cookie")
    }
}
