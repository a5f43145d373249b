//! What stands in the text of a key and is not part of an identity.

/// The empty identity.
pub(in crate::key) const EMPTY: &str = "%";
/// Before a hash that replaces a long identity.
pub(super) const HASHED: &str = "%#";
/// Before a hash under a secret.
pub(in crate::key) const KEYED: &str = "%*";
/// Before the parts of a join.
pub(in crate::key) const OPEN: &str = "%(";
/// Between two parts of a join.
pub(super) const BETWEEN: &str = "%|";
/// After the parts of a join.
pub(super) const CLOSE: &str = "%)";
/// Before a hash that replaces a long join.
pub(super) const HASHED_JOIN: &str = "%+";
/// Before a key that the first extractor of an `or` found, if the key looks like one of the second.
pub(in crate::key) const FIRST: &str = "%<";
/// Before a key that the second extractor of an `or` found.
pub(in crate::key) const SECOND: &str = "%>";
/// Before the key of a CORS preflight.
pub(in crate::key) const PREFLIGHT: &str = "%^";

/// Splits `text` after the marks that say which extractor found the key, and for what kind of request.
pub(in crate::key) fn split_marks(text: &str) -> (&str, &str) {
    let mut rest = text;
    while let Some(after) = [FIRST, SECOND, PREFLIGHT].iter().find_map(|mark| rest.strip_prefix(mark)) {
        rest = after;
    }
    text.split_at(text.len() - rest.len())
}

/// Whether `text` is a hash that replaces an identity or a join.
pub(in crate::key) fn is_hash(text: &str) -> bool {
    let is_whole =
        |hash: &str| hash.len() == 32 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    [HASHED, KEYED, HASHED_JOIN].iter().filter_map(|mark| text.strip_prefix(mark)).any(is_whole)
}
