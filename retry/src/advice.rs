//! When to retry, according to a response.
//!
//! A malformed header is ignored, as the standards ask. So is a header that is sent twice and is not a list.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use crate::details;

/// Above this, `X-RateLimit-Reset` counts from 1970: as seconds from now it would be 31 years.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Do not retry: the request was not rejected, may have been carried out, or waiting does not help.
    Leave,
    /// Retry after this time, without jitter.
    Exactly(Duration),
    /// Retry after this time or later.
    AtLeast(Duration),
    /// Retry; the response names no wait.
    Unsaid,
}

/// gRPC's `RESOURCE_EXHAUSTED` and `UNAVAILABLE`, the only codes that can be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    ResourceExhausted,
    Unavailable,
}

impl Advice {
    /// The advice of an HTTP response, which may carry the status of a gRPC call.
    pub(super) fn of_response(status: StatusCode, headers: &HeaderMap, idempotent: bool) -> Self {
        let grpc = one(headers, "content-type").is_some_and(|kind| kind.starts_with("application/grpc"));
        if grpc && let Some(code) = one(headers, "grpc-status") {
            let code = match code {
                "8" => Code::ResourceExhausted,
                "14" => Code::Unavailable,
                _ => return Self::Leave,
            };
            let details = one(headers, "grpc-status-details-bin").and_then(details::from_base64);
            return Self::of_call(code, headers, details.as_deref().unwrap_or_default());
        }

        let wait = retry_after(headers);
        match status {
            StatusCode::TOO_MANY_REQUESTS => {}
            StatusCode::SERVICE_UNAVAILABLE if wait.is_some() || idempotent => {}
            _ => return Self::Leave,
        }
        if let Some(pushback) = Self::pushback(headers) {
            return pushback;
        }
        if status == StatusCode::TOO_MANY_REQUESTS && wait.is_none() && is_final(headers) {
            return Self::Leave;
        }
        wait.or_else(|| rate_limit_list(headers))
            .or_else(|| rate_limit_dictionary(headers))
            .or_else(|| rate_limit_headers(headers))
            .or_else(|| legacy_headers(headers))
            .map_or(Self::Unsaid, Self::AtLeast)
    }

    /// The advice of a gRPC status. `details` is a serialized `google.rpc.Status`, or empty.
    ///
    /// Without a wait neither code can be retried: the exhausted resource may be the size of a message, and an unavailable
    /// call may have been carried out in part.
    pub(super) fn of_call(code: Code, headers: &HeaderMap, details: &[u8]) -> Self {
        if let Some(pushback) = Self::pushback(headers) {
            return pushback;
        }
        let after = || if code == Code::ResourceExhausted { retry_after(headers) } else { None };
        details::retry_delay(details).or_else(after).map_or(Self::Leave, Self::AtLeast)
    }

    /// gRFC A6: a negative or malformed value means not to retry.
    fn pushback(headers: &HeaderMap) -> Option<Self> {
        headers.get("grpc-retry-pushback-ms")?;
        let millis = one(headers, "grpc-retry-pushback-ms")
            .and_then(digits)
            .filter(|millis| *millis <= i32::MAX.unsigned_abs().into());
        Some(millis.map_or(Self::Leave, |millis| Self::Exactly(Duration::from_millis(millis))))
    }
}

/// RFC 9110: seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = one(headers, "retry-after")?;
    seconds(text).or_else(|| Some(date(text)?.saturating_sub(now(headers))))
}

/// Drafts 08 to 11, `"burst";r=0;t=30`: the longest wait of the policies with nothing left.
fn rate_limit_list(headers: &HeaderMap) -> Option<Duration> {
    let used_up = rate_limit_items(headers)?.into_iter().filter(|(remaining, _)| *remaining == 0);
    used_up.filter_map(|(_, wait)| wait).max().map(Duration::from_secs)
}

/// `r` and `t` of each policy.
fn rate_limit_items(headers: &HeaderMap) -> Option<Vec<(u64, Option<u64>)>> {
    let list: List = Parser::new(&all(headers, "ratelimit")?).parse().ok()?;
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

/// A problem whose policies have no time: how `tower-ratelimit` denies a cost that exceeds the quota.
fn is_final(headers: &HeaderMap) -> bool {
    one(headers, "content-type").is_some_and(|kind| kind.starts_with("application/problem+json"))
        && rate_limit_items(headers)
            .is_some_and(|items| !items.is_empty() && items.iter().all(|(_, wait)| wait.is_none()))
}

/// Draft 07, `limit=100, remaining=0, reset=30`.
fn rate_limit_dictionary(headers: &HeaderMap) -> Option<Duration> {
    let members: Dictionary = Parser::new(&all(headers, "ratelimit")?).parse().ok()?;
    let member = |name: &str| match members.get(name)? {
        ListEntry::Item(item) => count(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    let reset = member("reset")?;
    (member("remaining")? == 0).then(|| Duration::from_secs(reset))
}

/// Drafts 00 to 06, one header for each number.
fn rate_limit_headers(headers: &HeaderMap) -> Option<Duration> {
    let reset = seconds(one(headers, "ratelimit-reset")?)?;
    (digits(one(headers, "ratelimit-remaining")?)? == 0).then_some(reset)
}

fn legacy_headers(headers: &HeaderMap) -> Option<Duration> {
    let reset = seconds(one(headers, "x-ratelimit-reset")?)?;
    let wait = if reset > EPOCH { reset.saturating_sub(now(headers)) } else { reset };
    (digits(one(headers, "x-ratelimit-remaining")?)? == 0).then_some(wait)
}

/// The time since 1970, by the server's clock if the response has a `Date`, so clocks that differ do no harm.
fn now(headers: &HeaderMap) -> Duration {
    one(headers, "date")
        .and_then(date)
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn date(text: &str) -> Option<Duration> {
    httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()
}

fn seconds(text: &str) -> Option<Duration> {
    digits(text).map(Duration::from_secs)
}

/// Only digits. A number that is too large becomes the largest.
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

/// The value of a header that is sent once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

/// The values of a list header, which may be sent on several lines.
fn all(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Result<Vec<_>, _> = headers.get_all(name).iter().map(http::HeaderValue::to_str).collect();
    values.ok().filter(|values| !values.is_empty()).map(|values| values.join(", "))
}
