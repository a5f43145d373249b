//! The identity that a key's text stands for.

use std::borrow::Cow;

use super::{
    Key,
    marks::{EMPTY, FIRST, HASHED, JOINED, KEYED, PREFLIGHT, SECOND},
};

/// Between the identities of joined parts.
const SEPARATOR: u8 = 0x1f;
/// Before the identity of a part that is the second one's of an `or`.
const OF_SECOND: u8 = 0x1e;
/// Before the identity of a part that looks like a second one's and is not.
const OF_FIRST: u8 = 0x1d;

/// The identity that the encoded `text` of a key shows. `None` where a hash stands in its place, or where it
/// is not known where joined parts end.
pub(super) fn of_text(text: &str) -> Option<Cow<'_, [u8]>> {
    let (_, text) = split_marks(text);
    if text == EMPTY {
        return Some(Cow::Borrowed(b""));
    }
    if text.starts_with(JOINED) {
        return of_parts(&parts(text)?).map(Cow::Owned);
    }
    let hashed = text.starts_with(HASHED) || text.starts_with(KEYED);
    (!hashed).then(|| decode(text.as_bytes()))
}

/// The identities of `parts`, with a separator between them.
pub(super) fn of_parts(parts: &[Key]) -> Option<Vec<u8>> {
    let mut identities = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            identities.push(SEPARATOR);
        }
        let (marks, text) = split_marks(part.as_str());
        let sides = marks.as_bytes().chunks_exact(FIRST.len());
        identities.extend(sides.map(|mark| if mark == FIRST.as_bytes() { OF_FIRST } else { OF_SECOND }));
        let identity = part.raw()?;
        // Parts of parts are apart already.
        let ambiguous =
            !text.starts_with(JOINED) && identity.iter().any(|byte| (OF_FIRST..=SEPARATOR).contains(byte));
        if ambiguous {
            return None;
        }
        identities.extend_from_slice(&identity);
    }
    Some(identities)
}

/// The keys that the text `joined` was joined of; `None` where it is another sort of key, or a hash.
pub(super) fn parts(joined: &str) -> Option<Vec<Key>> {
    let mut rest = joined.strip_prefix(JOINED)?;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (length, text) = rest.split_once(':')?;
        let (part, after) = text.split_at_checked(length.parse().ok()?)?;
        parts.push(Key::of_text(part));
        rest = after;
    }
    Some(parts)
}

/// The marks at the start of `text` that say where in a configuration the key comes from, and the rest.
pub(super) fn split_marks(text: &str) -> (&str, &str) {
    let mut rest = text;
    while let Some(after) = [FIRST, SECOND, PREFLIGHT].iter().find_map(|mark| rest.strip_prefix(mark)) {
        rest = after;
    }
    text.split_at(text.len() - rest.len())
}

/// `text` with every `%` and two hex digits replaced by the byte they stand for. Any other `%` stands for
/// itself.
pub(super) fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return Cow::Borrowed(text);
    }
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16).map(|digit| digit as u8);
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_text_that_no_key_has_gives_no_parts() {
        for joined in ["a", "%", "%+1", "%+x:a", "%+2:a", "%+%#00", "%+99999999999999999999:a", "%+1:"] {
            assert!(parts(joined).is_none(), "{joined}");
        }
        assert!(parts("%+").unwrap().is_empty());
    }
}
