//! The entry `algorithm`.

use std::{str::FromStr, sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, de::value::MapDeserializer};
use tower_ratelimit::{
    Error, ErrorKind,
    algorithm::{
        Algorithm, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket,
    },
};

use super::table::{Span, Table, deserialize_text};

/// An algorithm, by its name and with its options.
#[derive(Debug, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum AlgorithmTable {
    Concurrency {},
    FixedWindow { aligned: Option<bool>, utc_offset: Option<UtcOffset> },
    Gcra {},
    LeakyBucket { max_wait: Option<Span>, delay_after: Option<u64> },
    SlidingLog {},
    SlidingWindow { segments: Option<u32> },
    TokenBucket { refill_every: Option<Span>, starting_at: Option<u64> },
}

impl AlgorithmTable {
    pub(super) fn algorithm(self) -> Result<Arc<dyn Algorithm>, Error> {
        Ok(match self {
            Self::Concurrency {} => Arc::new(Concurrency::new()),
            Self::FixedWindow { aligned: Some(false), utc_offset: Some(_) } => {
                return Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "`utc_offset` is for aligned windows: leave out `aligned = false`, or `utc_offset`",
                ));
            }
            Self::FixedWindow { utc_offset: Some(UtcOffset(windows)), .. } => Arc::new(windows),
            Self::FixedWindow { aligned: Some(true), .. } => Arc::new(FixedWindow::aligned()),
            Self::FixedWindow { .. } => Arc::new(FixedWindow::anchored()),
            Self::Gcra {} => Arc::new(Gcra::new()),
            Self::LeakyBucket { max_wait: Some(Span(wait)), delay_after } => {
                Arc::new(LeakyBucket::queue(wait).delay_after(delay_after.unwrap_or(1)))
            }
            Self::LeakyBucket { delay_after: Some(_), .. } => {
                return Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "`delay_after` is for a queue: add `max_wait`",
                ));
            }
            Self::LeakyBucket { .. } => Arc::new(LeakyBucket::meter()),
            Self::SlidingLog {} => Arc::new(SlidingLog::new()),
            Self::SlidingWindow { segments } => {
                Arc::new(SlidingWindow::new().segments(segments.unwrap_or(1)))
            }
            Self::TokenBucket { refill_every, starting_at } => {
                let mut bucket = TokenBucket::new();
                if let Some(Span(interval)) = refill_every {
                    bucket = bucket.refill_every(interval);
                }
                if let Some(tokens) = starting_at {
                    bucket = bucket.starting_at(tokens);
                }
                Arc::new(bucket)
            }
        })
    }
}

impl Table for AlgorithmTable {
    const EXPECTED: &'static str = "the name of an algorithm, or a table with its `name` and options";

    fn of_text<E: serde::de::Error>(name: &str) -> Result<Self, E> {
        Self::deserialize(MapDeserializer::new(std::iter::once(("name", name))))
    }
}

/// A distance from UTC, such as `+05:30`: the windows of that time zone.
#[derive(Debug)]
pub(super) struct UtcOffset(pub(super) FixedWindow);

impl FromStr for UtcOffset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let windows = || {
            let (sign, time) = text.split_at_checked(1)?;
            let (hours, minutes) = time.split_once(':')?;
            let number = |digits: &str, below: u64| {
                let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
                digits.parse().ok().filter(|number: &u64| is_number && *number < below)
            };
            let by = Duration::from_secs(number(hours, 24)? * 3_600 + number(minutes, 60)? * 60);
            match sign {
                "+" => Some(FixedWindow::aligned().utc_offset_east(by)),
                "-" => Some(FixedWindow::aligned().utc_offset_west(by)),
                _ => None,
            }
        };
        windows().map(Self).ok_or_else(|| {
            let message = format!("invalid UTC offset `{text}`: write it as `+05:30` or `-05:00`");
            Error::new(ErrorKind::InvalidConfig, message)
        })
    }
}

impl<'de> Deserialize<'de> for UtcOffset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, "a UTC offset such as \"+05:30\"")
    }
}
