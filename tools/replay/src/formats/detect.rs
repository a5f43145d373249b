//! Finds the format of a log from its first lines.

use super::Format;

/// In this order: of formats that parse as many lines, the one with the most details is first.
const CANDIDATES: [Format; 6] =
    [Format::Alb, Format::Caddy, Format::Jsonl, Format::NginxTimed, Format::ApacheMicros, Format::Combined];

/// The format that parses the most of `lines`. `None` if none parses any.
pub(crate) fn detect(lines: &[String]) -> Option<Format> {
    let parsed = |format: Format| lines.iter().filter(|line| format.parse(line).is_ok()).count();
    // The last of equals is returned, so the order is reversed.
    let best = CANDIDATES.into_iter().rev().max_by_key(|format| parsed(*format));
    match best.filter(|format| parsed(*format) > 0)? {
        Format::ApacheMicros if longest(lines) < 1_000 => Some(Format::ApacheSeconds),
        Format::Combined if lines.iter().all(|line| !line.trim_end().ends_with('"')) => Some(Format::Common),
        format => Some(format),
    }
}

/// The largest number at the end of a line: seconds if it is small, otherwise microseconds.
fn longest(lines: &[String]) -> u64 {
    let durations = lines.iter().filter_map(|line| Format::ApacheMicros.parse(line).ok()?.duration);
    durations.max().unwrap_or_default()
}
