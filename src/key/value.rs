use std::{
    fmt::{self, Write as _},
    net::IpAddr,
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
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

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
        let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && !matches!(byte, b'{' | b'}' | b'%');
        if identity.len() <= MAX_ENCODED
            && identity.iter().all(is_plain)
            && let Ok(plain) = str::from_utf8(identity)
        {
            // As nearly all are: nothing to encode.
            return Self(plain.into());
        }
        let mut encoded = String::with_capacity(identity.len());
        for &byte in identity {
            match byte {
                b'{' | b'}' | b'%' => push_hex(&mut encoded, byte),
                0x21..=0x7e => encoded.push(char::from(byte)),
                _ => push_hex(&mut encoded, byte),
            }
        }
        Self::bounded("", &encoded)
    }

    /// The key of `parts` together, such as a tenant and a user. The order counts.
    #[must_use]
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut joined = String::new();
        for part in parts {
            // Writing to a `String` does not fail.
            let _ = write!(joined, "{}:{}", part.0.len(), part.0);
        }
        Self::bounded(JOINED, &joined)
    }

    /// The key's text form, the one that stands in Redis keys: printable ASCII without braces and
    /// spaces, at most 96 bytes, never empty.
    ///
    /// It shows the identity; keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A key that shows nothing of this one to whoever lacks `secret`.
    pub(super) fn hashed(&self, secret: &Secret) -> Self {
        let mut hashed = String::from(KEYED);
        for byte in secret.mac(&self.0) {
            // Writing to a `String` does not fail.
            let _ = write!(hashed, "{byte:02x}");
        }
        Self(hashed.into())
    }

    /// As the answer of the first of two extractors: itself, unless it looks like a second's.
    pub(crate) fn of_first(self) -> Self {
        if self.0.starts_with(FIRST) || self.0.starts_with(SECOND) {
            return Self::bounded(FIRST, &self.0);
        }
        self
    }

    /// As the answer of the second of two extractors: different from every answer of the first.
    pub(crate) fn of_second(&self) -> Self {
        Self::bounded(SECOND, &self.0)
    }

    /// `mark` and `encoded`, or its hash where the two are too long. The mark stays, whatever the length:
    /// it says what sort of key this is.
    fn bounded(mark: &str, encoded: &str) -> Self {
        if mark.len() + encoded.len() <= MAX_ENCODED {
            return Self(format!("{mark}{encoded}").into());
        }
        let hash = Sha256::digest(encoded.as_bytes());
        let mut short = format!("{mark}{HASHED}");
        for &byte in hash.iter().take(16) {
            let _ = write!(short, "{byte:02x}");
        }
        Self(short.into())
    }
}

fn push_hex(encoded: &mut String, byte: u8) {
    // Writing to a `String` does not fail.
    let _ = write!(encoded, "%{byte:02X}");
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
