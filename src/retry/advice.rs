//! What a response says about when to come back.
//!
//! A field that is malformed is ignored whole, as the standards ask. So is one that stands twice where
//! only lists may.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use super::details;

/// From here on, `X-RateLimit-Reset` counts from 1970: as seconds from now it would be 31 years.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Not a refusal, one that may have been carried out, or one that waiting does not help against.
    Leave,
    /// After this long, neither earlier nor later.
    Exactly(Duration),
    /// After this long or later.
    AtLeast(Duration),
    /// It can be sent again; when is not said.
    Unsaid,
}

/// What gRPC calls `RESOURCE_EXHAUSTED` and `UNAVAILABLE`: the only codes that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    ResourceExhausted,
    Unavailable,
}

impl Advice {
    /// Of an HTTP response, which may carry the status of a gRPC call.
    pub(super) fn of_response(status: StatusCode, fields: &HeaderMap, idempotent: bool) -> Self {
        let grpc = one(fields, "content-type").is_some_and(|kind| kind.starts_with("application/grpc"));
        if grpc && let Some(code) = one(fields, "grpc-status") {
            let code = match code {
                "8" => Code::ResourceExhausted,
                "14" => Code::Unavailable,
                _ => return Self::Leave,
            };
            let details = one(fields, "grpc-status-details-bin").and_then(details::from_base64);
            return Self::of_call(code, fields, details.as_deref().unwrap_or_default());
        }

        let wait = retry_after(fields);
        match status {
            StatusCode::TOO_MANY_REQUESTS => {}
            StatusCode::SERVICE_UNAVAILABLE if wait.is_some() || idempotent => {}
            _ => return Self::Leave,
        }
        if let Some(pushback) = Self::pushback(fields) {
            return pushback;
        }
        if status == StatusCode::TOO_MANY_REQUESTS && wait.is_none() && is_final(fields) {
            return Self::Leave;
        }
        wait.or_else(|| rate_limit_list(fields))
            .or_else(|| rate_limit_dictionary(fields))
            .or_else(|| rate_limit_fields(fields))
            .or_else(|| legacy_fields(fields))
            .map_or(Self::Unsaid, Self::AtLeast)
    }

    /// Of a gRPC status that came alone. `details` is a serialised `google.rpc.Status`, or empty.
    ///
    /// Without a hint both codes say too little: exhausted may be the size of a message, which will not
    /// change, and what was unavailable may have been half done.
    pub(super) fn of_call(code: Code, fields: &HeaderMap, details: &[u8]) -> Self {
        if let Some(pushback) = Self::pushback(fields) {
            return pushback;
        }
        let after = || if code == Code::ResourceExhausted { retry_after(fields) } else { None };
        details::retry_delay(details).or_else(after).map_or(Self::Leave, Self::AtLeast)
    }

    /// gRFC A6: negative and unparsable both mean not to retry at all.
    fn pushback(fields: &HeaderMap) -> Option<Self> {
        fields.get("grpc-retry-pushback-ms")?;
        let millis = one(fields, "grpc-retry-pushback-ms")
            .and_then(digits)
            .filter(|millis| *millis <= i32::MAX.unsigned_abs().into());
        Some(millis.map_or(Self::Leave, |millis| Self::Exactly(Duration::from_millis(millis))))
    }
}

/// RFC 9110: seconds, or a date.
fn retry_after(fields: &HeaderMap) -> Option<Duration> {
    let text = one(fields, "retry-after")?;
    seconds(text).or_else(|| Some(date(text)?.saturating_sub(now(fields))))
}

/// Drafts 08 to 11, `"burst";r=0;t=30`: the longest of the policies that are used up.
fn rate_limit_list(fields: &HeaderMap) -> Option<Duration> {
    let used_up = rate_limit_items(fields)?.into_iter().filter(|(remaining, _)| *remaining == 0);
    used_up.filter_map(|(_, wait)| wait).max().map(Duration::from_secs)
}

/// `r` and `t` of each policy.
fn rate_limit_items(fields: &HeaderMap) -> Option<Vec<(u64, Option<u64>)>> {
    let list: List = Parser::new(&all(fields, "ratelimit")?).parse().ok()?;
    let mut items = Vec::with_capacity(list.len());
    for entry in list {
        let ListEntry::Item(item) = entry else { return None };
        // Before draft 11 a name could be a Token.
        let (BareItem::String(_) | BareItem::Token(_)) = item.bare_item else { return None };
        let remaining = count(item.params.get("r")?)?;
        let wait = match item.params.get("t") {
            Some(wait) => Some(count(wait)?),
            None => None,
        };
        items.push((remaining, wait));
    }
    Some(items)
}

/// A problem that names policies and no time at all: so this crate refuses a cost above what they can ever hold.
fn is_final(fields: &HeaderMap) -> bool {
    one(fields, "content-type").is_some_and(|kind| kind.starts_with("application/problem+json"))
        && rate_limit_items(fields)
            .is_some_and(|items| !items.is_empty() && items.iter().all(|(_, wait)| wait.is_none()))
}

/// Draft 07, `limit=100, remaining=0, reset=30`.
fn rate_limit_dictionary(fields: &HeaderMap) -> Option<Duration> {
    let members: Dictionary = Parser::new(&all(fields, "ratelimit")?).parse().ok()?;
    let member = |name: &str| match members.get(name)? {
        ListEntry::Item(item) => count(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    let reset = member("reset")?;
    (member("remaining")? == 0).then(|| Duration::from_secs(reset))
}

/// Drafts 00 to 06, one field for each number.
fn rate_limit_fields(fields: &HeaderMap) -> Option<Duration> {
    let reset = seconds(one(fields, "ratelimit-reset")?)?;
    (digits(one(fields, "ratelimit-remaining")?)? == 0).then_some(reset)
}

fn legacy_fields(fields: &HeaderMap) -> Option<Duration> {
    let reset = seconds(one(fields, "x-ratelimit-reset")?)?;
    let wait = if reset > EPOCH { reset.saturating_sub(now(fields)) } else { reset };
    (digits(one(fields, "x-ratelimit-remaining")?)? == 0).then_some(wait)
}

/// Since 1970, by the server's clock if it tells, so that two clocks that differ do no harm.
fn now(fields: &HeaderMap) -> Duration {
    one(fields, "date")
        .and_then(date)
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn date(text: &str) -> Option<Duration> {
    httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()
}

fn seconds(text: &str) -> Option<Duration> {
    digits(text).map(Duration::from_secs)
}

/// Digits and nothing else. A number too large is the largest.
fn digits(text: &str) -> Option<u64> {
    let digit = |sum: u64, byte: u8| {
        byte.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add((byte - b'0').into()))
    };
    if text.is_empty() { None } else { text.bytes().try_fold(0, digit) }
}

fn count(value: &BareItem) -> Option<u64> {
    match value {
        BareItem::Integer(number) => u64::try_from(i64::from(*number)).ok(),
        _ => None,
    }
}

/// The value of a field that stands once.
fn one<'a>(fields: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = fields.get_all(name).iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

/// The values of a list field, which may stand on several lines.
fn all(fields: &HeaderMap, name: &str) -> Option<String> {
    let values: Result<Vec<_>, _> = fields.get_all(name).iter().map(http::HeaderValue::to_str).collect();
    values.ok().filter(|values| !values.is_empty()).map(|values| values.join(", "))
}
