//! The text of a key: what is stored for it in Redis.
//!
//! The functions here know texts only. What can follow `%` in an encoded identity is two upper-case hex
//! digits, so a `%` before any other character is a mark, and no identity contains one.
//!
//! Several texts in one are `%(acme%|alice%)`. The three marks stand in no part that is not a join itself,
//! and a join within a join has both its brackets. So the parts can be found again, and different parts make
//! different texts.

use std::{borrow::Cow, sync::Arc};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};
use sha2::{Digest as _, Sha256};

/// The empty identity.
pub(super) const EMPTY: &str = "%";
/// Before a hash that replaces a long identity.
const HASHED: &str = "%#";
/// Before a hash under a secret.
pub(super) const KEYED: &str = "%*";
/// Before the parts of a join.
pub(super) const OPEN: &str = "%(";
/// Between two parts of a join.
const BETWEEN: &str = "%|";
/// After the parts of a join.
const CLOSE: &str = "%)";
/// Before a hash that replaces a long join.
const HASHED_JOIN: &str = "%+";
/// Before a key that the first extractor of an `or` found, if the key looks like one of the second.
pub(super) const FIRST: &str = "%<";
/// Before a key that the second extractor of an `or` found.
pub(super) const SECOND: &str = "%>";
/// Before the key of a CORS preflight.
pub(super) const PREFLIGHT: &str = "%^";

/// Splits `text` after the marks that say which extractor found the key, and for what kind of request.
pub(super) fn split_marks(text: &str) -> (&str, &str) {
    let mut rest = text;
    while let Some(after) = [FIRST, SECOND, PREFLIGHT].iter().find_map(|mark| rest.strip_prefix(mark)) {
        rest = after;
    }
    text.split_at(text.len() - rest.len())
}

/// Whether `text` is a hash that replaces an identity or a join.
pub(super) fn is_hash(text: &str) -> bool {
    let is_whole =
        |hash: &str| hash.len() == 32 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    [HASHED, KEYED, HASHED_JOIN].iter().filter_map(|mark| text.strip_prefix(mark)).any(is_whole)
}

/// The longest text in bytes, without the marks of a preflight.
pub(super) const MAX: usize = 96;

/// The longest text that is stored in place: an address, an IPv6 network, and most API keys and ids.
const SHORT: usize = 30;

/// A text in printable ASCII.
///
/// A short one is stored in place: it needs no allocation, and comparing it follows no pointer.
#[derive(Clone)]
pub(super) enum Text {
    /// The bytes after `length` are 0, so equal texts have equal bytes.
    Short { length: u8, bytes: [u8; SHORT] },
    /// Longer than [`SHORT`].
    Long(Arc<str>),
}

impl Text {
    /// The text of `ascii`, if it is short.
    #[inline]
    pub(super) fn short(ascii: &[u8]) -> Option<Self> {
        let mut bytes = [0; SHORT];
        bytes.get_mut(..ascii.len())?.copy_from_slice(ascii);
        Some(Self::Short { length: ascii.len() as u8, bytes })
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => &bytes[..usize::from(*length)],
            Self::Long(text) => text.as_bytes(),
        }
    }

    /// A fast hash whose low bits depend on all bytes. Clients can make texts collide. Computing it twice is
    /// faster than keeping it with each charge.
    #[inline]
    #[cfg(any(feature = "redis", test))]
    pub(super) fn quick_hash(&self, seed: u64) -> u64 {
        /// The last word may overlap the one before it. All `bytes` are longer than a word.
        #[inline(always)]
        fn of_words(bytes: &[u8], seed: u64) -> u64 {
            // The low half of a product does not depend on the high bits of its factors, but the high half
            // does.
            let step = |hash: u64, word: &[u8; 8]| {
                let product = u128::from(hash ^ u64::from_le_bytes(*word)) * 0x9e37_79b9_7f4a_7c15;
                (product as u64) ^ (product >> 64) as u64
            };
            let hash = bytes.as_chunks().0.iter().fold(seed, step);
            bytes.last_chunk().map_or(hash, |word| step(hash, word))
        }
        match self {
            // It hashes the unused bytes too, because a slice of the used ones would take a branch.
            Self::Short { bytes, .. } => of_words(bytes, seed),
            Self::Long(text) => of_words(text.as_bytes(), seed),
        }
    }

    /// A hash under a secret. Two texts of a client who does not know the secret have the same one with a
    /// probability of about 2^-60, so it can take the place of the text.
    pub(super) fn secret_hash(&self, secret: &HashSecret) -> u64 {
        match self {
            Self::Short { bytes, .. } => nh(0, bytes, secret),
            Self::Long(text) => nh(text.len(), text.as_bytes(), secret),
        }
    }

    /// [`secret_hash`](Self::secret_hash), if the text is short.
    #[inline]
    pub(super) fn short_secret_hash(&self, secret: &HashSecret) -> Option<u64> {
        match self {
            Self::Short { bytes, .. } => Some(nh(0, bytes, secret)),
            Self::Long(_) => None,
        }
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            // The text is ASCII, so it is valid UTF-8.
            Self::Short { .. } => str::from_utf8(self.as_bytes()).unwrap_or_default(),
            Self::Long(text) => text,
        }
    }
}

/// What the words of a text are hashed with: random numbers.
pub(crate) type HashSecret = [[u64; 2]; 8];

/// The hash NH, as in UMAC (RFC 4418): the sum of the products of two words each, with a part of the secret added
/// to each word. The last pair of words may overlap the one before it. So texts whose last pairs overlap
/// differently need different values of `length`.
#[inline(always)]
fn nh(length: usize, bytes: &[u8], secret: &HashSecret) -> u64 {
    let [[of_length, _], of_last, secret @ ..] = secret;
    let product = |pair: &[u8; 16], [a, b]: &[u64; 2]| {
        let pair = u128::from_le_bytes(*pair);
        let (low, high) = (pair as u64, (pair >> 64) as u64);
        u128::from(low.wrapping_add(*a)) * u128::from(high.wrapping_add(*b))
    };
    let length = length as u128 * u128::from(*of_length);
    let last = bytes.last_chunk().map_or(0, |last| product(last, of_last));
    let pairs = bytes.as_chunks().0.iter().zip(secret);
    let sum =
        pairs.fold(length.wrapping_add(last), |sum, (pair, part)| sum.wrapping_add(product(pair, part)));
    (sum as u64) ^ (sum >> 64) as u64
}

impl From<&str> for Text {
    fn from(ascii: &str) -> Self {
        Self::short(ascii.as_bytes()).unwrap_or_else(|| Self::Long(ascii.into()))
    }
}

impl PartialEq for Text {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            // Arrays of a fixed length compare faster than slices, and every lookup in a table compares
            // texts.
            (Self::Short { length: a, bytes: x }, Self::Short { length: b, bytes: y }) => a == b && x == y,
            _ => self.as_bytes() == other.as_bytes(),
        }
    }
}

impl Eq for Text {}

/// `mark` before `text`, or before the hash of `text` if the two are too long. `true` if it is the hash.
pub(super) fn bounded(mark: &str, text: &str) -> (Text, bool) {
    // Not for the two marks that a preflight may have: the key after the mark is the one that may be banned.
    let marks = usize::from(mark == PREFLIGHT) * (1 + usize::from(text.starts_with(PREFLIGHT)));
    let hashed = mark.len() + text.len() > MAX + marks * PREFLIGHT.len();
    let bounded =
        if hashed { hash(&[mark, HASHED].concat(), text) } else { [mark, text].concat().as_str().into() };
    (bounded, hashed)
}

/// The hash of `text`, as of one that is too long.
pub(super) fn hashed(text: &str) -> Text {
    hash(HASHED, text)
}

/// `mark` before 128 bits of the SHA-256 of `text`.
fn hash(mark: &str, text: &str) -> Text {
    let mut hash = mark.to_owned();
    push_hex(&mut hash, &Sha256::digest(text.as_bytes())[..16]);
    hash.as_str().into()
}

pub(super) fn push_hex(to: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    for byte in bytes {
        to.push(digit(byte >> 4));
        to.push(digit(byte & 15));
    }
}

/// Whether `identity` is its own text: it is short enough, and nothing in it is encoded.
pub(super) fn is_plain(identity: &[u8]) -> bool {
    (1..=MAX).contains(&identity.len()) && identity.iter().all(|byte| stands_for_itself(*byte))
}

/// From a table, because every request with an identity checks each of its bytes.
#[inline]
fn stands_for_itself(byte: u8) -> bool {
    static TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0x21;
        while byte <= 0x7e {
            table[byte as usize] = !matches!(byte, b'{' | b'}' | b'%');
            byte += 1;
        }
        table
    };
    TABLE[usize::from(byte)]
}

/// The ASCII bytes that do not [stand for themselves](stands_for_itself). `percent_encode` encodes all bytes
/// above ASCII.
const ENCODED: AsciiSet = CONTROLS.add(b' ').add(b'{').add(b'}').add(b'%');

/// `identity` in printable ASCII without braces and spaces.
pub(super) fn encode(identity: &[u8]) -> String {
    percent_encode(identity, &ENCODED).to_string()
}

/// `text` with what [`encode`] encodes encoded, except `%`.
pub(super) fn encode_around_percent(text: &str) -> String {
    let parts: Vec<String> = text.split('%').map(|part| encode(part.as_bytes())).collect();
    parts.join("%")
}

/// Replaces every `%` and two hex digits in `text` by the byte they stand for. Any other `%` stays.
pub(crate) fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    percent_decode(text).into()
}

/// The text of `parts` together.
pub(super) fn join<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    // Enough for two short ones.
    let mut joined = String::with_capacity(64);
    joined.push_str(OPEN);
    for (i, part) in parts.into_iter().enumerate() {
        if i > 0 {
            joined.push_str(BETWEEN);
        }
        joined.push_str(part);
    }
    joined.push_str(CLOSE);
    joined
}

/// The hash that replaces a join which is too long.
pub(super) fn hashed_join(joined: &str) -> Text {
    hash(HASHED_JOIN, joined)
}

/// Whether `text` is a join, hashed or not.
pub(super) fn is_join(text: &str) -> bool {
    text.starts_with(OPEN) || text.starts_with(HASHED_JOIN)
}

/// The texts of which `joined` was made. `None` if it is not a join, or is a hash of one.
pub(super) fn parts(joined: &str) -> Option<Vec<&str>> {
    let mut rest = joined.strip_prefix(OPEN)?.strip_suffix(CLOSE)?;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let end = part_end(rest)?;
        parts.push(&rest[..end]);
        rest = &rest[end..];
        if let Some(after) = rest.strip_prefix(BETWEEN) {
            // A mark between two parts, and no text is empty.
            if after.is_empty() {
                return None;
            }
            rest = after;
        }
    }
    Some(parts)
}

/// Where the first part of `text` ends. `None` if its brackets do not match.
fn part_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = text.get(at..)?;
        if rest.starts_with(OPEN) {
            depth += 1;
        } else if rest.starts_with(CLOSE) {
            depth = depth.checked_sub(1)?;
        } else if rest.starts_with(BETWEEN) && depth == 0 {
            break;
        } else {
            at += 1;
            continue;
        }
        at += OPEN.len();
    }
    (depth == 0 && at > 0).then_some(at)
}

/// Between the identities of joined parts.
const SEPARATOR: u8 = 0x1f;
/// Before the identity of a part that the second extractor of an `or` found.
const OF_SECOND: u8 = 0x1e;
/// Before the identity of a part that the first extractor of an `or` found, if it looks like one of the
/// second.
const OF_FIRST: u8 = 0x1d;

/// The identity that `text` shows. `None` if it is a hash, or if the identities of joined parts cannot be
/// told apart.
pub(super) fn identity_of(text: &str) -> Option<Cow<'_, [u8]>> {
    let (_, text) = split_marks(text);
    if text == EMPTY {
        return Some(Cow::Borrowed(b""));
    }
    if is_join(text) {
        let parts = parts(text)?.into_iter().map(|part| (part, identity_of(part)));
        return identity_of_parts(parts).map(Cow::Owned);
    }
    let hashed = text.starts_with(HASHED) || text.starts_with(KEYED);
    (!hashed).then(|| decode(text.as_bytes()))
}

/// The identity of a join: the identities of its parts, with a separator between them. Each part has a text
/// and an identity.
pub(super) fn identity_of_parts<'a>(
    parts: impl IntoIterator<Item = (&'a str, Option<Cow<'a, [u8]>>)>,
) -> Option<Vec<u8>> {
    let mut identities = Vec::new();
    for (i, (text, identity)) in parts.into_iter().enumerate() {
        if i > 0 {
            identities.push(SEPARATOR);
        }
        let (marks, text) = split_marks(text);
        let marks = marks.as_bytes().chunks_exact(FIRST.len());
        identities.extend(marks.map(|mark| if mark == FIRST.as_bytes() { OF_FIRST } else { OF_SECOND }));
        let identity = identity?;
        // The parts of a join within this one have separators already.
        let ambiguous = !is_join(text) && identity.iter().any(|byte| (OF_FIRST..=SEPARATOR).contains(byte));
        if ambiguous {
            return None;
        }
        identities.extend_from_slice(&identity);
    }
    Some(identities)
}

#[cfg(test)]
mod tests {
    use std::{array, collections::HashSet};

    use super::*;
    use crate::base::random::random;

    #[test]
    fn a_secret_hash_depends_on_each_byte_and_on_the_length() {
        let secret: HashSecret = array::from_fn(|_| [random(), random()]);
        let mut hashes = HashSet::new();
        for length in 1..=100 {
            let text = "a".repeat(length);
            assert!(hashes.insert(Text::from(&*text).secret_hash(&secret)), "{length}");
            for place in 0..length {
                let mut text = text.clone();
                text.replace_range(place..=place, "b");
                let text = Text::from(&*text);
                assert!(hashes.insert(text.secret_hash(&secret)), "{length}, {place}");
                let is_short = text.short_secret_hash(&secret) == Some(text.secret_hash(&secret));
                assert_eq!(is_short, length <= SHORT, "{length}");
            }
        }
    }

    #[test]
    fn the_low_bits_of_a_quick_hash_tell_apart_texts_that_end_differently() {
        for length in 8..=64 {
            let hash = |number| Text::from(format!("{number:0length$}").as_str()).quick_hash(7) % 256;
            let mut places: Vec<u64> = (0..128).map(hash).collect();
            places.sort_unstable();
            places.dedup();
            // 101 are expected of random ones.
            assert!(places.len() >= 80, "{length}: {}", places.len());
        }
    }

    #[test]
    fn only_a_percent_and_two_digits_stand_for_another_byte() {
        for (text, decoded) in [
            ("", ""),
            ("abc", "abc"),
            ("%61%62", "ab"),
            ("%", "%"),
            ("%4", "%4"),
            ("%4g%g4", "%4g%g4"),
            ("%%41", "%A"),
            ("%2541", "%41"),
            ("%+4", "%+4"),
        ] {
            assert_eq!(decode(text.as_bytes()), decoded.as_bytes(), "{text}");
        }
    }

    #[test]
    fn every_byte_is_decoded_to_itself() {
        for byte in 0..=u8::MAX {
            let encoded = encode(&[byte]);
            assert_eq!(*decode(encoded.as_bytes()), [byte], "{encoded}");
            assert!(
                encoded.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}".contains(&byte)),
                "{encoded}"
            );
            assert_eq!(is_plain(&[byte]), encoded.len() == 1, "{encoded}");
        }
    }

    #[test]
    fn parts_are_found_again() {
        let rows: [(&str, &[&str]); 9] = [
            ("%(%)", &[]),
            ("%(a%)", &["a"]),
            ("%(acme%|alice%)", &["acme", "alice"]),
            ("%(a|b%|(c)%)", &["a|b", "(c)"]),
            ("%(%%|%%)", &["%", "%"]),
            ("%(%>a%|%#00%)", &["%>a", "%#00"]),
            ("%(%(a%|b%)%|c%)", &["%(a%|b%)", "c"]),
            ("%(a%|%(b%|c%)%)", &["a", "%(b%|c%)"]),
            ("%(%(%(%)%)%)", &["%(%(%)%)"]),
        ];
        for (text, expected) in rows {
            assert_eq!(parts(text).unwrap(), expected, "{text}");
            assert_eq!(join(expected.iter().copied()), text);
        }
    }

    #[test]
    fn a_text_that_is_not_a_join_has_no_parts() {
        let texts = [
            "", "a", "%", "%(", "%)", "%(a", "a%)", "%(a%)b", "%+00", "%(%|%)", "%(a%|%)", "%(%|a%)",
            "%(a%)%)", "%(%(%)",
        ];
        for text in texts {
            assert!(parts(text).is_none(), "{text}");
        }
    }
}
