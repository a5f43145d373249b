use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::marks::HASHED;

/// The longest text in bytes.
pub(in crate::key) const MAX: usize = 96;

/// The longest text that is stored in place: an address, an IPv6 network, and most API keys and ids.
const SHORT: usize = 30;

/// A text in printable ASCII.
///
/// A short one is stored in place: it needs no allocation, and comparing it follows no pointer.
#[derive(Clone)]
pub(in crate::key) enum Text {
    /// The bytes after `length` are 0, so equal texts have equal bytes.
    Short { length: u8, bytes: [u8; SHORT] },
    /// Longer than [`SHORT`].
    Long(Arc<str>),
}

impl Text {
    /// The text of `ascii`, if it is short.
    pub(in crate::key) fn short(ascii: &[u8]) -> Option<Self> {
        let mut bytes = [0; SHORT];
        bytes.get_mut(..ascii.len())?.copy_from_slice(ascii);
        Some(Self::Short { length: ascii.len() as u8, bytes })
    }

    pub(in crate::key) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(text) => text.as_bytes(),
        }
    }

    pub(in crate::key) fn as_str(&self) -> &str {
        match self {
            // It is made of ASCII only.
            Self::Short { .. } => str::from_utf8(self.as_bytes()).unwrap_or_default(),
            Self::Long(text) => text,
        }
    }
}

impl From<&str> for Text {
    fn from(ascii: &str) -> Self {
        Self::short(ascii.as_bytes()).unwrap_or_else(|| Self::Long(ascii.into()))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            // A third of the time of comparing slices, on every lookup in a table.
            (Self::Short { length: a, bytes: x }, Self::Short { length: b, bytes: y }) => a == b && x == y,
            _ => self.as_bytes() == other.as_bytes(),
        }
    }
}

impl Eq for Text {}

/// `mark` before `text`, or before the hash of `text` if the two are longer than [`MAX`]. `true` if it is the hash.
pub(in crate::key) fn bounded(mark: &str, text: &str) -> (Text, bool) {
    let hashed = mark.len() + text.len() > MAX;
    let bounded =
        if hashed { hash(&[mark, HASHED].concat(), text) } else { [mark, text].concat().as_str().into() };
    (bounded, hashed)
}

/// `mark` before 128 bits of the SHA-256 of `text`.
pub(super) fn hash(mark: &str, text: &str) -> Text {
    let mut hash = mark.to_owned();
    push_hex(&mut hash, &Sha256::digest(text.as_bytes())[..16]);
    hash.as_str().into()
}

pub(in crate::key) fn push_hex(to: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    for byte in bytes {
        to.push(digit(byte >> 4));
        to.push(digit(byte & 15));
    }
}
