//! Times, as texts in UTC.

use chrono::{DateTime, Utc};

const DAY: u64 = 86_400;

fn at(seconds: u64) -> DateTime<Utc> {
    i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0)).unwrap_or_default()
}

/// A time with its date.
pub(super) fn full(seconds: u64) -> String {
    at(seconds).format("%Y-%m-%d %H:%M:%S").to_string()
}

/// A time on the axis of a chart whose ticks are `step` seconds apart.
pub(super) fn tick(seconds: u64, step: u64) -> String {
    let form = match step {
        _ if step >= 365 * DAY => "%Y",
        _ if step >= DAY || seconds.is_multiple_of(DAY) => "%b %-d",
        _ if step.is_multiple_of(60) => "%H:%M",
        _ => "%H:%M:%S",
    };
    at(seconds).format(form).to_string()
}
