//! Percent-encoding.

use std::{borrow::Cow, fmt::Write as _};

use super::text::MAX;

/// Whether `identity` is its own text: it is short enough, and nothing in it is encoded.
pub(in crate::key) fn is_plain(identity: &[u8]) -> bool {
    // A fold does not stop early, so the compiler checks many bytes in one step.
    (1..=MAX).contains(&identity.len())
        && identity.iter().fold(true, |plain, byte| plain & stands_for_itself(*byte))
}

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e) && !matches!(byte, b'{' | b'}' | b'%')
}

/// `identity` in printable ASCII without braces and spaces.
pub(in crate::key) fn encode(identity: &[u8]) -> String {
    let mut encoded = String::with_capacity(identity.len());
    for &byte in identity {
        if stands_for_itself(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a `String` does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// `text` with what [`encode`] encodes encoded, except `%`.
pub(in crate::key) fn encode_around_percent(text: &str) -> String {
    let parts: Vec<String> = text.split('%').map(|part| encode(part.as_bytes())).collect();
    parts.join("%")
}

/// Replaces every `%` and two hex digits in `text` by the byte they stand for. Any other `%` stays.
pub(crate) fn decode(text: &[u8]) -> Cow<'_, [u8]> {
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
}
