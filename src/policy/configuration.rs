//! Policies as configuration files write them.

use std::{fmt, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        Error as _, MapAccess, Visitor,
        value::{MapAccessDeserializer, MapDeserializer},
    },
};

use super::{Enforcement, FailureMode, Policy};
use crate::{
    algorithm::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    error::{Error, ErrorKind},
    quota::{Quota, parse_duration},
    util::text,
};

/// From a table, see [the module](crate::policy#policies-in-a-configuration-file).
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = PolicyTable::deserialize(deserializer)?;
        let name = table.name.clone();
        table.policy().map_err(|error| D::Error::custom(format_args!("policy `{name}`: {error}")))
    }
}

#[derive(Deserialize)]
#[serde(rename = "a policy", deny_unknown_fields)]
struct PolicyTable {
    name: String,
    quota: Quota,
    #[serde(default)]
    algorithm: AlgorithmEntry,
    #[serde(default)]
    on_store_failure: FailureMode,
    lease: Option<u64>,
    debt: Option<u64>,
    enforced: Option<f64>,
    #[serde(default)]
    content_bytes: bool,
}

impl PolicyTable {
    fn policy(self) -> Result<Policy, Error> {
        let policy = Policy::try_new(&self.name, self.quota)?.on_store_failure(self.on_store_failure);
        let policy = self.algorithm.0.count(policy)?;
        let policy = if self.content_bytes { policy.content_bytes() } else { policy };
        let policy = match self.lease {
            Some(units) => policy.try_leased(units)?,
            None => policy,
        };
        policy.try_debt(self.debt.unwrap_or(0))?.try_enforced_for(self.enforced.unwrap_or(1.0))
    }
}

/// An algorithm: its name, or a table with its name and options.
struct AlgorithmEntry(AlgorithmTable);

impl Default for AlgorithmEntry {
    fn default() -> Self {
        Self(AlgorithmTable::Gcra {})
    }
}

#[derive(Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case", deny_unknown_fields)]
enum AlgorithmTable {
    Concurrency {},
    FixedWindow {
        #[serde(default)]
        aligned: bool,
        utc_offset: Option<UtcOffset>,
    },
    Gcra {},
    LeakyBucket {
        max_wait: Option<Span>,
        delay_after: Option<u64>,
    },
    SlidingLog {},
    SlidingWindow {
        segments: Option<u32>,
    },
    TokenBucket {
        refill_every: Option<Span>,
        starting_at: Option<u64>,
    },
}

impl AlgorithmTable {
    /// `policy`, counted by this algorithm.
    fn count(self, policy: Policy) -> Result<Policy, Error> {
        match self {
            Self::Concurrency {} => policy.try_algorithm(Concurrency::new()),
            Self::FixedWindow { utc_offset: Some(offset), .. } => policy.try_algorithm(offset.windows()),
            Self::FixedWindow { aligned: true, .. } => policy.try_algorithm(FixedWindow::aligned()),
            Self::FixedWindow { .. } => policy.try_algorithm(FixedWindow::anchored()),
            Self::Gcra {} => policy.try_algorithm(Gcra::new()),
            Self::LeakyBucket { max_wait: Some(Span(wait)), delay_after } => {
                policy.try_algorithm(LeakyBucket::queue(wait).delay_after(delay_after.unwrap_or(1)))
            }
            Self::LeakyBucket { delay_after: Some(_), .. } => {
                Err(Error::invalid("`delay_after` is for a queue: add `max_wait`"))
            }
            Self::LeakyBucket { .. } => policy.try_algorithm(LeakyBucket::meter()),
            Self::SlidingLog {} => policy.try_algorithm(SlidingLog::new()),
            Self::SlidingWindow { segments } => {
                policy.try_algorithm(SlidingWindow::new().segments(segments.unwrap_or(1)))
            }
            Self::TokenBucket { refill_every, starting_at } => {
                let mut bucket = TokenBucket::new();
                if let Some(Span(interval)) = refill_every {
                    bucket = bucket.refill_every(interval);
                }
                if let Some(tokens) = starting_at {
                    bucket = bucket.starting_at(tokens);
                }
                policy.try_algorithm(bucket)
            }
        }
    }
}

impl<'de> Deserialize<'de> for AlgorithmEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameOrTable)
    }
}

struct NameOrTable;

impl<'de> Visitor<'de> for NameOrTable {
    type Value = AlgorithmEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an algorithm, or a table with its `name` and options")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<AlgorithmEntry, E> {
        let table = MapDeserializer::new(std::iter::once(("name", name)));
        AlgorithmTable::deserialize(table).map(AlgorithmEntry)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<AlgorithmEntry, A::Error> {
        AlgorithmTable::deserialize(MapAccessDeserializer::new(table)).map(AlgorithmEntry)
    }
}

/// A length of time, such as `90s`.
struct Span(Duration);

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_duration(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize(deserializer, "a duration such as \"90s\"")
    }
}

/// A distance from UTC, such as `+05:30`.
struct UtcOffset {
    east: bool,
    minutes: u64,
}

impl UtcOffset {
    const fn windows(&self) -> FixedWindow {
        let by = Duration::from_secs(self.minutes * 60);
        if self.east {
            FixedWindow::aligned().utc_offset_east(by)
        } else {
            FixedWindow::aligned().utc_offset_west(by)
        }
    }
}

impl FromStr for UtcOffset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let offset = |text: &str| {
            let (sign, time) = text.split_at_checked(1)?;
            let (hours, minutes) = time.split_once(':')?;
            let number = |digits: &str, below: u64| {
                let digits =
                    Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
                digits.parse().ok().filter(|number: &u64| *number < below)
            };
            let minutes = number(hours, 24)? * 60 + number(minutes, 60)?;
            matches!(sign, "+" | "-").then_some(Self { east: sign == "+", minutes })
        };
        offset(text).ok_or_else(|| {
            let message = format!("invalid UTC offset `{text}`: write it as `+05:30` or `-05:00`");
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }
}

impl<'de> Deserialize<'de> for UtcOffset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize(deserializer, "a UTC offset such as \"+05:30\"")
    }
}

/// From `"local"`, `"local/4"`, `"open"` or `"closed"`.
impl<'de> Deserialize<'de> for FailureMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize(deserializer, "\"local\", \"local/4\", \"open\" or \"closed\"")
    }
}

/// From `"on"`, `"soft"` or `"off"`.
impl<'de> Deserialize<'de> for Enforcement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::deserialize(deserializer, "\"on\", \"soft\" or \"off\"")
    }
}

/// As its text.
impl Serialize for Enforcement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// As its text.
impl Serialize for FailureMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
