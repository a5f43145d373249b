//! Replies that are hashes.

use std::collections::BTreeMap;

use redis::Value;

use crate::base::{Error, ErrorKind};

/// The fields in a reply to HGETALL.
pub(super) fn fields(reply: Value) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let pairs: Option<Vec<(Value, Value)>> = match reply {
        Value::Map(pairs) => Some(pairs),
        Value::Array(values) if values.len() % 2 == 0 => {
            let mut values = values.into_iter();
            Some(std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect())
        }
        _ => None,
    };
    let text = |value: Value| match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    };
    let fields = pairs.and_then(|pairs| {
        pairs.into_iter().map(|(field, value)| Some((text(field)?, text(value)?))).collect()
    });
    fields.ok_or_else(|| Error::new(ErrorKind::StoreReply, "the reply to HGETALL is not a hash"))
}
