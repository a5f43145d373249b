use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt::{self, Write as _},
    hash::{Hash, Hasher},
    net::Ipv4Addr,
    sync::Arc,
};

use sha2::{Digest, Sha256};

use super::{
    Secret, identity,
    marks::{EMPTY, FIRST, HASHED, JOINED, KEYED, PREFLIGHT, SECOND},
};

/// Who is limited: an address, an API key, a user's id, or several of them joined.
///
/// Any bytes will do. They are stored in a form that is safe inside a Redis key: printable ASCII
/// stays as it is, `%`, `{`, `}`, spaces and everything else is percent-encoded, and an identity whose
/// encoded form is longer than 96 bytes is replaced by 128 bits of its SHA-256. Different
/// identities have different forms, hashes aside, and equal ones the same in every process.
///
/// Keys are compared, ordered and hashed by this [stored form](Self::as_str) alone. Until a request is charged
/// its key shows the [identity](Self::identity) too; what a [`Decision`](crate::Decision) or a store keeps of it
/// is the stored form.
///
/// `Debug` hides the identity, so that a key does not reach a log by accident.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Key;
///
/// assert_eq!(Key::new("alice"), Key::new(b"alice"));
/// assert_ne!(Key::new("a{b}"), Key::new("ab"));
/// // Joined parts cannot run into each other.
/// assert_ne!(
///     Key::join([&Key::new("ab"), &Key::new("c")]),
///     Key::join([&Key::new("a"), &Key::new("bc")]),
/// );
/// assert_eq!(format!("{:?}", Key::new("alice")), "Key(..)");
/// ```
#[derive(Clone)]
pub struct Key(Form);

/// A short text stands in place: it costs no allocation, and a table finds it without looking elsewhere.
#[derive(Clone)]
enum Form {
    /// The bytes after `length` are 0, so that equal texts are equal.
    Short { length: u8, bytes: [u8; SHORT] },
    /// Longer than `SHORT`.
    Long(Arc<str>),
    /// With what the text does not show.
    Detailed(Arc<Details>),
}

struct Details {
    /// `Short` or `Long`.
    text: Form,
    origin: Origin,
}

/// What is known of a key's identity, and not stored.
#[derive(Default)]
struct Origin {
    /// The identity, where the text does not show it.
    identity: Option<Identity>,
    /// Whether the identity, or a part of it, must not be stored: the text has a hash under a secret for it.
    secret: bool,
    /// Whether the client could not be determined, and this is a proxy's key.
    assumed: bool,
}

enum Identity {
    Bytes(Box<[u8]>),
    /// That of the key that this one was made of.
    Of(Key),
    /// Those of the keys that this one was joined of.
    Parts(Vec<Key>),
}

/// Enough for an address, an IPv6 network and most API keys and ids.
const SHORT: usize = 30;
const MAX_ENCODED: usize = 96;

impl Key {
    /// The key of the identity `identity`: text or any other bytes.
    #[must_use]
    pub fn new(identity: impl AsRef<[u8]>) -> Self {
        let identity = identity.as_ref();
        if identity.is_empty() {
            return Self(EMPTY.into());
        }
        if let Some(plain) = Self::plain(identity) {
            return plain;
        }
        let mut encoded = String::with_capacity(identity.len());
        for &byte in identity {
            match byte {
                b'{' | b'}' | b'%' => push_encoded(&mut encoded, byte),
                0x21..=0x7e => encoded.push(char::from(byte)),
                _ => push_encoded(&mut encoded, byte),
            }
        }
        let (text, hashed) = Form::bounded("", &encoded);
        let identity = hashed.then(|| Identity::Bytes(identity.into()));
        Self::from_origin(text, Origin { identity, ..Origin::default() })
    }

    /// The key of `identity` where there is nothing to encode, as nearly always: then it is ASCII.
    pub(crate) fn plain(identity: &[u8]) -> Option<Self> {
        let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'{' | b'}' | b'%');
        // Without an early end, so that many bytes are looked at at once.
        let plain = || identity.iter().fold(true, |plain, byte| plain & is_plain(byte));
        if !(1..=MAX_ENCODED).contains(&identity.len()) || !plain() {
            return None;
        }
        let text = Form::short(identity).or_else(|| Some(Form::Long(str::from_utf8(identity).ok()?.into())));
        text.map(Self)
    }

    /// The key whose text form is `text`.
    pub(super) fn of_text(text: &str) -> Self {
        Self(text.into())
    }

    fn from_origin(text: Form, origin: Origin) -> Self {
        if origin.identity.is_none() && !origin.secret && !origin.assumed {
            return Self(text);
        }
        Self(Form::Detailed(Arc::new(Details { text, origin })))
    }

    /// The key of `parts` together, such as a tenant and a user. The order counts.
    #[must_use]
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        // Without formatting machinery, for two short ones.
        let mut joined = String::with_capacity(64);
        joined.push_str(JOINED);
        let mut detailed = Vec::new();
        for (i, part) in parts.into_iter().enumerate() {
            if part.origin().is_some() {
                detailed.push((i, part));
            }
            let part = part.as_str();
            joined.push_str(itoa::Buffer::new().format(part.len()));
            joined.push(':');
            joined.push_str(part);
        }
        let (text, hashed) = Form::bounded(JOINED, &joined[JOINED.len()..]);
        if !hashed && detailed.is_empty() {
            return Self(text);
        }
        let any =
            |says: fn(&Origin) -> bool| detailed.iter().any(|(_, part)| part.origin().is_some_and(says));
        let (secret, assumed) = (any(|origin| origin.secret), any(|origin| origin.assumed));
        let mut parts = identity::parts(&joined).unwrap_or_default();
        for (i, part) in detailed {
            if let Some(place) = parts.get_mut(i) {
                *place = part.clone();
            }
        }
        Self::from_origin(text, Origin { identity: Some(Identity::Parts(parts)), secret, assumed })
    }

    /// The key's text form, the one that stands in Redis keys: printable ASCII without braces and
    /// spaces, at most 96 bytes, never empty.
    ///
    /// It shows the identity; keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self.text() {
            Form::Long(text) => text,
            // It is ASCII, as it was made.
            _ => str::from_utf8(self.as_bytes()).unwrap_or_default(),
        }
    }

    /// The bytes of [`as_str`](Self::as_str), without a look at each.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self.text() {
            Form::Short { length, bytes } => &bytes[..usize::from(*length)],
            Form::Long(text) => text.as_bytes(),
            Form::Detailed(_) => unreachable!("the text of a key has no details"),
        }
    }

    fn text(&self) -> &Form {
        match &self.0 {
            Form::Detailed(details) => &details.text,
            text => text,
        }
    }

    fn origin(&self) -> Option<&Origin> {
        match &self.0 {
            Form::Detailed(details) => Some(&details.origin),
            _ => None,
        }
    }

    /// The identity as the client gave it, neither encoded nor hashed: to choose a [policy](crate::PolicySource)
    /// by it.
    ///
    /// | key | identity |
    /// |---|---|
    /// | of [`hashed`](crate::KeyExtractor::hashed) | that of the extractor which is hashed |
    /// | of [`or`](crate::KeyExtractor::or) | that of the extractor which found it |
    /// | of a tuple, or of [`join`](Self::join) | those of the parts, with a U+001F between them and a U+001E before one that the second extractor of an `or` found |
    ///
    /// `None` if it is not UTF-8, if a part of it has a control character from U+001D to U+001F itself, or if it
    /// is not known any more: a [`Decision`](crate::Decision) holds no identity that its store does not.
    ///
    /// Keep it out of logs.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::Key;
    ///
    /// let key = Key::new("José Ortega");
    /// assert_eq!(key.as_str(), "Jos%C3%A9%20Ortega");
    /// assert_eq!(key.identity().unwrap(), "José Ortega");
    /// ```
    #[must_use]
    pub fn identity(&self) -> Option<Cow<'_, str>> {
        text_of(self.raw()?)
    }

    /// The bytes of the identity.
    pub(crate) fn raw(&self) -> Option<Cow<'_, [u8]>> {
        match self.origin().and_then(|origin| origin.identity.as_ref()) {
            Some(Identity::Bytes(identity)) => Some(Cow::Borrowed(identity)),
            Some(Identity::Of(key)) => key.raw(),
            Some(Identity::Parts(parts)) => identity::of_parts(parts).map(Cow::Owned),
            None => identity::of_text(self.as_str()),
        }
    }

    /// The identity as a function may see it whose result is stored; its text form where that hides the
    /// identity, and where the identity is not known. `None` if it is not text.
    pub(super) fn to_map(&self) -> Option<Cow<'_, str>> {
        let secret = self.origin().is_some_and(|origin| origin.secret);
        match self.raw() {
            Some(identity) if !secret => text_of(identity),
            _ => Some(Cow::Borrowed(identity::split_marks(self.as_str()).1)),
        }
    }

    /// The key as it is kept: without an identity that its text does not show.
    pub(crate) fn stored(self) -> Self {
        match self.0 {
            Form::Detailed(details) => Self(details.text.clone()),
            text => Self(text),
        }
    }

    /// The key of a client that could not be determined, with its proxy in its place.
    pub(crate) fn assumed(self) -> Self {
        let secret = self.origin().is_some_and(|origin| origin.secret);
        let text = self.text().clone();
        let identity = self.origin().is_some().then_some(Identity::Of(self));
        Self::from_origin(text, Origin { identity, secret, assumed: true })
    }

    /// Whether the client could not be determined.
    pub(crate) fn is_assumed(&self) -> bool {
        self.origin().is_some_and(|origin| origin.assumed)
    }

    /// Whether it looks as only an extractor makes keys, or as one that was stored: no client shows this.
    pub(super) fn is_final(&self) -> bool {
        let text = self.as_str();
        [FIRST, SECOND, KEYED].iter().any(|mark| text.starts_with(mark)) || self.raw().is_none()
    }

    /// The keys that it was [joined](Self::join) of; `None` where it was not, or where they are not known.
    pub(super) fn parts(&self) -> Option<Vec<Self>> {
        match self.origin().and_then(|origin| origin.identity.as_ref()) {
            Some(Identity::Parts(parts)) => Some(parts.clone()),
            _ => identity::parts(self.as_str()),
        }
    }

    /// The key of an IPv4 address in dotted form. Without formatting machinery: nearly every request has one.
    pub(crate) fn of_octets(address: Ipv4Addr) -> Self {
        let (mut bytes, mut length) = ([0; SHORT], 0);
        for octet in address.octets() {
            if length > 0 {
                bytes[length] = b'.';
                length += 1;
            }
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(octet).as_bytes();
            bytes[length..length + digits.len()].copy_from_slice(digits);
            length += digits.len();
        }
        Self(Form::Short { length: length as u8, bytes })
    }

    /// A key whose text shows nothing of this one without `secret`.
    pub(super) fn hashed(&self, secret: &Secret) -> Self {
        let mut hashed = String::from(KEYED);
        push_hex(&mut hashed, &secret.mac(self.as_str()));
        let assumed = self.is_assumed();
        let origin = Origin { identity: Some(Identity::Of(self.clone())), secret: true, assumed };
        Self::from_origin(hashed.as_str().into(), origin)
    }

    /// As the answer of the first of two extractors: itself, unless it looks like a second's.
    pub(crate) fn of_first(self) -> Self {
        if [FIRST, SECOND].iter().any(|mark| self.as_bytes().starts_with(mark.as_bytes())) {
            return self.marked(FIRST);
        }
        self
    }

    /// As the answer of the second of two extractors: different from every answer of the first.
    pub(crate) fn of_second(&self) -> Self {
        self.marked(SECOND)
    }

    /// As that of a CORS preflight: different from those of all other requests.
    pub(crate) fn of_preflight(&self) -> Self {
        self.marked(PREFLIGHT)
    }

    /// What a function made of `source`, as the answer of the same extractor of an `or`.
    pub(super) fn made_of(self, source: &Self) -> Self {
        let (marks, _) = identity::split_marks(source.as_str());
        let key = if marks.is_empty() { self } else { self.marked(marks) };
        if source.is_assumed() { key.assumed() } else { key }
    }

    fn marked(&self, marks: &str) -> Self {
        let (text, hashed) = Form::bounded(marks, self.as_str());
        let Some(origin) = self.origin() else {
            let identity = hashed.then(|| Identity::Of(self.clone()));
            return Self::from_origin(text, Origin { identity, ..Origin::default() });
        };
        let identity = Some(Identity::Of(self.clone()));
        Self::from_origin(text, Origin { identity, secret: origin.secret, assumed: origin.assumed })
    }
}

fn text_of(identity: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match identity {
        Cow::Borrowed(identity) => str::from_utf8(identity).ok().map(Cow::Borrowed),
        Cow::Owned(identity) => String::from_utf8(identity).ok().map(Cow::Owned),
    }
}

fn push_hex(to: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    for byte in bytes {
        to.push(digit(byte >> 4));
        to.push(digit(byte & 15));
    }
}

fn push_encoded(encoded: &mut String, byte: u8) {
    // Writing to a `String` does not fail.
    let _ = write!(encoded, "%{byte:02X}");
}

impl Form {
    /// `mark` and `encoded`, or its hash where the two are too long, and whether it is the hash. The mark stays,
    /// whatever the length: it says what sort of key this is.
    fn bounded(mark: &str, encoded: &str) -> (Self, bool) {
        if mark.len() + encoded.len() <= MAX_ENCODED {
            return ([mark, encoded].concat().as_str().into(), false);
        }
        let hash = Sha256::digest(encoded.as_bytes());
        let mut short = [mark, HASHED].concat();
        push_hex(&mut short, &hash[..16]);
        (short.as_str().into(), true)
    }

    /// `bytes`, which are ASCII, where they are few enough.
    fn short(bytes: &[u8]) -> Option<Self> {
        let mut short = [0; SHORT];
        short.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::Short { length: bytes.len() as u8, bytes: short })
    }
}

impl From<&str> for Form {
    fn from(ascii: &str) -> Self {
        Self::short(ascii.as_bytes()).unwrap_or_else(|| Self::Long(ascii.into()))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            // A third of the time that comparing slices takes, at every look into a table.
            (Form::Short { length: a, bytes: x }, Form::Short { length: b, bytes: y }) => a == b && x == y,
            _ => self.as_bytes() == other.as_bytes(),
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_that_would_break_a_redis_key_are_encoded() {
        struct Row {
            name: &'static str,
            identity: &'static [u8],
            encoded: &'static str,
        }
        let rows = [
            Row { name: "plain", identity: b"203.0.113.7", encoded: "203.0.113.7" },
            Row { name: "braces", identity: b"a{b}", encoded: "a%7Bb%7D" },
            Row { name: "percent", identity: b"%7B", encoded: "%257B" },
            Row { name: "nul", identity: b"a\0b", encoded: "a%00b" },
            Row { name: "nothing", identity: b"", encoded: "%" },
            Row { name: "not utf-8", identity: b"\xff", encoded: "%FF" },
            Row { name: "space and line end", identity: b"a b\r\n", encoded: "a%20b%0D%0A" },
        ];
        for Row { name, identity, encoded } in rows {
            assert_eq!(Key::new(identity).as_str(), encoded, "{name}");
        }
    }

    #[test]
    fn a_long_identity_is_hashed_and_the_shortest_difference_still_counts() {
        let long = vec![b'a'; 1 << 20];
        let mut other = long.clone();
        other[1 << 19] = b'b';
        let key = Key::new(&long);
        assert_eq!(key.as_str().len(), 34);
        assert_eq!(key, Key::new(&long));
        assert_ne!(key, Key::new(&other));
        assert_eq!(Key::new([b'a'; 96]).as_str().len(), 96);
    }

    #[test]
    fn no_identity_passes_for_a_hash_a_join_or_an_alternative() {
        let joined = Key::join([&Key::new("a"), &Key::new("b")]);
        let hashed = Key::new([b'a'; 97]);
        for made in [&joined, &hashed, &Key::new("b").of_second(), &Key::new("")] {
            assert_ne!(made, &Key::new(made.as_str()));
        }
    }

    #[test]
    fn a_key_is_small_and_a_plain_one_has_nothing_beside_its_text() {
        assert_eq!(size_of::<Key>(), 32);
        for identity in ["203.0.113.7", "a b", "", &"a".repeat(96)] {
            assert!(Key::new(identity).origin().is_none(), "{identity}");
            assert!(Key::new(identity).of_second().stored().origin().is_none(), "{identity}");
        }
    }

    #[test]
    fn a_stored_key_is_the_same_key_without_what_its_text_does_not_show() {
        let secret = Secret::new(&[7; 32]);
        let long = Key::new("x".repeat(200));
        let short = Key::new("alice");
        for key in [
            long.clone(),
            long.of_second(),
            Key::join([&long, &short]),
            Key::new("x".repeat(95)).of_second(),
            short.hashed(&secret),
            Key::join([&short.hashed(&secret)]),
        ] {
            assert!(key.identity().is_some());
            let stored = key.clone().stored();
            assert_eq!(stored, key);
            assert_eq!(stored.cmp(&key), Ordering::Equal);
            assert!(stored.identity().is_none() && stored.is_final());
        }
        assert_eq!(short.clone().assumed().stored().identity().unwrap(), "alice");
        assert!(short.clone().assumed().is_assumed() && !short.assumed().stored().is_assumed());
    }

    #[test]
    fn the_key_of_a_preflight_is_no_other_request_s() {
        for identity in ["", "alice", "%^alice", &"x".repeat(200)] {
            let key = Key::new(identity);
            let preflight = key.of_preflight();
            assert_ne!(preflight, key);
            assert_ne!(preflight, Key::new(preflight.as_str()));
            assert_ne!(preflight, preflight.of_preflight());
            assert_eq!(preflight.identity().unwrap(), identity);
        }
    }

    #[test]
    fn the_answers_of_three_alternatives_never_meet() {
        // As `a.or(b).or(c)` and `a.or(b.or(c))` make them of one identity, of any length.
        for length in 0..200 {
            let same = || Key::new("x".repeat(length));
            let left = [same().of_first().of_first(), same().of_second().of_first(), same().of_second()];
            let right = [same().of_first(), same().of_first().of_second(), same().of_second().of_second()];
            for [a, b, c] in [left, right] {
                assert!(a != b && b != c && a != c, "{length}");
                assert!([&a, &b, &c].iter().all(|key| key.as_str().len() <= MAX_ENCODED), "{length}");
            }
        }
    }
}
