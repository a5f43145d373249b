//! [`Key`]: whom a limit counts.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::{
    Secret,
    text::{
        self, EMPTY, FIRST, HashSecret, KEYED, MAX, OPEN, PREFLIGHT, SECOND, Text, bounded, hashed,
        hashed_join, identity_of, identity_of_parts, is_join, push_hex, split_marks,
    },
};

/// Identifies who is limited: an address, an API key, a user's id, or several of them joined.
///
/// A key can be made from any bytes. It is stored as [text](Self::as_str) that is safe inside a Redis key and
/// that an operator can read: see [the forms of a stored key](crate::key#the-stored-form). Different
/// identities have different texts, except for a collision in 128 bits once a text is hashed. Equal
/// identities have equal texts in every process; [hashed](crate::KeyExtractor::hashed) identities do so only
/// if the secret is the same.
///
/// Keys are compared, ordered and hashed by their text. A key keeps the raw [identity](Self::identity) only
/// until the request is charged. A [`Decision`](crate::Decision) and a store keep the text only.
///
/// `Debug` hides the identity, so logging a key by accident discloses nothing.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Key;
///
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
    /// A text, and details that are not stored.
    Detailed(Arc<Details>),
}

struct Details {
    text: Text,
    origin: Origin,
}

/// Details of a key that are not stored.
#[derive(Clone, Default)]
struct Origin {
    /// The identity, if the text does not show it.
    identity: Option<Identity>,
    /// Whether the identity, or a part's identity, must not be stored, so that the text has a hash under a
    /// secret.
    secret: bool,
    /// Whether the key is the proxy's key, because the client could not be determined.
    assumed: bool,
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
    fn keep_identity(&mut self, key: &Key) {
        if self.identity.is_none() {
            self.identity = key.raw().map(|identity| Identity::Bytes((*identity).into()));
        }
    }
}

impl Key {
    /// The key of `identity`. It takes these values and references to them, which make the same key:
    ///
    /// | identity | key |
    /// |---|---|
    /// | text: `&str`, `String`, `Box<str>`, `Arc<str>`, `Cow<str>` | the text as it is. It is not parsed: `"2001:DB8::1"` and the address `2001:db8::1` are two keys |
    /// | bytes: `&[u8]`, `Vec<u8>`, an array | the bytes as they are. They are the key of a text if they are that text in UTF-8; for a UUID's bytes, use [`from_uuid`](Self::from_uuid) |
    /// | an integer of any size | its decimal text |
    /// | an `IpAddr`, `Ipv4Addr` or `Ipv6Addr` | its text; of an IPv4-mapped IPv6 address, the IPv4 address. [`PeerIp`](crate::PeerIp) groups IPv6 addresses by network, this does not |
    /// | a tuple of 2 to 4 of these, by value | the parts [joined](Self::join) |
    /// | a [`Key`] | itself |
    ///
    /// To add a type of your program, implement `From<YourType> for Key`.
    ///
    /// # Example
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tower_ratelimit::Key;
    ///
    /// assert_eq!(Key::new("alice"), Key::new(b"alice"));
    /// assert_eq!(Key::new(7), Key::new("7"));
    /// let address: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
    /// assert_eq!(Key::new(address), Key::new("192.0.2.1"));
    /// assert_eq!(Key::new(("acme", 7)), Key::join([&Key::new("acme"), &Key::new(7)]));
    /// ```
    #[must_use]
    pub fn new(identity: impl Into<Self>) -> Self {
        identity.into()
    }

    /// The key of the UUID with these bytes, such as `uuid.into_bytes()`. It is the key of the UUID's text in
    /// lower case.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::Key;
    ///
    /// let uuid = 0x67e55044_10b1_426f_9247_bb680e5fe0c8_u128.to_be_bytes();
    /// assert_eq!(Key::from_uuid(uuid), Key::new("67e55044-10b1-426f-9247-bb680e5fe0c8"));
    /// assert_ne!(Key::from_uuid(uuid), Key::new(uuid));
    /// ```
    #[must_use]
    pub fn from_uuid(bytes: [u8; 16]) -> Self {
        let mut text = String::with_capacity(36);
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            push_hex(&mut text, &[*byte]);
        }
        Self::new(text)
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
    #[inline]
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

    /// The key of an IPv4 address in dotted form. It uses no formatting machinery, because nearly every
    /// request has one.
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

    fn with_origin(text: Text, origin: Origin) -> Self {
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

    /// The text of the key, which is stored in Redis: printable ASCII without braces and spaces, 1 to 96
    /// bytes, or up to 100 for a CORS preflight. See [its forms](crate::key#the-stored-form).
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

    /// A hash for tables that lose nothing if clients make keys collide.
    #[inline]
    #[cfg(feature = "redis")]
    pub(crate) fn quick_hash(&self, seed: u64) -> u64 {
        self.text().quick_hash(seed)
    }

    /// A hash that stands for the text in a table, because no client knows `secret`.
    pub(crate) fn secret_hash(&self, secret: &HashSecret) -> u64 {
        self.text().secret_hash(secret)
    }

    /// [`secret_hash`](Self::secret_hash), if the text has at most 30 bytes. It makes no call.
    #[inline]
    pub(crate) fn short_secret_hash(&self, secret: &HashSecret) -> Option<u64> {
        self.text().short_secret_hash(secret)
    }

    #[inline]
    fn text(&self) -> &Text {
        match &self.0 {
            Repr::Text(text) => text,
            Repr::Detailed(details) => &details.text,
        }
    }

    fn origin(&self) -> Option<&Origin> {
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
    /// `None` in these cases: the identity is not UTF-8; a part of it contains U+001D, U+001E or U+001F; the
    /// key is the one of a [CORS preflight](crate::RateLimitLayer#cors-preflights) without an identity; or
    /// the key came from a [`Decision`](crate::Decision), which keeps only what the store keeps, and its text
    /// is a hash.
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
        if self.lacks_identity() { None } else { utf8(self.raw()?) }
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

    /// The identity as a function may see it whose result is stored: the text if it hides the identity, or if
    /// the identity is not known. `None` if the identity is not UTF-8.
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

    /// The key as decisions and stores keep it: without an identity that its text does not show.
    #[inline]
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

    /// Notes that this key is a proxy's key, because its client could not be determined.
    pub(crate) fn assumed(self) -> Self {
        let mut origin = self.to_origin();
        origin.assumed = true;
        Self::with_origin(self.text().clone(), origin)
    }

    /// Replaces the text by a hash that discloses nothing without `secret`.
    pub(super) fn with_hash(&self, secret: &Secret) -> Self {
        let mut hashed = KEYED.to_owned();
        push_hex(&mut hashed, &secret.mac(self.as_str()));
        let mut origin = self.to_origin();
        origin.secret = true;
        origin.keep_identity(self);
        Self::with_origin(Text::from(hashed.as_str()), origin)
    }

    /// Marks a key of the first extractor of an `or`, if it could be mistaken for a key of the second.
    pub(crate) fn of_first(self) -> Self {
        if [FIRST, SECOND].iter().any(|mark| self.as_bytes().starts_with(mark.as_bytes())) {
            return self.marked(FIRST);
        }
        self
    }

    /// Marks a key of the second extractor of an `or`, so that no key of the first is equal to it.
    pub(crate) fn of_second(&self) -> Self {
        self.marked(SECOND)
    }

    /// Marks the key of a CORS preflight, so that no key of another request is equal to it.
    pub(crate) fn of_preflight(&self) -> Self {
        self.marked(PREFLIGHT)
    }

    /// The mark of a preflight's key, and the text of the key without it. The mark of another key is empty.
    #[inline]
    pub(crate) fn split_preflight(&self) -> (&'static str, &[u8]) {
        let text = self.as_bytes();
        text.strip_prefix(PREFLIGHT.as_bytes()).map_or(("", text), |client| (PREFLIGHT, client))
    }

    /// The key of a guarantee that this client has in the pool with the key `pool`. If both together are too long, only this one is
    /// hashed: a Redis Cluster finds the shard of the pool by the other one.
    pub(crate) fn in_pool(&self, pool: &Self) -> Self {
        let joined = Self::join([pool, self]);
        if joined.as_str().starts_with(OPEN) {
            return joined;
        }
        let short = Self::of_text(hashed(self.as_str()).as_str());
        let mut origin = joined.to_origin();
        origin.identity = Some(Identity::Parts([pool.clone(), self.clone()].into()));
        Self::with_origin(Self::join([pool, &short]).text().clone(), origin)
    }

    /// This join of a pool's key and a client's, as the key of a guarantee.
    pub(super) fn into_guarantee(self) -> Self {
        match self.parts().as_deref() {
            Some([pool, client]) => client.in_pool(pool),
            _ => self,
        }
    }

    /// Whether this may be the key of a guarantee in the pool with the key `pool`.
    pub(crate) fn is_in_pool(&self, pool: &Self) -> bool {
        let identity = pool.split_preflight().1;
        self.of_pool().is_none_or(|own| own == identity)
    }

    /// The identity of the pool, of the key of a guarantee. `None` if it is too long to be known.
    pub(crate) fn of_pool(&self) -> Option<&[u8]> {
        let joined = str::from_utf8(self.split_preflight().1).ok()?;
        Some(text::parts(joined)?.first()?.as_bytes())
    }

    /// The client, of the key of a guarantee.
    pub(crate) fn client_in_pool(&self) -> Option<Self> {
        match self.origin().and_then(|origin| origin.identity.as_ref()) {
            Some(Identity::Parts(parts)) => parts.get(1).cloned(),
            _ => parts_of(str::from_utf8(self.split_preflight().1).ok()?)?.into_iter().nth(1),
        }
    }

    /// Whether this is the key of a preflight without an identity, which is marked twice.
    pub(crate) fn lacks_identity(&self) -> bool {
        self.split_preflight().1.starts_with(PREFLIGHT.as_bytes())
    }

    /// The client's key, if this is the key of a preflight.
    #[inline]
    pub(crate) fn client(&self) -> Option<Self> {
        let (mark, client) = self.split_preflight();
        if mark.is_empty() { None } else { str::from_utf8(client).ok().map(Self::of_text) }
    }

    /// Marks a key that a function made of `source` like `source`, which an extractor of an `or` found.
    pub(super) fn made_of(self, source: &Self) -> Self {
        let (marks, _) = split_marks(source.as_str());
        let key = if marks.is_empty() { self } else { self.marked(marks) };
        if source.is_assumed() { key.assumed() } else { key }
    }

    pub(super) fn marked(&self, marks: &str) -> Self {
        // The marks are kept even if the text is hashed: they keep the key apart from others.
        let (text, hashed) = bounded(marks, self.as_str());
        let mut origin = self.to_origin();
        if hashed {
            origin.keep_identity(self);
        }
        Self::with_origin(text, origin)
    }

    fn to_origin(&self) -> Origin {
        self.origin().cloned().unwrap_or_default()
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

/// Conversions of values and of references to them, which make the same key. They are not one conversion from
/// every `AsRef<[u8]>`: a type such as `uuid::Uuid` is written as text elsewhere, and the key of its bytes is
/// another one.
macro_rules! from {
    ($($value:ty),+: $identity:ident => $key:expr) => { $(
        impl From<$value> for Key {
            fn from($identity: $value) -> Self {
                Self::from(&$identity)
            }
        }

        impl From<&$value> for Key {
            fn from($identity: &$value) -> Self {
                $key
            }
        }
    )+ };
}

macro_rules! from_tuple {
    ($($part:ident)+) => {
        /// The parts [joined](Key::join), such as a tenant and a user.
        impl<$($part: Into<Key>),+> From<($($part,)+)> for Key {
            #[expect(non_snake_case, reason = "the parts are named like their types")]
            fn from(($($part,)+): ($($part,)+)) -> Self {
                Self::join([$(&$part.into()),+])
            }
        }
    };
}

from!(&str, String, Box<str>, Arc<str>, Cow<'_, str>: text => Self::of_bytes(text.as_bytes()));
from!(&[u8], Vec<u8>: bytes => Self::of_bytes(bytes));
from!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize: number => {
    Self::of_bytes(itoa::Buffer::new().format(*number).as_bytes())
});
from!(Ipv4Addr, Ipv6Addr: address => IpAddr::from(*address).into());
from!(IpAddr: address => Self::new(address.to_canonical().to_string()));
from_tuple!(A B);
from_tuple!(A B C);
from_tuple!(A B C D);

impl<const N: usize> From<[u8; N]> for Key {
    fn from(bytes: [u8; N]) -> Self {
        Self::of_bytes(&bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Self {
        Self::of_bytes(bytes)
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Without the length, which would be another call: no table has a longer key with this one in it.
        state.write(self.as_bytes());
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
    fn the_key_of_a_guarantee_shows_its_pool_and_its_client() {
        let (pool, long) = (Key::new("p".repeat(56)), Key::new("c".repeat(200)));
        for client in [&Key::new("acme"), &long, &Key::new("x".repeat(96))] {
            for key in [client.in_pool(&pool), client.in_pool(&pool).of_preflight()] {
                assert_eq!(key.of_pool(), Some(pool.as_bytes()));
                assert!(key.is_in_pool(&pool) && !key.is_in_pool(&Key::new("other")));
                assert!(key.as_str().len() <= MAX + PREFLIGHT.len());
                assert_eq!(key.client_in_pool().map(|found| found.identity().is_some()), Some(true));
                assert_eq!(Key::from_stored(key.as_str()).unwrap(), key);
            }
        }
        // Nothing is known of it.
        let unknown = long.in_pool(&Key::new("p".repeat(57)));
        assert!(unknown.of_pool().is_none() && unknown.is_in_pool(&pool));
    }

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
    fn a_stored_key_is_the_same_key_without_what_its_text_does_not_show() {
        let secret = Secret::new(&[7; 32]).unwrap();
        let long = Key::new("x".repeat(200));
        let short = Key::new("alice");
        for key in [
            long.clone(),
            long.of_second(),
            Key::join([&long, &short]),
            Key::new("x".repeat(95)).of_second(),
            short.with_hash(&secret),
            Key::join([&short.with_hash(&secret)]),
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
    fn the_key_of_a_preflight_differs_from_every_other_request_s() {
        for identity in ["", "alice", "%^alice", &"x".repeat(96), &"x".repeat(200)] {
            let key = Key::new(identity);
            let preflight = key.of_preflight();
            assert_eq!(preflight.client().unwrap(), key);
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
                assert!([&a, &b, &c].iter().all(|key| key.as_str().len() <= MAX), "{length}");
            }
        }
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
}
