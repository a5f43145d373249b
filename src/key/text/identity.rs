//! The identity that a text shows.

use std::borrow::Cow;

use super::{
    encoding::decode,
    join::{is_join, parts},
    marks::{EMPTY, FIRST, HASHED, KEYED, split_marks},
};

/// Between the identities of joined parts.
const SEPARATOR: u8 = 0x1f;
/// Before the identity of a part that the second extractor of an `or` found.
const OF_SECOND: u8 = 0x1e;
/// Before the identity of a part that the first extractor of an `or` found, if it looks like one of the second.
const OF_FIRST: u8 = 0x1d;

/// The identity that `text` shows. `None` if it is a hash, or if the identities of joined parts cannot be told apart.
pub(in crate::key) fn identity_of(text: &str) -> Option<Cow<'_, [u8]>> {
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

/// The identity of a join: those of its parts, with a separator between them. Each part has a text and an identity.
pub(in crate::key) fn identity_of_parts<'a>(
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
