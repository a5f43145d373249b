/// Appends `text` in quotes, as an RFC 9651 String and as a JSON string. The two forms are equal for printable ASCII, the
/// only characters in the names of policies and in this crate's texts.
pub(crate) fn push_quoted(to: &mut String, text: &str) {
    to.push('"');
    let mut rest = text;
    // Most texts have nothing to escape and are copied in one piece.
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\')) {
        let (before, from) = rest.split_at(at);
        let (escaped, after) = from.split_at(1);
        for part in [before, "\\", escaped] {
            to.push_str(part);
        }
        rest = after;
    }
    to.push_str(rest);
    to.push('"');
}

/// `text` as [`push_quoted`] appends it.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    push_quoted(&mut quoted, text);
    quoted
}
