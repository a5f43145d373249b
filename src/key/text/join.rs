//! Several texts in one, `%(acme%|alice%)`.
//!
//! The three marks stand in no part that is not a join itself, and a join within a join has both its brackets. So the
//! parts can be found again, and different parts make different texts.

use std::borrow::Cow;

use super::{
    encoding::decode,
    marks::{BETWEEN, CLOSE, EMPTY, FIRST, HASHED, HASHED_JOIN, KEYED, OPEN, split_marks},
    text::{Text, hash},
};

/// The text of `parts` together.
pub(in crate::key) fn join<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
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
pub(in crate::key) fn hashed_join(joined: &str) -> Text {
    hash(HASHED_JOIN, joined)
}

/// Whether `text` is a join, hashed or not.
pub(in crate::key) fn is_join(text: &str) -> bool {
    text.starts_with(OPEN) || text.starts_with(HASHED_JOIN)
}

/// The texts of which `joined` was made. `None` if it is not a join, or is a hash of one.
pub(in crate::key) fn parts(joined: &str) -> Option<Vec<&str>> {
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

/// The identity of a join: the identities of its parts, with a separator between them. Each part has a text and an
/// identity.
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

#[cfg(test)]
mod tests {
    use super::*;

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
