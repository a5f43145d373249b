//! When to retry, according to a response.
//!
//! All forms of a wait are read, of any server. A header that cannot be read still shows that the server asks
//! for a wait, so it counts as a wait that the policy sets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use crate::details;

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

impl Advice {
    /// The advice of an HTTP response, which may carry the status of a gRPC call. `unclear` is the wait of a
    /// header that cannot be read.
    pub(super) fn of_response(
        status: StatusCode,
        headers: &HeaderMap,
        idempotent: bool,
        unclear: Duration,
    ) -> Self {
        let grpc = one(headers, "content-type").is_some_and(|kind| kind.starts_with("application/grpc"));
        if grpc && let Some(code) = one(headers, "grpc-status") {
            // `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
            if !matches!(code, "8" | "14") {
                return Self::Leave;
            }
            let details = one(headers, "grpc-status-details-bin").and_then(details::from_base64);
            return Self::of_call(headers, details.as_deref().unwrap_or_default(), unclear);
        }

        let stated = Stated::read(headers);
        let has_wait = stated.after.iter().any(Option::is_some);
        let limited = status == StatusCode::TOO_MANY_REQUESTS;
        match status {
            StatusCode::TOO_MANY_REQUESTS => {}
            StatusCode::FORBIDDEN if has_wait || stated.exhausted => {}
            StatusCode::SERVICE_UNAVAILABLE if has_wait || idempotent => {}
            _ => return Self::Leave,
        }
        if let Some(pushback) = Self::pushback(headers) {
            return pushback;
        }
        // Language model APIs send it, and their clients obey it before all else.
        if one(headers, "x-should-retry") == Some("false")
            || limited && stated.after.is_empty() && is_final(headers)
        {
            return Self::Leave;
        }
        // A limit has denied the request, but the response does not state until when.
        let hidden = (limited && stated.unused || status == StatusCode::FORBIDDEN).then_some(unclear);
        stated.wait(unclear).or(hidden).map_or(Self::Unsaid, Self::AtLeast)
    }

    /// The advice of a gRPC status with the code `RESOURCE_EXHAUSTED` or `UNAVAILABLE`. `details` is a
    /// serialized `google.rpc.Status`, or empty. `unclear` is as above.
    ///
    /// Without a wait neither code can be retried: the exhausted resource may be the size of a message, and
    /// an unavailable call may have been carried out in part.
    pub(super) fn of_call(headers: &HeaderMap, details: &[u8], unclear: Duration) -> Self {
        if let Some(pushback) = Self::pushback(headers) {
            return pushback;
        }
        let after = || {
            let after = Stated::read(headers).after;
            after.iter().any(Option::is_some).then(|| longest(&after, unclear)).flatten()
        };
        details::retry_delay(details).or_else(after).map_or(Self::Leave, Self::AtLeast)
    }

    /// gRFC A6: a negative or malformed value means not to retry.
    fn pushback(headers: &HeaderMap) -> Option<Self> {
        headers.get("grpc-retry-pushback-ms")?;
        let millis = one(headers, "grpc-retry-pushback-ms")
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse::<i32>().ok());
        Some(
            millis.map_or(Self::Leave, |millis| {
                Self::Exactly(Duration::from_millis(millis.unsigned_abs().into()))
            }),
        )
    }
}

/// What the headers of a response state. A wait is `None` if it cannot be read.
#[derive(Default)]
struct Stated {
    /// The waits of `Retry-After` and the headers named after it.
    after: Vec<Option<Duration>>,
    /// The waits until the limits are reset that have nothing left, or do not state what is left.
    resets: Vec<Option<Duration>>,
    /// Whether a limit has units left.
    unused: bool,
    /// Whether `X-RateLimit-Remaining` is 0.
    exhausted: bool,
}

impl Stated {
    fn read(headers: &HeaderMap) -> Self {
        let mut stated = Self::default();
        let now = now(headers);
        for (name, value) in headers {
            let name = name.as_str();
            let text = value.to_str().unwrap_or_default();
            let unit = if name.ends_with("-ms") { 0.001 } else { 1.0 };
            if name.ends_with("retry-after") || name.ends_with("retry-after-ms") {
                stated.after.extend(waits(text, unit, now));
            } else if name.contains("limit") && name.contains("reset") {
                if is_unused(headers, name) {
                    stated.unused = true;
                } else {
                    stated.resets.extend(waits(text, unit, now));
                }
            } else if matches!(name, "x-ratelimit-remaining" | "x-rate-limit-remaining") {
                stated.exhausted |= number(text.trim()) == Some(0.0);
            }
        }
        if let Some(text) = all(headers, "ratelimit") {
            match rate_limit_items(&text).or_else(|| rate_limit_dictionary(&text)) {
                None => stated.resets.push(None),
                Some(items) => {
                    let used_up = items.iter().filter(|(remaining, _)| *remaining == 0);
                    stated.resets.extend(used_up.map(|(_, wait)| wait.map(Duration::from_secs)));
                    stated.unused |= items.iter().any(|(remaining, _)| *remaining > 0);
                }
            }
        }
        stated
    }

    /// How long to wait. A `Retry-After` takes precedence over the resets, as the drafts ask, unless it is 0
    /// or unclear.
    fn wait(mut self, unclear: Duration) -> Option<Duration> {
        let precise = self.after.iter().all(Option::is_some);
        if let Some(after) = longest(&self.after, unclear).filter(|after| precise && !after.is_zero()) {
            return Some(after);
        }
        self.after.append(&mut self.resets);
        longest(&self.after, unclear)
    }
}

fn longest(waits: &[Option<Duration>], unclear: Duration) -> Option<Duration> {
    waits.iter().map(|wait| wait.unwrap_or(unclear)).max()
}

/// Whether the limit of the header `name`, such as `x-ratelimit-reset-after`, has units left: whether all
/// lines of `x-ratelimit-remaining` are numbers above 0.
fn is_unused(headers: &HeaderMap, name: &str) -> bool {
    let name = name.trim_end_matches("-ms").trim_end_matches("-after").trim_end_matches("time");
    let mut remaining = headers.get_all(name.replace("reset", "remaining")).iter().peekable();
    let is_left = |text: &str| number(text.trim()).is_some_and(|units| units > 0.0);
    remaining.peek().is_some() && remaining.all(|value| value.to_str().is_ok_and(is_left))
}

/// Drafts 08 to 11, `"burst";r=0;t=30`, and the text after them, `"burst";a=0;w=30`: the units left and the
/// wait of each policy. An item may have both forms.
fn rate_limit_items(text: &str) -> Option<Vec<(u64, Option<u64>)>> {
    let list: List = Parser::new(text).parse().ok()?;
    let mut items = Vec::with_capacity(list.len());
    for entry in list {
        let ListEntry::Item(item) = entry else { return None };
        // Before draft 11 a name could be a Token.
        let (BareItem::String(_) | BareItem::Token(_)) = item.bare_item else { return None };
        let before = items.len();
        for (remaining, wait) in [("r", "t"), ("a", "w")] {
            let Some(remaining) = item.params.get(remaining) else { continue };
            let wait = match item.params.get(wait) {
                Some(wait) => Some(count(wait)?),
                None => None,
            };
            items.push((count(remaining)?, wait));
        }
        if items.len() == before {
            return None;
        }
    }
    Some(items).filter(|items| !items.is_empty())
}

/// A problem whose policies have no time: how `tower-ratelimit` denies a cost that exceeds the quota.
fn is_final(headers: &HeaderMap) -> bool {
    one(headers, "content-type").is_some_and(|kind| kind.starts_with("application/problem+json"))
        && all(headers, "ratelimit")
            .and_then(|text| rate_limit_items(&text))
            .is_some_and(|items| items.iter().all(|(_, wait)| wait.is_none()))
}

/// Draft 07, `limit=100, remaining=0, reset=30`.
fn rate_limit_dictionary(text: &str) -> Option<Vec<(u64, Option<u64>)>> {
    let members: Dictionary = Parser::new(text).parse().ok()?;
    let member = |name: &str| match members.get(name)? {
        ListEntry::Item(item) => count(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    Some(vec![(member("remaining")?, Some(member("reset")?))])
}

/// The time since 1970 in seconds, by the server's clock if the response has a `Date`, so clocks that differ
/// do no harm.
fn now(headers: &HeaderMap) -> f64 {
    one(headers, "date")
        .and_then(date)
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

/// The waits of a line, of which a proxy may have joined several with commas. `None` for each that cannot be
/// read.
fn waits(text: &str, unit: f64, now: f64) -> Vec<Option<Duration>> {
    let (mut waits, mut begin) = (Vec::new(), 0);
    for (end, _) in text.match_indices(',').chain([(text.len(), "")]) {
        let one = text[begin..end].trim();
        // The comma after the weekday of a date does not end it.
        let is_date = WEEKDAYS.iter().any(|day| one.starts_with(day));
        if end == text.len() || !is_date || one.contains(',') {
            waits.push(wait(one, unit, now));
            begin = end + 1;
        }
    }
    waits
}

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// A wait in any form.
fn wait(text: &str, unit: f64, now: f64) -> Option<Duration> {
    let until = |time: f64| (time - now).max(0.0);
    let seconds = if let Some(number) = number(text) {
        let number = number.ceil() * unit;
        match number {
            // Numbers from 31 years on are times since 1970, in seconds or in milliseconds.
            1e9..1e11 if number > 1e9 => until(number),
            1e11..1e14 => until(number / 1_000.0),
            _ => number,
        }
    } else if unit < 1.0 {
        return None;
    } else {
        duration(text).or_else(|| date(text).or_else(|| timestamp(text)).map(until))?
    };
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// `1h6m0.5s`, as Go writes a duration. In seconds.
fn duration(mut text: &str) -> Option<f64> {
    let mut seconds = 0.0;
    loop {
        let (value, rest) = text.split_at(text.find(|char: char| char.is_ascii_alphabetic())?);
        let (unit, rest) =
            rest.split_at(rest.find(|char: char| !char.is_ascii_alphabetic()).unwrap_or(rest.len()));
        let unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        seconds += number(value)? * unit;
        text = rest;
        if text.is_empty() {
            return Some(seconds);
        }
    }
}

fn date(text: &str) -> Option<f64> {
    let time = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(time.as_secs_f64())
}

/// RFC 3339, in seconds since 1970. The seconds may be missing, as in Jira's responses.
fn timestamp(text: &str) -> Option<f64> {
    let (date, time) = text.split_once('T')?;
    let (time, zone) = time.split_at(time.find(['Z', '+', '-'])?);
    let numbers = |text: &str, mark| text.split(mark).map(number).collect::<Option<Vec<_>>>();
    let east = match zone.split_at(1) {
        ("Z", "") => 0.0,
        (sign, offset) => {
            let [hours, minutes] = numbers(offset, ':')?[..] else { return None };
            (hours * 60.0 + minutes) * if sign == "-" { -60.0 } else { 60.0 }
        }
    };
    let (hour, minute, second) = match numbers(time, ':')?[..] {
        [hour, minute] => (hour, minute, 0.0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let [year, month, day] = numbers(date, '-')?[..] else { return None };
    if !(1.0..=12.0).contains(&month)
        || !(1.0..=31.0).contains(&day)
        || hour > 24.0
        || minute > 59.0
        || second > 60.0
    {
        return None;
    }
    // A year from March on has its leap day at its end.
    let (year, month) = if month < 3.0 { (year - 1.0, month + 9.0) } else { (year, month - 3.0) };
    let leap_days = (year / 4.0).floor() - (year / 100.0).floor() + (year / 400.0).floor();
    let days = 365.0 * year + leap_days + ((153.0 * month + 2.0) / 5.0).floor() + day - 719_469.0;
    Some(days * 86_400.0 + hour * 3_600.0 + minute * 60.0 + second - east)
}

/// A decimal number without a sign. A number that is too large becomes the largest.
fn number(text: &str) -> Option<f64> {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    let bytes = text.as_bytes();
    let is_plain = is_digit(bytes.first()) && is_digit(bytes.last());
    let is_plain = is_plain && bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    if is_plain { text.parse().ok() } else { None }
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
    // A `?` alone is not an item, so a line that is not ASCII makes the list invalid.
    let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"));
    headers.contains_key(name).then(|| values.collect::<Vec<_>>().join(", "))
}
