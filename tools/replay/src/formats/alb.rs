//! The access logs of AWS Application Load Balancers.

use std::borrow::Cow;

use chrono::DateTime;

use super::{
    alb_fields::{NAMES, field},
    line::{Details, Line, known},
};

/// Lines of older load balancers end at the user agent.
const LEAST: usize = 14;

pub(super) fn parse(text: &str) -> Result<Line<'_>, String> {
    let fields = split(text);
    let kind = fields.first().copied().unwrap_or_default();
    if !matches!(kind, "http" | "https" | "h2" | "grpcs" | "ws" | "wss") {
        return Err(format!("`{kind}` is not a type of request, such as https"));
    }
    if fields.len() < LEAST {
        return Err(format!("{} fields instead of at least {LEAST}", fields.len()));
    }
    let get = |name| field(&fields, name).unwrap_or_default();
    let end = micros_of(get("time"))?;
    let (address, _port) = get("client").rsplit_once(':').ok_or("no port after the client's address")?;
    let created = field(&fields, "request_creation_time").filter(|time| *time != "-");
    let duration = match created {
        Some(created) => end.saturating_sub(micros_of(created)?),
        None => {
            let names = ["request_processing_time", "target_processing_time", "response_processing_time"];
            // -1 if the request did not get that far.
            let seconds =
                names.iter().filter_map(|name| get(name).parse().ok()).filter(|time: &f64| *time >= 0.0);
            (seconds.sum::<f64>() * 1e6) as u64
        }
    };
    let mut request = get("request").split(' ');
    Ok(Line {
        arrival: end.saturating_sub(duration),
        duration: Some(duration),
        bytes: get("sent_bytes").parse().ok(),
        address: Some(Cow::Borrowed(address.trim_matches(['[', ']']))),
        method: request.next().and_then(known),
        target: request.next().and_then(known),
        host: field(&fields, "domain_name").and_then(known),
        user_agent: known(get("user_agent")),
        details: Details::Alb(fields),
        ..Line::default()
    })
}

/// The fields, without their quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut fields, mut rest) = (Vec::with_capacity(NAMES.len()), text);
    while !rest.is_empty() {
        let (field, after) = match rest.strip_prefix('"') {
            Some(inside) => inside.split_once('"').unwrap_or((inside, "")),
            None => rest.split_at(rest.find(' ').unwrap_or(rest.len())),
        };
        fields.push(field);
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    fields
}

fn micros_of(time: &str) -> Result<u64, String> {
    let parsed = DateTime::parse_from_rfc3339(time)
        .map_err(|_| format!("the time `{time}` is not like 2026-07-02T22:23:00.186641Z"))?;
    u64::try_from(parsed.timestamp_micros()).map_err(|_| "a time before 1970".to_owned())
}
