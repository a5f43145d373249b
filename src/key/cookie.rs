//! Keys from a cookie.

use std::borrow::Cow;

use http::{HeaderValue, header::COOKIE, request::Parts};

use super::{
    Key, KeyExtractor, KeyKind, Repeat,
    extractor::only,
    header::{DIFFERS, invalid, missing, of_valid_length},
    repeat::Differ,
    text::decode,
};
use crate::base::{Answer, Error, valid};

/// The value of a cookie, such as a session cookie, percent-decoded.
///
/// A client can send any value, and a new value has a new limit. Use this extractor only if the service, or
/// something in front of it, rejects values that it does not know. If that comes after the limit, add a rule
/// on addresses.
///
/// # Decoding
///
/// Names and values are decoded as by the crate `cookie`, which axum-extra's `CookieJar` and tower-cookies
/// use:
///
/// * `session=s1`, `session=s%31` and `s%65ssion=s1` are one cookie and one key.
/// * A `%` without two hex digits after it is kept.
/// * Quotes are part of the value.
///
/// If the server does not decode its cookies, call [`raw`](Self::raw): values that the server distinguishes
/// must have different keys.
///
/// # Repeated cookies
///
/// Browsers send a cookie twice if it is set with two paths or domains, for example after a change of its
/// settings, or if a sibling subdomain sets it for the parent domain. Equal values are one value. By default,
/// a request with different values is rejected, so no client evades its limit with a second cookie; but then
/// a sibling subdomain can have a user's requests rejected. If you do not trust all subdomains, set with
/// [`on_repeat`](Self::on_repeat) the value that your service reads, or give the cookie a name that begins
/// with `__Host-`, which browsers accept only from the host itself.
///
/// An empty cookie, such as `session=` after a logout, is a missing one: it identifies no client, and a
/// client can leave it out as well.
///
/// # Errors
///
/// * [`MissingIdentity`](crate::ErrorKind::MissingIdentity): the request does not have the cookie, or it is
///   empty. [`or`](KeyExtractor::or) continues with the next extractor.
/// * [`InvalidIdentity`](crate::ErrorKind::InvalidIdentity): the cookie is sent with different values, or its
///   value is longer than 8 KiB as it was sent, or not UTF-8 after decoding.
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
    repeat: Repeat,
}

impl Cookie {
    /// The cookie `name`. Its case counts.
    ///
    /// # Panics
    ///
    /// If `name` is empty, or contains a character that the name of a cookie cannot contain: a control or
    /// non-ASCII character, a space, `"`, `,`, `;` or `=`. [`try_new`](Self::try_new) gives an error instead.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        valid(Self::try_new(name))
    }

    /// The fallible form of [`new`](Self::new), for a name read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`new`](Self::new) panics.
    pub fn try_new(name: &str) -> Result<Self, Error> {
        let is_valid = |byte: u8| byte.is_ascii_graphic() && !b"=;,\"".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_valid) {
            return Err(invalid!("{name:?} is not the name of a cookie"));
        }
        Ok(Self { name: name.into(), raw: false, repeat: Repeat::Reject })
    }

    /// Compares names and returns values without percent-decoding. Defaults to decoding.
    ///
    /// Use it if the server does not decode its cookies.
    pub fn raw(mut self) -> Self {
        self.raw = true;
        self
    }

    /// Sets what happens to a request that has this cookie with different values. Defaults to
    /// [`Repeat::Reject`].
    pub const fn on_repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    fn key(&self, request: &Parts) -> Result<Key, Error> {
        let invalid = |problem| invalid("cookie", &self.name, problem);
        let lines = request.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
        let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
        let values = pairs.filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let name = self.decoded(trim(&pair[..at]));
            let value = trim(&pair[at + 1..]);
            (*name == *self.name.as_bytes()).then_some(Sent { value, cookie: self })
        });
        let sent = self.repeat.choose(values).map_err(|Differ| invalid(DIFFERS))?;
        let Some(Sent { value, .. }) = sent.filter(|sent| !sent.value.is_empty()) else {
            return Err(missing("cookie", &self.name));
        };
        let value = self.decoded(of_valid_length(value).map_err(invalid)?);
        str::from_utf8(&value).map(Key::new).map_err(|_| invalid("is not UTF-8"))
    }

    fn decoded<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        if self.raw { Cow::Borrowed(text) } else { decode(text) }
    }
}

/// A value of the cookie as it was sent. Two are equal if they are decoded to the same bytes.
struct Sent<'a> {
    value: &'a [u8],
    cookie: &'a Cookie,
}

impl PartialEq for Sent<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value || self.cookie.decoded(self.value) == self.cookie.decoded(other.value)
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

    fn kind(&self) -> KeyKind {
        KeyKind::named(format!("the cookie `{}`", self.name))
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let is_possible = |value: &[u8]| {
            let can_be_sent = !self.raw || (trim(value) == value && !value.contains(&b';'));
            can_be_sent && of_valid_length(value).is_ok() && str::from_utf8(value).is_ok()
        };
        only(named, is_possible, "the value of a cookie")
    }
}
