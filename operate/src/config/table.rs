//! Entries that are a table or a text, and lengths of time.

use std::{fmt, marker::PhantomData, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use tower_ratelimit::{Error, Quota};

/// An entry that is a table, or a text in its place.
#[derive(Debug)]
pub(crate) struct TextOrTable<T>(pub(crate) T);

pub(crate) trait Table: for<'de> Deserialize<'de> {
    const EXPECTED: &'static str;

    /// The table that `text` stands for.
    fn of_text<E: serde::de::Error>(text: &str) -> Result<Self, E>;
}

impl<'de, T: Table> Deserialize<'de> for TextOrTable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TableVisitor(PhantomData))
    }
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: Table> Visitor<'de> for TableVisitor<T> {
    type Value = TextOrTable<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TextOrTable<T>, E> {
        T::of_text(text).map(TextOrTable)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<TextOrTable<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(table)).map(TextOrTable)
    }
}

/// The value that `T` reads from a string. `expected` completes "invalid type: integer `5`, expected ...".
pub(super) fn deserialize_text<'de, D, T>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = Error>,
{
    deserializer.deserialize_str(TextVisitor { expected, value: PhantomData })
}

struct TextVisitor<T> {
    expected: &'static str,
    value: PhantomData<T>,
}

impl<T: FromStr<Err = Error>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// A length of time, such as `90s`.
#[derive(Debug)]
pub(super) struct Span(pub(super) Duration);

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Quota::parse_period(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a duration such as \"90s\"")
    }
}
