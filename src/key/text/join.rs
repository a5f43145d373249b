//! Several texts in one, `%(acme%|alice%)`.
//!
//! The three marks stand in no part that is not a join itself, and a join within a join has both its brackets. So the
//! parts can be found again, and different parts make different texts.

use super::{
    ascii::{Text, hash},
    marks::{BETWEEN, CLOSE, HASHED_JOIN, OPEN},
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

/// Whether `text` is that of a join, hashed or not.
pub(in crate::key) fn is_join(text: &str) -> bool {
    text.starts_with(OPEN) || text.starts_with(HASHED_JOIN)
}

/// The texts of which `joined` was made. `None` if it is no join, or a hash of one.
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
    fn a_text_that_is_no_join_has_no_parts() {
        let texts = [
            "", "a", "%", "%(", "%)", "%(a", "a%)", "%(a%)b", "%+00", "%(%|%)", "%(a%|%)", "%(%|a%)",
            "%(a%)%)", "%(%(%)",
        ];
        for text in texts {
            assert!(parts(text).is_none(), "{text}");
        }
    }
}
