use std::{
    cmp::Ordering,
    fmt::{self, Write as _},
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use sha2::{Digest, Sha256};

use super::Secret;

/// Who is limited: an address, an API key, a user's id, or several of them joined.
///
/// Any bytes will do. They are kept in a form that is safe inside a Redis key: printable ASCII
/// stays as it is, `%`, `{`, `}`, spaces and everything else is percent-encoded, and an identity whose
/// encoded form is longer than 96 bytes is replaced by 128 bits of its SHA-256. Different
/// identities have different forms, hashes aside, and equal ones the same in every process.
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
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Text);

/// A short text stands in place: it costs no allocation, and a table finds it without looking elsewhere.
#[derive(Clone, PartialEq, Eq)]
enum Text {
    /// The bytes after `length` are 0, so that equal texts are equal.
    Short { length: u8, bytes: [u8; SHORT] },
    /// Longer than `SHORT`.
    Long(Arc<str>),
}

/// Enough for an address, an IPv6 network and most API keys and ids.
const SHORT: usize = 30;
const MAX_ENCODED: usize = 96;

// What can follow `%` in an encoded identity is two upper-case hex digits; so these mark what no
// identity can be mistaken for.
const EMPTY: &str = "%";
const HASHED: &str = "%#";
const KEYED: &str = "%*";
const JOINED: &str = "%+";
const FIRST: &str = "%<";
const SECOND: &str = "%>";

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
        Self::bounded("", &encoded)
    }

    /// The key of `identity` where there is nothing to encode, as nearly always: then it is ASCII.
    pub(super) fn plain(identity: &[u8]) -> Option<Self> {
        let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'{' | b'}' | b'%');
        // Without an early end, so that many bytes are looked at at once.
        let plain = || identity.iter().fold(true, |plain, byte| plain & is_plain(byte));
        if !(1..=MAX_ENCODED).contains(&identity.len()) || !plain() {
            return None;
        }
        let text = Text::short(identity).or_else(|| Some(Text::Long(str::from_utf8(identity).ok()?.into())));
        text.map(Self)
    }

    /// The key of `parts` together, such as a tenant and a user. The order counts.
    #[must_use]
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        // Without formatting machinery, for two short ones.
        let mut joined = String::with_capacity(64);
        for part in parts {
            let part = part.as_str();
            joined.push_str(itoa::Buffer::new().format(part.len()));
            joined.push(':');
            joined.push_str(part);
        }
        Self::bounded(JOINED, &joined)
    }

    /// The key's text form, the one that stands in Redis keys: printable ASCII without braces and
    /// spaces, at most 96 bytes, never empty.
    ///
    /// It shows the identity; keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            // It is ASCII, as it was made.
            Text::Short { .. } => str::from_utf8(self.as_bytes()).unwrap_or_default(),
            Text::Long(text) => text,
        }
    }

    /// The bytes of [`as_str`](Self::as_str), without a look at each.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(text) => text.as_bytes(),
        }
    }

    /// The key of an IPv4 address in dotted form. Without formatting machinery: nearly every request has one.
    pub(super) fn of_octets(address: Ipv4Addr) -> Self {
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
        Self(Text::Short { length: length as u8, bytes })
    }

    /// A key that shows nothing of this one to whoever lacks `secret`.
    pub(super) fn hashed(&self, secret: &Secret) -> Self {
        let mut hashed = String::from(KEYED);
        push_hex(&mut hashed, &secret.mac(self.as_str()));
        Self(hashed.as_str().into())
    }

    /// As the answer of the first of two extractors: itself, unless it looks like a second's.
    pub(crate) fn of_first(self) -> Self {
        if [FIRST, SECOND].iter().any(|mark| self.as_bytes().starts_with(mark.as_bytes())) {
            return Self::bounded(FIRST, self.as_str());
        }
        self
    }

    /// As the answer of the second of two extractors: different from every answer of the first.
    pub(crate) fn of_second(&self) -> Self {
        Self::bounded(SECOND, self.as_str())
    }

    /// `mark` and `encoded`, or its hash where the two are too long. The mark stays, whatever the length:
    /// it says what sort of key this is.
    fn bounded(mark: &str, encoded: &str) -> Self {
        if mark.len() + encoded.len() <= MAX_ENCODED {
            return Self([mark, encoded].concat().as_str().into());
        }
        let hash = Sha256::digest(encoded.as_bytes());
        let mut short = [mark, HASHED].concat();
        push_hex(&mut short, &hash[..16]);
        Self(short.as_str().into())
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

impl Text {
    /// `bytes`, which are ASCII, where they are few enough.
    fn short(bytes: &[u8]) -> Option<Self> {
        let mut short = [0; SHORT];
        short.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::Short { length: bytes.len() as u8, bytes: short })
    }
}

impl From<&str> for Text {
    fn from(ascii: &str) -> Self {
        Self::short(ascii.as_bytes()).unwrap_or_else(|| Self::Long(ascii.into()))
    }
}

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

impl From<&str> for Key {
    fn from(identity: &str) -> Self {
        Self::new(identity)
    }
}

impl From<String> for Key {
    fn from(identity: String) -> Self {
        Self::new(identity)
    }
}

impl From<&[u8]> for Key {
    fn from(identity: &[u8]) -> Self {
        Self::new(identity)
    }
}

impl From<Vec<u8>> for Key {
    fn from(identity: Vec<u8>) -> Self {
        Self::new(identity)
    }
}

impl From<i64> for Key {
    fn from(identity: i64) -> Self {
        Self::new(identity.to_string())
    }
}

impl From<u32> for Key {
    fn from(identity: u32) -> Self {
        Self::new(identity.to_string())
    }
}

impl From<u64> for Key {
    fn from(identity: u64) -> Self {
        Self::new(identity.to_string())
    }
}

/// The address itself, every bit of it; [`PeerIp`](crate::PeerIp) is what groups IPv6 networks.
impl From<IpAddr> for Key {
    fn from(identity: IpAddr) -> Self {
        Self::new(identity.to_canonical().to_string())
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
