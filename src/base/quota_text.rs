//! Quotas as text: `100/min`, `10/s burst 20`.

#[cfg(feature = "serde")]
use std::time::Duration;
use std::{fmt, str::FromStr};

#[cfg(feature = "serde")]
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    error::{Error, ErrorKind},
    quota::Quota,
};

const FORM: &str = "write it as `<limit>/<period>`, such as `100/min`, `5/90s` or `10/s burst 20`";

/// Reads `<limit>/<period>` or `<limit>/<period> burst <burst>`.
///
/// The period is a unit, or a whole number of one: `us`, `ms`, `s`, `min`, `h`, `d`, `w`, or the unit spelled out. Case
/// and spaces do not matter, `per` stands for the slash as well, and digits can be grouped with `_`. Only `M` alone is
/// not a unit: it could be a minute or a month.
///
/// # Errors
///
/// [`InvalidConfig`](ErrorKind::InvalidConfig) with the text and what is wrong with it.
impl FromStr for Quota {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid =
            |problem| Error::new(ErrorKind::InvalidConfig, format!("invalid quota `{text}`: {problem}"));
        let (limit, period, burst) = split(text).ok_or_else(|| invalid(FORM))?;
        let quota = Self::checked(limit, period).map_err(invalid)?;
        burst.map_or(Ok(quota), |burst| quota.with_burst(burst)).map_err(invalid)
    }
}

/// The limit, the period in microseconds and the burst. A number too large is the largest, and out of bounds.
fn split(text: &str) -> Option<(u64, u64, Option<u64>)> {
    // The positions in both are the same.
    let lower = text.to_ascii_lowercase();
    let (limit, rest) = match lower.find('/') {
        Some(slash) => (slash, slash + 1),
        None => lower.find("per").map(|per| (per, per + "per".len()))?,
    };
    let (rate, burst) = match lower.find("burst") {
        Some(burst) => (text.get(rest..burst)?, Some(number(&text[burst + "burst".len()..])?)),
        None => (&text[rest..], None),
    };
    let rate = rate.trim_end();
    Some((number(&text[..limit])?, micros(rate.strip_suffix(',').unwrap_or(rate))?, burst))
}

/// Digits, which may be grouped: `10_000`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let edges = [text.bytes().next()?, text.bytes().next_back()?];
    if !digits || !edges.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.replace('_', "").parse().unwrap_or(u64::MAX))
}

/// A unit of time, or a whole number of one.
fn micros(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text.find(|char: char| !char.is_ascii_digit() && char != '_')?;
    let (count, unit) = text.split_at(unit);
    let count = if count.is_empty() { 1 } else { number(count)? };
    Some(count.saturating_mul(unit_micros(unit.trim())?))
}

fn unit_micros(unit: &str) -> Option<u64> {
    if unit == "M" {
        return None;
    }
    Some(match &*unit.to_lowercase() {
        "us" | "µs" | "microsecond" | "microseconds" => 1,
        "ms" | "millisecond" | "milliseconds" => 1_000,
        "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hour" | "hours" => 3_600 * SECOND,
        "d" | "day" | "days" => 86_400 * SECOND,
        "w" | "week" | "weeks" => 7 * 86_400 * SECOND,
        _ => return None,
    })
}

const SECOND: u64 = 1_000_000;

/// A length of time as a quota's period is written, such as `90s`.
#[cfg(feature = "serde")]
pub(crate) fn parse_duration(text: &str) -> Result<Duration, Error> {
    micros(text).map(Duration::from_micros).ok_or_else(|| {
        let message = format!("invalid duration `{text}`: write a whole number and a unit, such as `90s`");
        Error::new(ErrorKind::InvalidConfig, message)
    })
}

/// As [`from_str`](Quota::from_str) reads it: `100/min`, `5/90s`, `10/s burst 20`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.limit(), Period(self.period_micros()))?;
        if self.has_burst() {
            write!(f, " burst {}", self.capacity())?;
        }
        Ok(())
    }
}

/// The name of one, and the unit after a number.
const UNITS: [(u64, &str, &str); 5] = [
    (86_400 * SECOND, "day", "d"),
    (3_600 * SECOND, "h", "h"),
    (60 * SECOND, "min", "min"),
    (SECOND, "s", "s"),
    (1_000, "ms", "ms"),
];

/// A length of time in the form of a configuration, such as `90s`.
pub(crate) fn duration_text(micros: u64) -> String {
    match UNITS.iter().find(|(unit, ..)| micros.is_multiple_of(*unit)) {
        Some((unit, _, name)) => format!("{}{name}", micros / unit),
        None => format!("{micros}us"),
    }
}

struct Period(u64);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(micros, ..)| *micros == self.0) {
            Some((_, one, _)) => f.write_str(one),
            None => f.write_str(&duration_text(self.0)),
        }
    }
}

/// From text such as `"100/min"` or `"10/s burst 20"`.
#[cfg(feature = "serde")]
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        super::text::deserialize(deserializer, "a quota such as \"100/min\" or \"10/s burst 20\"")
    }
}

/// As its text.
#[cfg(feature = "serde")]
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
