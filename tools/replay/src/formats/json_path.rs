//! Paths into JSON, such as `request.headers.X-Api-Key.0`.

use std::borrow::Cow;

use serde_json::Value;

/// The text, number or truth value at `path`. Names of objects and places of arrays are separated by dots; a
/// name may have dots itself.
pub(super) fn text_at<'a>(value: &'a Value, path: &str) -> Option<Cow<'a, str>> {
    match value {
        Value::String(text) if path.is_empty() => Some(Cow::Borrowed(text)),
        Value::Number(_) | Value::Bool(_) if path.is_empty() => Some(Cow::Owned(value.to_string())),
        Value::Object(_) | Value::Array(_) if !path.is_empty() => {
            let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
            ends.into_iter().find_map(|end| {
                let rest = path[end..].strip_prefix('.').unwrap_or_default();
                text_at(child(value, &path[..end])?, rest)
            })
        }
        _ => None,
    }
}

fn child<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Array(values) => values.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    }
}
