//! [`TextBytes`]: how much text a part of an answer has.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// The bytes of all texts in a JSON value, without the texts that only describe it. Counting all
/// of them includes the text of fields that are added later, such as reasoning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TextBytes(pub(super) u64);

/// The entries whose text is not output.
const DESCRIPTIONS: [&str; 12] = [
    "annotations",
    "call_id",
    "encrypted_content",
    "id",
    "index",
    "logprobs",
    "mimeType",
    "object",
    "role",
    "signature",
    "thoughtSignature",
    "type",
];

impl<'de> Deserialize<'de> for TextBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = TextBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<TextBytes, E> {
        Ok(TextBytes(0))
    }

    fn visit_bool<E>(self, _: bool) -> Result<TextBytes, E> {
        Ok(TextBytes(0))
    }

    fn visit_u64<E>(self, _: u64) -> Result<TextBytes, E> {
        Ok(TextBytes(0))
    }

    fn visit_i64<E>(self, _: i64) -> Result<TextBytes, E> {
        Ok(TextBytes(0))
    }

    fn visit_f64<E>(self, _: f64) -> Result<TextBytes, E> {
        Ok(TextBytes(0))
    }

    fn visit_str<E>(self, text: &str) -> Result<TextBytes, E> {
        Ok(TextBytes(text.len() as u64))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<TextBytes, A::Error> {
        let mut sum = 0_u64;
        while let Some(TextBytes(bytes)) = values.next_element()? {
            sum = sum.saturating_add(bytes);
        }
        Ok(TextBytes(sum))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<TextBytes, A::Error> {
        let mut sum = 0_u64;
        while let Some(IsOutput(is_output)) = entries.next_key()? {
            if is_output {
                sum = sum.saturating_add(entries.next_value::<TextBytes>()?.0);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(TextBytes(sum))
    }
}

/// Whether the value of an entry is output, by its name.
struct IsOutput(bool);

impl<'de> Deserialize<'de> for IsOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = IsOutput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<IsOutput, E> {
        Ok(IsOutput(!DESCRIPTIONS.contains(&name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_answer_is_counted_and_what_describes_it_is_not() {
        let rows = [
            (r#""four""#, 4),
            (r#"{ "role": "assistant", "content": "" }"#, 0),
            (r#"{ "content": "ab", "reasoning": "cd", "audio": null }"#, 4),
            (
                r#"{ "tool_calls": [{ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{}" } }] }"#,
                3,
            ),
            (
                r#"{ "parts": [{ "text": "é" }, { "inlineData": { "mimeType": "image/png", "data": "AA==" } }], "role": "model" }"#,
                6,
            ),
            (r#"[1, -1, 1.5, true, "\u00e9"]"#, 2),
        ];
        for (value, bytes) in rows {
            assert_eq!(serde_json::from_str::<TextBytes>(value).unwrap().0, bytes, "{value}");
        }
    }
}
