use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    net::Ipv4Addr,
    sync::Arc,
};

use super::text::{
    self, EMPTY, FIRST, KEYED, MAX, SECOND, Text, bounded, hashed_join, identity_of, identity_of_parts,
    is_join, split_marks,
};

/// Identifies who is limited: an address, an API key, a user's id, or several of them joined.
///
/// A key is made of any bytes. It is stored as [text](Self::as_str) that is safe inside a Redis key and that an
/// operator can read: see [the forms of a stored key](crate::key#the-stored-form). Different identities have different
/// texts, and equal identities have equal texts in every process. Hashed texts can only be equal by a collision in 128
/// bits of SHA-256.
///
/// Keys are compared, ordered and hashed by their text. Until its request is charged, a key knows its
/// [identity](Self::identity) as well. A [`Decision`](crate::Decision) and a store keep the text only.
///
/// `Debug` hides the identity, so logging a key by accident discloses nothing.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Key;
///
/// assert_eq!(Key::new("alice"), Key::new(b"alice"));
/// assert_eq!(Key::new(("acme", 7)), Key::join([&Key::new("acme"), &Key::new(7)]));
/// assert_ne!(Key::new("a{b}"), Key::new("ab"));
/// // Joined parts stay apart.
/// let joined = Key::join([&Key::new("ab"), &Key::new("c")]);
/// assert_eq!(joined.as_str(), "%(ab%|c%)");
/// assert_ne!(joined, Key::join([&Key::new("a"), &Key::new("bc")]));
/// assert_eq!(format!("{:?}", Key::new("alice")), "Key(..)");
/// ```
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    Text(Text),
    /// With what the text does not show.
    Detailed(Arc<Details>),
}

struct Details {
    text: Text,
    origin: Origin,
}

/// What is known about a key and not stored.
#[derive(Clone, Default)]
pub(super) struct Origin {
    /// The identity, if the text does not show it.
    identity: Option<Identity>,
    /// Whether the identity, or a part's identity, must not be stored. The text has a hash under a secret instead.
    pub(super) secret: bool,
    /// Whether the client could not be determined and the key is its proxy's key.
    pub(super) assumed: bool,
}

#[derive(Clone)]
enum Identity {
    Bytes(Arc<[u8]>),
    /// The keys that were joined.
    Parts(Arc<[Key]>),
}

impl Origin {
    const fn is_empty(&self) -> bool {
        self.identity.is_none() && !self.secret && !self.assumed
    }

    /// Keeps the identity of `key`, unless one is kept already.
    pub(super) fn keep_identity(&mut self, key: &Key) {
        if self.identity.is_none() {
            self.identity = key.raw().map(|identity| Identity::Bytes((*identity).into()));
        }
    }
}

impl Key {
    /// The key of `identity`: text or other bytes, a number, an address, a UUID's 16 bytes, or a tuple of these, which are
    /// [joined](Self::join). It takes what `Key::from` takes.
    #[must_use]
    pub fn new(identity: impl Into<Self>) -> Self {
        identity.into()
    }

    pub(super) fn of_bytes(identity: &[u8]) -> Self {
        if identity.is_empty() {
            return Self::of_text(EMPTY);
        }
        if let Some(plain) = Self::plain(identity) {
            return plain;
        }
        let (text, hashed) = bounded("", &text::encode(identity));
        let identity = hashed.then(|| Identity::Bytes(identity.into()));
        Self::with_origin(text, Origin { identity, ..Origin::default() })
    }

    /// The key of `identity` if nothing in it has to be encoded, as in most identities. Then it is ASCII.
    pub(crate) fn plain(identity: &[u8]) -> Option<Self> {
        if !text::is_plain(identity) {
            return None;
        }
        let text = Text::short(identity).or_else(|| Some(Text::Long(str::from_utf8(identity).ok()?.into())));
        text.map(|text| Self(Repr::Text(text)))
    }

    /// The key with the text `text`.
    pub(super) fn of_text(text: &str) -> Self {
        Self(Repr::Text(text.into()))
    }

    /// The key of an IPv4 address in dotted form. It uses no formatting machinery, because nearly every request has one.
    pub(crate) fn of_octets(address: Ipv4Addr) -> Self {
        let (mut text, mut length) = ([0; "255.255.255.255".len()], 0);
        for octet in address.octets() {
            if length > 0 {
                text[length] = b'.';
                length += 1;
            }
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(octet).as_bytes();
            text[length..length + digits.len()].copy_from_slice(digits);
            length += digits.len();
        }
        Text::short(&text[..length])
            .map_or_else(|| Self::new(address.to_string()), |text| Self(Repr::Text(text)))
    }

    pub(super) fn with_origin(text: Text, origin: Origin) -> Self {
        if origin.is_empty() {
            return Self(Repr::Text(text));
        }
        Self(Repr::Detailed(Arc::new(Details { text, origin })))
    }

    /// The key of `parts` together, such as a tenant and a user. Their order counts.
    #[must_use]
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut detailed = Vec::new();
        let mut count = 0;
        let joined = text::join(
            parts
                .into_iter()
                .inspect(|part| {
                    if part.origin().is_some() {
                        detailed.push((count, *part));
                    }
                    count += 1;
                })
                .map(Self::as_str),
        );
        let hashed = joined.len() > MAX;
        let text = if hashed { hashed_join(&joined) } else { joined.as_str().into() };
        if !hashed && detailed.is_empty() {
            return Self(Repr::Text(text));
        }
        let any =
            |says: fn(&Origin) -> bool| detailed.iter().any(|(_, part)| part.origin().is_some_and(says));
        let (secret, assumed) = (any(|origin| origin.secret), any(|origin| origin.assumed));
        let mut parts = parts_of(&joined).unwrap_or_default();
        for (i, part) in detailed {
            if let Some(place) = parts.get_mut(i) {
                *place = part.clone();
            }
        }
        Self::with_origin(text, Origin { identity: Some(Identity::Parts(parts.into())), secret, assumed })
    }

    /// The text of the key, which is stored in Redis: printable ASCII without braces and spaces, 1 to 96 bytes.
    /// See [its forms](crate::key#the-stored-form).
    ///
    /// It shows the identity: keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.text().as_str()
    }

    /// The bytes of [`as_str`](Self::as_str), without a check of each.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.text().as_bytes()
    }

    pub(super) fn text(&self) -> &Text {
        match &self.0 {
            Repr::Text(text) => text,
            Repr::Detailed(details) => &details.text,
        }
    }

    pub(super) fn origin(&self) -> Option<&Origin> {
        match &self.0 {
            Repr::Text(_) => None,
            Repr::Detailed(details) => Some(&details.origin),
        }
    }

    /// The identity as the client sent it, neither encoded nor hashed. Use it to choose a
    /// [policy](crate::PolicySource).
    ///
    /// | key | identity |
    /// |---|---|
    /// | of [`hashed`](crate::KeyExtractor::hashed) | the identity from the hashed extractor |
    /// | of [`or`](crate::KeyExtractor::or) | the identity from the extractor that found it |
    /// | of a tuple or of [`join`](Self::join) | the identities of the parts, with U+001F between them, and U+001E before a part that the second extractor of an `or` found |
    ///
    /// `None` in these cases: the identity is not UTF-8; a part of it contains U+001D, U+001E or U+001F; or it is not
    /// known any more, because a [`Decision`](crate::Decision) holds no identity that its store does not hold.
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
        utf8(self.raw()?)
    }

    /// The bytes of the identity.
    pub(crate) fn raw(&self) -> Option<Cow<'_, [u8]>> {
        match self.origin().and_then(|origin| origin.identity.as_ref()) {
            Some(Identity::Bytes(identity)) => Some(Cow::Borrowed(identity)),
            Some(Identity::Parts(parts)) => {
                identity_of_parts(parts.iter().map(|part| (part.as_str(), part.raw()))).map(Cow::Owned)
            }
            None => identity_of(self.as_str()),
        }
    }

    /// The identity as a function may see it whose result is stored: the text if it hides the identity, or if the
    /// identity is not known. `None` if the identity is not UTF-8.
    pub(super) fn to_map(&self) -> Option<Cow<'_, str>> {
        let secret = self.origin().is_some_and(|origin| origin.secret);
        match self.raw() {
            Some(identity) if !secret => utf8(identity),
            _ => Some(Cow::Borrowed(split_marks(self.as_str()).1)),
        }
    }

    /// The keys that were [joined](Self::join). `None` if this key is not a join, or if they are not known.
    pub(super) fn parts(&self) -> Option<Vec<Self>> {
        if !is_join(self.as_str()) {
            return None;
        }
        match self.origin().and_then(|origin| origin.identity.as_ref()) {
            Some(Identity::Parts(parts)) => Some(parts.to_vec()),
            _ => parts_of(self.as_str()),
        }
    }

    /// The key as it is kept: without an identity that its text does not show.
    pub(crate) fn stored(self) -> Self {
        match self.0 {
            Repr::Detailed(details) => Self(Repr::Text(details.text.clone())),
            text => Self(text),
        }
    }

    /// Whether the client could not be determined.
    pub(crate) fn is_assumed(&self) -> bool {
        self.origin().is_some_and(|origin| origin.assumed)
    }

    /// Whether only an extractor can have made the key, or it was stored. No client sends such an identity.
    pub(super) fn is_final(&self) -> bool {
        let text = self.as_str();
        [FIRST, SECOND, KEYED].iter().any(|mark| text.starts_with(mark)) || self.raw().is_none()
    }
}

fn parts_of(joined: &str) -> Option<Vec<Key>> {
    Some(text::parts(joined)?.into_iter().map(Key::of_text).collect())
}

fn utf8(identity: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match identity {
        Cow::Borrowed(identity) => str::from_utf8(identity).ok().map(Cow::Borrowed),
        Cow::Owned(identity) => String::from_utf8(identity).ok().map(Cow::Owned),
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
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
        assert_eq!(Key::new(&[b'a'; 96]).as_str().len(), 96);
    }
}
