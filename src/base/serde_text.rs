//! Values that a configuration file writes as text.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde::de::{Deserializer, Visitor};

/// The value that `T` reads from a string. `expected` completes "invalid type: integer `5`, expected ...".
pub(crate) fn deserialize<'de, D, T>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    deserializer.deserialize_str(Text { expected, value: PhantomData })
}

/// [`deserialize`] for a type whose text may be a number.
pub(crate) fn deserialize_number<'de, D, T>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    deserializer.deserialize_any(TextOrNumber(Text { expected, value: PhantomData }))
}

struct Text<T> {
    expected: &'static str,
    value: PhantomData<T>,
}

struct TextOrNumber<T>(Text<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        self.0.visit_str(text)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        self.0.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.0.visit_str(&number.to_string())
    }
}

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Reads a type from the text that its `FromStr` reads.
macro_rules! from_text {
    ($type:ty => $expected:literal) => {
        /// From its text.
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::base::serde_text::deserialize(deserializer, $expected)
            }
        }
    };
}

/// Writes a type as the text of its `Display`.
macro_rules! to_text {
    ($type:ty) => {
        /// As its text.
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
/// [`from_text!`] for a type whose text may be a number.
macro_rules! from_text_or_number {
    ($type:ty => $expected:literal) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::base::serde_text::deserialize_number(deserializer, $expected)
            }
        }
    };
}
pub(crate) use {from_text, from_text_or_number, to_text};
