//! Writes single headers. A response holds about 24,000 headers at most; a full one does not get the limit's headers.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header::Entry};

/// Whether there was a value and it was added.
#[inline]
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) -> bool {
    value.is_some_and(|value| headers.try_append(name, value).is_ok())
}

pub(in crate::response) fn insert(headers: &mut HeaderMap, name: HeaderName, value: impl Into<HeaderValue>) {
    let _ = headers.try_insert(name, value.into());
}

/// Inserts a header unless there is one. Returns whether it did.
pub(in crate::response) fn insert_new(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> bool {
    match headers.try_entry(name) {
        Ok(Entry::Vacant(place)) => place.try_insert(value).is_ok(),
        _ => false,
    }
}

/// `number` in digits. `HeaderValue::from` fills a larger buffer and drops it later: 124 of the 7,629 instructions of a
/// denial.
pub(super) fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| number.into())
}

/// `None` for an empty text, and for one that no header can carry.
#[inline]
pub(super) fn value(text: String) -> Option<HeaderValue> {
    if text.is_empty() { None } else { HeaderValue::from_maybe_shared(Bytes::from(text)).ok() }
}

/// The items of a list header.
#[inline]
pub(super) fn list(mut items: impl Iterator<Item = String>) -> String {
    // A single item, the usual case, is not copied.
    let mut list = items.next().unwrap_or_default();
    for item in items {
        list.push_str(", ");
        list.push_str(&item);
    }
    list
}
