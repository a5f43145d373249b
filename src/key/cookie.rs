use std::borrow::Cow;

use http::{header::COOKIE, request::Parts};

use super::{
    Key, KeyExtractor,
    extractor::only,
    header::{invalid, missing, of_valid_length},
    text::decode,
};
use crate::base::{Answer, Error};

/// The value of a cookie, such as a session cookie, percent-decoded.
///
/// A client can send any value, and a new value has a new limit. Use this extractor only if the service, or something in
/// front of it, rejects values that it does not know. If that comes after the limit, add a rule on addresses.
///
/// # Decoding
///
/// Names and values are decoded as by the crate `cookie`, which axum-extra's `CookieJar` and tower-cookies use:
///
/// * `session=s1`, `session=s%31` and `s%65ssion=s1` are one cookie and one key.
/// * A `%` without two hex digits after it is kept.
/// * Quotes are part of the value.
///
/// If the server does not decode its cookies, call [`raw`](Self::raw): values that the server distinguishes must have
/// different keys.
///
/// # Errors
///
/// * [`MissingIdentity`](crate::ErrorKind::MissingIdentity): the request does not have the cookie.
///   [`or`](KeyExtractor::or) continues with the next extractor.
/// * [`InvalidIdentity`](crate::ErrorKind::InvalidIdentity): the cookie is sent more than once, or its value is empty,
///   longer than 8 KiB as it was sent, or not UTF-8 after decoding.
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
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Cookie {
    name: Box<str>,
    raw: bool,
}

impl Cookie {
    /// The cookie `name`. Its case counts.
    ///
    /// # Panics
    ///
    /// If `name` is empty, or contains a character that the name of a cookie cannot contain: a control or non-ASCII
    /// character, a space, `"`, `,`, `;` or `=`.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        let is_valid = |byte: u8| byte.is_ascii_graphic() && !b"=;,\"".contains(&byte);
        assert!(!name.is_empty() && name.bytes().all(is_valid), "{name:?} is not the name of a cookie");
        Self { name: name.into(), raw: false }
    }

    /// Compares names and returns values without percent-decoding. Defaults to decoding.
    ///
    /// Use it if the server does not decode its cookies.
    pub fn raw(mut self) -> Self {
        self.raw = true;
        self
    }

    fn key(&self, request: &Parts) -> Result<Key, Error> {
        let invalid = |problem| invalid("cookie", &self.name, problem);
        let mut found = None;
        for pair in
            request.headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|b| *b == b';'))
        {
            let Some(at) = pair.iter().position(|byte| *byte == b'=') else { continue };
            let name = self.decoded(trim(&pair[..at]));
            if *name == *self.name.as_bytes() && found.replace(trim(&pair[at + 1..])).is_some() {
                return Err(invalid("is sent more than once"));
            }
        }
        let value = found.ok_or_else(|| missing("cookie", &self.name))?;
        let value = self.decoded(of_valid_length(value).map_err(invalid)?);
        str::from_utf8(&value).map(Key::new).map_err(|_| invalid("is not UTF-8"))
    }

    fn decoded<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        if self.raw { Cow::Borrowed(text) } else { decode(text) }
    }
}

/// `text` without the whitespace around it, as by the crate `cookie`: in UTF-8, all that Unicode defines.
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

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let is_possible = |value: &[u8]| {
            let can_be_sent = !self.raw || (trim(value) == value && !value.contains(&b';'));
            can_be_sent && of_valid_length(value).is_ok() && str::from_utf8(value).is_ok()
        };
        only(named, is_possible, "the value of a cookie")
    }
}
