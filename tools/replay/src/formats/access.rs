//! The common and combined logs of nginx and Apache, alone or with a duration after them.

use std::{borrow::Cow, cell::Cell};

use chrono::DateTime;

use super::line::{Line, known};

/// What follows a line of the common or combined log, and what its time is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Timing {
    /// No duration is read.
    None,
    /// Seconds with a fraction. The time of the line is the request's end.
    NginxSeconds,
    /// Microseconds. The time of the line is the request's arrival.
    ApacheMicros,
    /// Seconds. The time of the line is the request's arrival.
    ApacheSeconds,
}

/// `203.0.113.7 - bob [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 12 "referer" "user agent" 0.123`
pub(super) fn parse(text: &str, timing: Timing) -> Result<Line<'_>, String> {
    let (address, rest) = text.split_once(' ').ok_or("no address with a space after it")?;
    if address.is_empty() {
        return Err("no address".to_owned());
    }
    let (user, rest) = rest.split_once(" [").ok_or("no time in brackets")?;
    let (time, rest) = rest.split_once(']').ok_or("no time in brackets")?;
    let time = micros_of(time)?;
    let (request, rest) = quoted(rest.trim_start()).ok_or("no request in quotes")?;
    let mut words = rest.trim_start().splitn(3, ' ');
    let status = words.next().unwrap_or_default();
    if status.len() != 3 || status.parse::<u16>().is_err() {
        return Err("no status after the request".to_owned());
    }
    let bytes = match words.next().ok_or("no size after the status")? {
        "-" => Some(0),
        bytes => Some(bytes.parse().map_err(|_| format!("the size `{bytes}` is not a number"))?),
    };
    let rest = words.next().unwrap_or_default();
    let (user_agent, rest) = match quoted(rest).and_then(|(_, rest)| quoted(rest.trim_start())) {
        Some((user_agent, rest)) => (known(user_agent), rest),
        None => (None, rest),
    };
    let duration = duration(rest, timing)?;
    let arrival = match timing {
        Timing::NginxSeconds => time.saturating_sub(duration.unwrap_or_default()),
        _ => time,
    };
    let mut words = request.split(' ');
    let (method, target) = (words.next(), words.next());
    Ok(Line {
        arrival,
        duration,
        bytes,
        address: Some(Cow::Borrowed(address)),
        // Without a target, the client has sent something other than a request.
        method: method.filter(|_| target.is_some()).and_then(known),
        target: target.and_then(known),
        user: user.split_once(' ').and_then(|(_, user)| known(user)),
        user_agent,
        ..Line::default()
    })
}

/// What is in quotes at the start of `text`, and what comes after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inside.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((&inside[..end], &inside[end + 1..]))
}

/// The duration in microseconds, which may be named, as in `rt=0.123`.
fn duration(rest: &str, timing: Timing) -> Result<Option<u64>, String> {
    if timing == Timing::None {
        return Ok(None);
    }
    let word = rest.split_whitespace().next().ok_or("no duration after the line")?;
    let value = word.trim_matches('"').rsplit('=').next().unwrap_or_default();
    let invalid = || format!("the duration `{word}` is not a number");
    match timing {
        _ if value == "-" => Ok(None),
        Timing::NginxSeconds => {
            // With the fraction that nginx always writes, so a count of whole units is not taken for seconds.
            let seconds = value.parse().ok().filter(|seconds| value.contains('.') && is_time(*seconds));
            Ok(Some((seconds.ok_or_else(invalid)? * 1e6) as u64))
        }
        Timing::ApacheSeconds => {
            let seconds = value.parse().ok().and_then(|seconds: u64| seconds.checked_mul(1_000_000));
            seconds.map(Some).ok_or_else(invalid)
        }
        _ => value.parse().map(Some).map_err(|_| invalid()),
    }
}

/// Whether the number can be a number of seconds.
fn is_time(seconds: f64) -> bool {
    (0.0..1e9).contains(&seconds)
}

/// Microseconds since 1970 of a time such as `10/Oct/2026:13:55:36 +0000`.
fn micros_of(time: &str) -> Result<u64, String> {
    thread_local! {
        /// The time of the line before, which is often the same.
        static LAST: Cell<([u8; 26], u64)> = const { Cell::new(([0; 26], 0)) };
    }
    let key: Option<[u8; 26]> = time.as_bytes().try_into().ok();
    if let Some((_, micros)) = key.map(|_| LAST.get()).filter(|(last, _)| Some(*last) == key) {
        return Ok(micros);
    }
    let parsed = DateTime::parse_from_str(time, "%d/%b/%Y:%H:%M:%S %z")
        .map_err(|_| format!("the time `{time}` is not like 10/Oct/2026:13:55:36 +0000"))?;
    let micros = u64::try_from(parsed.timestamp_micros()).map_err(|_| "a time before 1970")?;
    if let Some(key) = key {
        LAST.set((key, micros));
    }
    Ok(micros)
}
