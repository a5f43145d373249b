//! [`StrictNames`]: rejects JSON in which a service may find a member that this program has not found.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor},
    forward_to_deserialize_any,
};

/// What a struct reads of a JSON object, unless a member has the name of a field in another case.
///
/// `Method` is not `method` for serde, and an unknown member is ignored. A service in Go, and some in Java and
/// .NET, read both names as one, so they could read another request than the limit. Such an object is an error, and so
/// is an array, which serde reads as a struct too. Other unknown members are ignored. Pass a struct that
/// derives `Deserialize`, and use `StrictNames` for its fields that are structs too.
///
/// # Example
///
/// ```
/// use tower_ratelimit_gateway::body::StrictNames;
///
/// #[derive(serde::Deserialize)]
/// struct Query {
///     first: u64,
/// }
///
/// let read = |json| serde_json::from_str::<StrictNames<Query>>(json);
/// assert_eq!(read(r#"{ "first": 1, "after": "x" }"#).unwrap().0.first, 1);
/// let error = read(r#"{ "first": 1, "First": 100 }"#).err().unwrap();
/// assert!(error.to_string().starts_with("`First` may be read as `first`"), "{error}");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrictNames<T>(
    /// What the struct reads.
    pub T,
);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StrictNames<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(Strict(deserializer)).map(Self)
    }
}

/// An error if `name` is one of `known` but for its case.
pub(crate) fn check_case<E: serde::de::Error>(name: &str, known: &[&str]) -> Result<(), E> {
    if known.contains(&name) {
        return Ok(());
    }
    match known.iter().find(|known| folded(name).eq(folded(known))) {
        Some(known) => Err(E::custom(format_args!("`{name}` may be read as `{known}`: write it exactly"))),
        None => Ok(()),
    }
}

/// The letters of `name` without their case, as the most lenient reader compares them. Go takes `ſ` for `s` and the
/// sign for Kelvin for `k`, and Java `ı` for `i`.
fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter_map(|letter| letter.to_uppercase().next()?.to_lowercase().next())
}

struct Strict<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(StrictVisitor { fields, visitor })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct StrictVisitor<V> {
    fields: &'static [&'static str],
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StrictVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(StrictMap { fields: self.fields, map })
    }
}

struct StrictMap<A> {
    fields: &'static [&'static str],
    map: A,
}

/// A name, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StrictMap<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(Name(name)) = self.map.next_key()? else { return Ok(None) };
        check_case(&name, self.fields)?;
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Task {
        #[serde(alias = "taskName")]
        task_id: Option<u64>,
        k: Option<u64>,
    }

    #[test]
    fn names_that_another_reader_takes_for_a_field_are_errors() {
        for json in [
            r#"{ "Task_id": 1 }"#,
            r#"{ "TASK_ID": 1 }"#,
            r#"{ "task_id": 1, "ta\u0053k_id": 2 }"#,
            "{ \"ta\u{17f}k_id\": 1 }",
            "{ \"task_\u{131}d\": 1 }",
            "{ \"task_\u{130}d\": 1 }",
            "{ \"\u{212a}\": 1 }",
            r#"{ "taskname": 1 }"#,
            r#"{ "task_id": 1, "task_id": 2 }"#,
            "[1, 2]",
            "7",
        ] {
            assert!(serde_json::from_str::<StrictNames<Task>>(json).is_err(), "{json}");
        }
        for (json, task) in [
            ("{}", Task { task_id: None, k: None }),
            (r#"{ "other": {}, "\u006b": 2, "tasks": 1, "": 0 }"#, Task { task_id: None, k: Some(2) }),
            (r#"{ "taskName": 7 }"#, Task { task_id: Some(7), k: None }),
        ] {
            assert_eq!(serde_json::from_str::<StrictNames<Task>>(json).unwrap().0, task, "{json}");
        }
    }
}
