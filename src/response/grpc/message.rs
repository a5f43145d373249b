use std::fmt::Write as _;

const MAX_MESSAGE: usize = 1024;

/// `message` as `grpc-message` carries it: printable ASCII except `%` stays as it is. Cut between characters, because
/// clients report half a character as another status.
pub(super) fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for char in message.chars() {
        if encoded.len() >= MAX_MESSAGE {
            break;
        }
        match char {
            '%' => encoded.push_str("%25"),
            ' '..='~' => encoded.push(char),
            _ => {
                for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a `String` does not fail.
                    let _ = write!(encoded, "%{byte:02X}");
                }
            }
        }
    }
    encoded
}
