//! Policies as configuration files write them.

use std::{fmt, marker::PhantomData, str::FromStr, sync::Arc, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{
        Error as _, MapAccess, Unexpected, Visitor,
        value::{MapAccessDeserializer, MapDeserializer},
    },
};

use super::{Enforcement, FailureMode, Penalty, Policy};
use crate::{
    algorithm::{
        Algorithm, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket,
    },
    base::{Error, ErrorKind, Quota, from_text, parse_duration, to_text},
};

/// From a table, see [the module](crate::policy#policies-in-a-configuration-file).
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = PolicyChanges::deserialize(deserializer)?;
        let name = table.name.clone().ok_or_else(|| D::Error::missing_field("name"))?;
        let quota = table.quota.ok_or_else(|| D::Error::missing_field("quota"))?;
        let policy = Self::try_new(&name, quota).and_then(|policy| table.apply(policy));
        policy.map_err(|error| D::Error::custom(format_args!("policy `{name}`: {error}")))
    }
}

/// Entries of a [configured policy](crate::policy#policies-in-a-configuration-file) that change another one. Each may be left
/// out, and then stays as it is; `null` stands for its default.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Policy, Quota, internal::PolicyChanges};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let login = Policy::new("login", Quota::per_minute(5)).shadow();
/// let changes: PolicyChanges = serde_json::from_str(r#"{ "quota": "10/min" }"#)?;
/// assert_eq!(changes.apply(login)?, Policy::new("login", Quota::per_minute(10)).shadow());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Deserialize)]
#[serde(rename = "a policy", deny_unknown_fields)]
pub struct PolicyChanges {
    name: Option<String>,
    quota: Option<Quota>,
    #[serde(default, deserialize_with = "entry")]
    algorithm: Entry<TextOrTable<AlgorithmTable>>,
    #[serde(default, deserialize_with = "entry")]
    on_store_failure: Entry<FailureMode>,
    #[serde(default, deserialize_with = "entry")]
    lease: Entry<u64>,
    #[serde(default, deserialize_with = "entry")]
    debt: Entry<u64>,
    #[serde(default, deserialize_with = "entry")]
    penalty: Entry<TextOrTable<PenaltyEntry>>,
    #[serde(default, deserialize_with = "entry")]
    enforced: Entry<f64>,
    #[serde(default, deserialize_with = "entry")]
    content_bytes: Entry<bool>,
}

/// An entry: `None` if the table leaves it out, `Some(None)` if it is `null`, which stands for its default.
type Entry<T> = Option<Option<T>>;

fn entry<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Entry<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl PolicyChanges {
    /// The entry `name`. [`apply`](Self::apply) does not read it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The entry `quota`.
    #[must_use]
    pub const fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// `policy` with these entries.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if the entries do not fit together, such as a burst and an algorithm that
    /// counts in windows.
    pub fn apply(self, policy: Policy) -> Result<Policy, Error> {
        let mut policy = policy;
        let inner = Arc::make_mut(&mut policy.0);
        // What is replaced need not fit what comes.
        if self.lease.is_some() {
            inner.options.lease = 0;
        }
        if self.debt.is_some() {
            inner.options.debt = None;
        }
        if self.penalty.is_some() {
            inner.options.penalty = None;
        }
        if let Some(bytes) = self.content_bytes {
            inner.options.bytes = bytes.unwrap_or(false);
        }
        let quota = self.quota.unwrap_or(inner.quota);
        let algorithm = match self.algorithm {
            None => inner.counting.algorithm.clone(),
            Some(None) => Arc::new(Gcra::new()),
            Some(Some(TextOrTable(table))) => table.algorithm()?,
        };
        let mut policy = policy.counted(quota, algorithm)?;
        if let Some(mode) = self.on_store_failure {
            policy = policy.on_store_failure(mode.unwrap_or_default());
        }
        if let Some(Some(units)) = self.lease {
            policy = policy.try_leased(units)?;
        }
        if let Some(Some(TextOrTable(PenaltyEntry(penalty)))) = self.penalty {
            policy = policy.try_penalty(penalty)?;
        }
        if let Some(Some(units)) = self.debt {
            policy = policy.try_debt(units)?;
        }
        match self.enforced {
            Some(share) => policy.try_rollout(share.unwrap_or(1.0)),
            None => Ok(policy),
        }
    }
}

/// An entry that is a table, or a text in its place.
#[derive(Debug)]
struct TextOrTable<T>(T);

trait Table: for<'de> Deserialize<'de> {
    const EXPECTED: &'static str;

    /// The table that `text` stands for.
    fn of_text<E: serde::de::Error>(text: &str) -> Result<Self, E>;
}

impl<'de, T: Table> Deserialize<'de> for TextOrTable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TableVisitor(PhantomData))
    }
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: Table> Visitor<'de> for TableVisitor<T> {
    type Value = TextOrTable<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TextOrTable<T>, E> {
        T::of_text(text).map(TextOrTable)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<TextOrTable<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(table)).map(TextOrTable)
    }
}

/// An algorithm, by its name and with its options.
#[derive(Debug, Deserialize)]
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
    fn algorithm(self) -> Result<Arc<dyn Algorithm>, Error> {
        Ok(match self {
            Self::Concurrency {} => Arc::new(Concurrency::new()),
            Self::FixedWindow { utc_offset: Some(UtcOffset(windows)), .. } => Arc::new(windows),
            Self::FixedWindow { aligned: true, .. } => Arc::new(FixedWindow::aligned()),
            Self::FixedWindow { .. } => Arc::new(FixedWindow::anchored()),
            Self::Gcra {} => Arc::new(Gcra::new()),
            Self::LeakyBucket { max_wait: Some(Span(wait)), delay_after } => {
                Arc::new(LeakyBucket::queue(wait).delay_after(delay_after.unwrap_or(1)))
            }
            Self::LeakyBucket { delay_after: Some(_), .. } => {
                return Err(Error::invalid("`delay_after` is for a queue: add `max_wait`"));
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

/// A penalty: a table of its numbers, or `manual`.
#[derive(Debug, Deserialize)]
#[serde(from = "PenaltyTable")]
struct PenaltyEntry(Penalty);

impl Table for PenaltyEntry {
    const EXPECTED: &'static str = "a table with `after`, `within`, `ban` and `up_to`, or \"manual\"";

    fn of_text<E: serde::de::Error>(text: &str) -> Result<Self, E> {
        match text {
            "manual" => Ok(Self(Penalty::manual())),
            other => Err(E::invalid_value(Unexpected::Str(other), &Self::EXPECTED)),
        }
    }
}

impl From<PenaltyTable> for PenaltyEntry {
    fn from(table: PenaltyTable) -> Self {
        let [first, longest] = [table.ban, table.up_to].map(|time| time.map(|Span(time)| time));
        Self(Penalty { first, longest, ..Penalty::after(table.after, table.within.0) })
    }
}

#[derive(Deserialize)]
#[serde(rename = "a penalty", deny_unknown_fields)]
struct PenaltyTable {
    after: u64,
    within: Span,
    ban: Option<Span>,
    up_to: Option<Span>,
}

/// A length of time, such as `90s`.
#[derive(Debug)]
struct Span(Duration);

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_duration(text).map(Self)
    }
}

/// A distance from UTC, such as `+05:30`: the windows of that time zone.
#[derive(Debug)]
struct UtcOffset(FixedWindow);

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

from_text! {
    Span => "a duration such as \"90s\"",
    UtcOffset => "a UTC offset such as \"+05:30\"",
    FailureMode => "\"local\", \"local/4\", \"open\" or \"closed\"",
    Enforcement => "\"on\", \"report-only\" or \"off\"",
}
to_text!(FailureMode, Enforcement);
