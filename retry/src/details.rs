//! The `RetryInfo` in a gRPC status's details.
//!
//! tonic is an optional dependency, so the few messages are decoded here. The server may send any bytes: what
//! does not parse is no `RetryInfo`.

use std::time::Duration;

use sfv::{BareItem, Item, Parser};

/// The bytes of a `-bin` header, which may be padded or not.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    // Base64 between colons is a Byte Sequence of RFC 9651, padded or not.
    let item: Item = Parser::new(&format!(":{}:", text.trim())).parse().ok()?;
    match item.bare_item {
        BareItem::ByteSequence(bytes) => Some(bytes),
        _ => None,
    }
}

/// The longest delay in a `google.rpc.RetryInfo` of a serialized `google.rpc.Status`.
pub(super) fn retry_delay(status: &[u8]) -> Option<Duration> {
    let details = fields(status)?.into_iter().filter_map(|field| field.message(3));
    let delays = details.filter_map(|any| {
        let any = fields(any)?;
        let url = any.iter().find_map(|field| field.message(1))?;
        if !url.ends_with(b"/google.rpc.RetryInfo") {
            return None;
        }
        let info = fields(any.iter().find_map(|field| field.message(2))?)?;
        duration(info.iter().find_map(|field| field.message(1))?)
    });
    delays.max()
}

/// A `google.protobuf.Duration` of zero or more.
fn duration(message: &[u8]) -> Option<Duration> {
    let parts = fields(message)?;
    // Zero is not on the wire. A negative number has its highest bit set, so it is too large.
    let part = |number| parts.iter().find_map(|field| field.number(number)).unwrap_or(0);
    let seconds = i64::try_from(part(1)).ok()?;
    let nanos = u32::try_from(part(2)).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds.unsigned_abs(), nanos))
}

struct Field<'a> {
    key: u64,
    value: Value<'a>,
}

enum Value<'a> {
    Number(u64),
    Message(&'a [u8]),
    Other,
}

impl<'a> Field<'a> {
    fn message(&self, key: u64) -> Option<&'a [u8]> {
        match self.value {
            Value::Message(bytes) if self.key == key => Some(bytes),
            _ => None,
        }
    }

    fn number(&self, key: u64) -> Option<u64> {
        match self.value {
            Value::Number(number) if self.key == key => Some(number),
            _ => None,
        }
    }
}

/// The fields of a protobuf message, in the order of the wire.
fn fields(mut message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut message)?),
            1 => take(&mut message, 8).map(|_| Value::Other)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                Value::Message(take(&mut message, length)?)
            }
            5 => take(&mut message, 4).map(|_| Value::Other)?,
            _ => return None,
        };
        fields.push(Field { key: tag >> 3, value });
    }
    Some(fields)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(message, 1)?.first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(taken)
}
