//! Caddy's JSON log.

use std::{borrow::Cow, cell::OnceCell};

use chrono::DateTime;
use serde::Deserialize;

use super::line::{Details, Line};

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    ts: Time<'a>,
    #[serde(borrow)]
    request: Request<'a>,
    #[serde(borrow)]
    user_id: Option<Cow<'a, str>>,
    duration: Option<f64>,
    size: Option<u64>,
}

/// The end of the request, in one of the formats that Caddy can write.
#[derive(Deserialize)]
#[serde(untagged)]
enum Time<'a> {
    Seconds(f64),
    Text(#[serde(borrow)] Cow<'a, str>),
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    client_ip: Option<Cow<'a, str>>,
    #[serde(borrow)]
    remote_ip: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    host: Option<Cow<'a, str>>,
    #[serde(borrow)]
    uri: Option<Cow<'a, str>>,
}

pub(super) fn parse(text: &str) -> Result<Line<'_>, String> {
    // serde reads the members from a list too.
    if text.trim_start().starts_with('[') {
        return Err("a list, and not an object".to_owned());
    }
    let entry: Entry<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let end = match &entry.ts {
        Time::Seconds(seconds) if (0.0..9e9).contains(seconds) => (seconds * 1e6) as u64,
        Time::Seconds(seconds) => return Err(format!("the time {seconds} is not in seconds since 1970")),
        Time::Text(time) => {
            let parsed = DateTime::parse_from_rfc3339(time).map_err(|error| format!("the time: {error}"))?;
            u64::try_from(parsed.timestamp_micros()).map_err(|_| "a time before 1970")?
        }
    };
    let duration = entry.duration.filter(|seconds| (0.0..1e9).contains(seconds));
    let duration = duration.map(|seconds| (seconds * 1e6) as u64);
    let request = entry.request;
    let known = |value: Option<Cow<'_, str>>| value.is_some_and(|value| !value.is_empty());
    if !known(request.client_ip.clone()) && !known(request.remote_ip.clone()) {
        return Err("no `client_ip` or `remote_ip` of the request".to_owned());
    }
    Ok(Line {
        arrival: end.saturating_sub(duration.unwrap_or_default()),
        duration,
        bytes: entry.size,
        address: request.client_ip.or(request.remote_ip),
        method: request.method,
        target: request.uri,
        host: request.host,
        user: entry.user_id.filter(|user| !user.is_empty()),
        details: Details::Json(text, OnceCell::new()),
        ..Line::default()
    })
}
