//! [`Quota`]: a limit per period and a burst, as numbers and as text.

use std::{fmt, str::FromStr, time::Duration};

use super::error::Error;

/// A rate (units per period) and a burst.
///
/// A *unit* is what the limit counts. A request costs one unit unless its rule sets a
/// [`cost`](crate::Rule::cost). `Quota::per_second(10)` is ten units per second, not one unit every ten
/// seconds.
///
/// # Bursts
///
/// The [`burst`](Self::burst) is what an idle client can be charged in one step. It defaults to the limit:
/// `Quota::per_minute(60)` admits 60 requests in the first millisecond and one per second after that.
/// `Quota::per_minute(60).burst(5)` admits 5 in the first millisecond and also one per second after that.
/// Bursts are for algorithms that refill, such as [`Gcra`](crate::algorithm::Gcra). Windows, logs, queues and
/// concurrency do not accept a burst.
///
/// # Bounds
///
/// Limits and bursts are from 1 to 999,999,999,999,999, the largest number of a response header. Periods are
/// whole microseconds from 1 millisecond to 400 days, and a burst must refill within 100 years. Quotas within
/// these bounds are counted exactly, to the microsecond. Others cannot be built: `new` panics and `try_new`
/// returns an error. Fixed windows count up to the whole bound, buckets such as
/// [`Gcra`](crate::algorithm::Gcra) up to 10,000,000,000,000 units, and other algorithms up to
/// 1,000,000,000,000: a policy with more is an error.
///
/// # Calendar periods
///
/// [`per_month`](Self::per_month), [`per_quarter`](Self::per_quarter) and [`per_year`](Self::per_year) are
/// periods of the calendar. A policy counts them in calendar windows without further settings: see
/// [`FixedWindow::aligned`](crate::algorithm::FixedWindow::aligned), which also sets the day on which they
/// start and the time zone. `per_day` and `per_week` are lengths of time, and become calendar days and weeks
/// with that algorithm.
///
/// # As text
///
/// A quota parses from and prints as text such as `100/min`, `5/90s`, `10/s burst 20` or `100000/month`; see
/// [`FromStr`](#impl-FromStr-for-Quota). With the feature `serde`, configuration files hold the same text.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::Quota;
///
/// const LOGIN: Quota = Quota::per_minute(5);
/// assert_eq!(LOGIN.limit(), 5);
/// assert_eq!(LOGIN.period(), Duration::from_secs(60));
/// assert_eq!(LOGIN.capacity(), 5);
///
/// let api = Quota::per_second(10).burst(20);
/// assert_eq!(api.capacity(), 20);
/// assert_eq!(api.to_string(), "10/s burst 20");
/// assert_eq!("10/s burst 20".parse::<Quota>()?, api);
///
/// assert_eq!(Quota::new(100, Duration::from_secs(90)).to_string(), "100/90s");
/// assert_eq!(Quota::per_hour(48).period() * 24, Quota::per_day(48).period());
/// assert!(Quota::try_new(100, Duration::ZERO).is_err());
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
///
/// A constant out of bounds does not compile:
///
/// ```compile_fail
/// # use tower_ratelimit::Quota;
/// const NOTHING: Quota = Quota::per_second(0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    /// The period in microseconds; for a calendar period its nominal length.
    period: u64,
    /// 0 if no burst was set.
    burst: u64,
    calendar: Option<CalendarPeriod>,
}

/// A period whose length depends on the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalendarPeriod {
    Month,
    Quarter,
    Year,
}

impl CalendarPeriod {
    const ALL: [Self; 3] = [Self::Month, Self::Quarter, Self::Year];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        }
    }

    /// The length that the headers state, in days.
    const fn nominal_days(self) -> u64 {
        match self {
            Self::Month => 30,
            Self::Quarter => 90,
            Self::Year => 365,
        }
    }
}

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_UNITS: u64 = 999_999_999_999_999;
const MIN_PERIOD: u64 = 1_000;
const MAX_PERIOD: u64 = 400 * 86_400 * SECOND;
const MAX_REFILL: u128 = 36_500 * 86_400 * SECOND as u128;
const SECOND: u64 = 1_000_000;

impl Quota {
    /// `limit` units per second, and a [burst](Self#bursts) of `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn per_second(limit: u64) -> Self {
        Self::must(Self::checked(limit, SECOND))
    }

    /// `limit` units per minute, and a [burst](Self#bursts) of `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn per_minute(limit: u64) -> Self {
        Self::must(Self::checked(limit, 60 * SECOND))
    }

    /// `limit` units per hour, and a [burst](Self#bursts) of `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn per_hour(limit: u64) -> Self {
        Self::must(Self::checked(limit, 3_600 * SECOND))
    }

    /// `limit` units per 24 hours, and a [burst](Self#bursts) of `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn per_day(limit: u64) -> Self {
        Self::must(Self::checked(limit, 86_400 * SECOND))
    }

    /// `limit` units per 7 days, and a [burst](Self#bursts) of `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn per_week(limit: u64) -> Self {
        Self::must(Self::checked(limit, 7 * 86_400 * SECOND))
    }

    /// `limit` units per calendar month, counted by
    /// [`FixedWindow::aligned`](crate::algorithm::FixedWindow::aligned): from the first day, in UTC, unless
    /// that algorithm has other settings.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, store::ManualClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let clock = ManualClock::new(); // 2026-01-01, midnight UTC
    /// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    /// let plan = Policy::new("plan", Quota::per_month(100_000));
    /// let acme = Key::new("acme");
    ///
    /// clock.advance(Duration::from_secs(30 * 86_400));
    /// assert!(limiter.check(&plan, &acme, 100_000).await?.is_admitted());
    /// let denied = limiter.check(&plan, &acme, 1).await?;
    /// // It is January 31: the month ends in a day.
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(86_400)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub const fn per_month(limit: u64) -> Self {
        Self::must(Self::by_calendar(limit, CalendarPeriod::Month))
    }

    /// `limit` units per quarter of a year, as [`per_month`](Self::per_month).
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn per_quarter(limit: u64) -> Self {
        Self::must(Self::by_calendar(limit, CalendarPeriod::Quarter))
    }

    /// `limit` units per calendar year, as [`per_month`](Self::per_month).
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999; in a `const`, that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn per_year(limit: u64) -> Self {
        Self::must(Self::by_calendar(limit, CalendarPeriod::Year))
    }

    /// `limit` units per `period`, and a [burst](Self#bursts) of `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 999,999,999,999,999, or `period` below 1 millisecond, above 400 days, or not of
    /// whole microseconds; in a `const`, that is a compile error. [`try_new`](Self::try_new) gives an error
    /// instead.
    #[must_use]
    #[track_caller]
    pub const fn new(limit: u64, period: Duration) -> Self {
        Self::must(Self::of(limit, period))
    }

    /// The fallible form of [`new`](Self::new), for values read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`new`](Self::new) panics.
    pub fn try_new(limit: u64, period: Duration) -> Result<Self, Error> {
        Self::of(limit, period).map_err(Error::invalid)
    }

    const fn by_calendar(limit: u64, period: CalendarPeriod) -> Result<Self, &'static str> {
        match Self::checked(limit, period.nominal_days() * 86_400 * SECOND) {
            Ok(quota) => Ok(Self { calendar: Some(period), ..quota }),
            Err(message) => Err(message),
        }
    }

    const fn of(limit: u64, period: Duration) -> Result<Self, &'static str> {
        if !period.subsec_nanos().is_multiple_of(1_000) {
            return Err("a quota's period must be of whole microseconds");
        }
        let micros = period.as_micros();
        // `Duration` holds more microseconds than `u64`; such a period is an error below as well.
        Self::checked(limit, if micros > MAX_PERIOD as u128 { u64::MAX } else { micros as u64 })
    }

    /// The same rate, with up to `burst` units in one step. Defaults to the limit.
    ///
    /// # Panics
    ///
    /// If `burst` is 0, above 999,999,999,999,999, or would take more than 100 years to refill; in a `const`,
    /// that is a compile error. [`try_burst`](Self::try_burst) gives an error instead.
    #[must_use]
    #[track_caller]
    pub const fn burst(self, burst: u64) -> Self {
        Self::must(self.with_burst(burst))
    }

    /// The fallible form of [`burst`](Self::burst), for values read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`burst`](Self::burst) panics.
    pub fn try_burst(self, burst: u64) -> Result<Self, Error> {
        self.with_burst(burst).map_err(Error::invalid)
    }

    /// The same period with another limit, and without a burst: such as another plan of the same month.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if `limit` is 0 or above 999,999,999,999,999.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::Quota;
    ///
    /// assert_eq!(Quota::per_month(1_000).with_limit(5_000)?, Quota::per_month(5_000));
    /// assert_eq!(Quota::per_second(10).burst(20).with_limit(5)?, Quota::per_second(5));
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn with_limit(self, limit: u64) -> Result<Self, Error> {
        let quota = Self::checked(limit, self.period).map_err(Error::invalid)?;
        Ok(Self { calendar: self.calendar, ..quota })
    }

    /// Units per [`period`](Self::period).
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The time in which [`limit`](Self::limit) units are allowed. For a
    /// [calendar period](Self#calendar-periods) its nominal length: 30 days for a month, 90 for a quarter, and
    /// 365 for a year.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period)
    }

    /// The most units that can be charged in one step: the burst, or the limit if no burst was set.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        if self.burst == 0 { self.limit } else { self.burst }
    }

    pub(crate) const fn period_micros(&self) -> u64 {
        self.period
    }

    pub(crate) const fn calendar(&self) -> Option<CalendarPeriod> {
        self.calendar
    }

    /// One of the given number of equal shares, rounded up to whole units.
    pub(crate) const fn share_of(self, instances: u32) -> Self {
        let instances = instances as u64;
        let (limit, burst) = (self.limit.div_ceil(instances), self.burst.div_ceil(instances));
        Self { limit, burst, ..self }
    }

    /// A length of time in the form of a quota's text, such as `90s` in `5/90s`: for configuration files that
    /// have other times beside quotas. It has no bounds.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) with the text and the form.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::Quota;
    ///
    /// assert_eq!(Quota::parse_period("10 min")?, Duration::from_secs(600));
    /// assert!(Quota::parse_period("10").is_err());
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn parse_period(text: &str) -> Result<Duration, Error> {
        let invalid =
            || invalid!("invalid duration `{text}`: write a whole number and a unit, such as `90s`");
        micros(text).map(Duration::from_micros).ok_or_else(invalid)
    }

    /// Whether a burst was set, even if it equals the limit. An [`Algorithm`](crate::algorithm::Algorithm)
    /// that has no bursts, such as one that counts in windows, returns an error for such a quota.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::Quota;
    ///
    /// assert!(Quota::per_second(10).burst(10).has_burst());
    /// assert!(!Quota::per_second(10).has_burst());
    /// ```
    #[must_use]
    pub const fn has_burst(&self) -> bool {
        self.burst != 0
    }

    #[track_caller]
    const fn must(quota: Result<Self, &'static str>) -> Self {
        match quota {
            Ok(quota) => quota,
            Err(message) => panic!("{}", message),
        }
    }

    const fn checked(limit: u64, period: u64) -> Result<Self, &'static str> {
        if limit == 0 {
            return Err("a quota's limit must be at least 1");
        }
        if limit > MAX_UNITS {
            return Err("a quota's limit must be at most 999,999,999,999,999");
        }
        if period < MIN_PERIOD {
            return Err("a quota's period must be at least 1 millisecond");
        }
        if period > MAX_PERIOD {
            return Err("a quota's period must be at most 400 days");
        }
        Ok(Self { limit, period, burst: 0, calendar: None })
    }

    const fn with_burst(self, burst: u64) -> Result<Self, &'static str> {
        if burst == 0 {
            return Err("a quota's burst must be at least 1");
        }
        if burst > MAX_UNITS {
            return Err("a quota's burst must be at most 999,999,999,999,999");
        }
        if self.calendar.is_some() {
            return Err("a quota per month, quarter or year has no burst");
        }
        if burst as u128 * self.period as u128 / self.limit as u128 > MAX_REFILL {
            return Err("a quota's burst must refill within 100 years");
        }
        Ok(Self { burst, ..self })
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({self})")
    }
}

const FORM: &str =
    "write it as `<limit>/<period>`, such as `100/min`, `5/90s`, `10/s burst 20` or `100000/month`";
const ONE_CALENDAR_PERIOD: &str =
    "a calendar period has no number: write `month`, `quarter` or `year`, or a number of days";

/// Reads `<limit>/<period>` or `<limit>/<period> burst <burst>`.
///
/// The period is a unit of time, optionally after a whole number: `us`, `ms`, `s`, `m` or `min`, `h`, `d`,
/// `w`, or the unit spelled out. Or it is `month`, `quarter` or `year`, without a number. Spaces around numbers and words are ignored, `per` may replace the slash,
/// and digits can be grouped with `_`. Case is ignored, except that a lone `M` is rejected: it could mean
/// minute or month.
///
/// # Errors
///
/// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) with the text and what is wrong with it.
impl FromStr for Quota {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |problem| invalid!("invalid quota `{text}`: {problem}");
        let (limit, period, burst) = split(text).ok_or_else(|| invalid(hint(text)))?;
        let quota = match calendar_period(period) {
            Some((1, period)) => Self::by_calendar(limit, period),
            Some(_) => return Err(invalid(ONE_CALENDAR_PERIOD)),
            None => Self::checked(limit, micros(period).ok_or_else(|| invalid(hint(text)))?),
        };
        let quota = quota.map_err(invalid)?;
        burst.map_or(Ok(quota), |burst| quota.with_burst(burst)).map_err(invalid)
    }
}

/// What to write in the place of a text that is not a quota.
fn hint(text: &str) -> &'static str {
    let lower = text.trim().to_ascii_lowercase();
    if lower.contains('.') {
        "numbers are whole: write `3/2s` for 1.5 a second, `100/90min` for an hour and a half"
    } else if ["rps", "rpm", "rph", "rpd"].iter().any(|rate| lower.ends_with(rate)) {
        "write the period after a slash, such as `600/min`"
    } else if ["/mo", "/mon", "/mth"].iter().any(|month| lower.replace(' ', "").ends_with(month)) {
        "a calendar month is `month`, such as `10/month`"
    } else {
        FORM
    }
}

/// The limit, the text of the period and the burst. A number above `u64::MAX` becomes this bound, which no
/// quota allows.
fn split(text: &str) -> Option<(u64, &str, Option<u64>)> {
    // ASCII letters keep their length, so positions in `lower` are valid in `text`.
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
    Some((number(&text[..limit])?, rate.strip_suffix(',').unwrap_or(rate), burst))
}

/// A calendar period, and how many of them.
fn calendar_period(text: &str) -> Option<(u64, CalendarPeriod)> {
    let (count, unit) = count_and_unit(text)?;
    let unit = unit.to_ascii_lowercase();
    let singular = unit.strip_suffix('s').unwrap_or(&unit);
    let period = CalendarPeriod::ALL.into_iter().find(|period| period.name() == singular)?;
    Some((count, period))
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
    let (count, unit) = count_and_unit(text)?;
    Some(count.saturating_mul(unit_micros(unit)?))
}

/// A number, 1 without one, and what it counts.
fn count_and_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let unit = text.find(|char: char| !char.is_ascii_digit() && char != '_')?;
    let (count, unit) = text.split_at(unit);
    Some((if count.is_empty() { 1 } else { number(count)? }, unit.trim()))
}

fn unit_micros(unit: &str) -> Option<u64> {
    let lower = unit.to_lowercase();
    let is = |(_, _, short, others): &&Unit| lower == *short || others.contains(&&*lower);
    UNITS.iter().find(is).filter(|_| unit != "M").map(|(micros, ..)| *micros)
}

/// As [`from_str`](Quota::from_str) reads it: `100/min`, `5/90s`, `10/s burst 20`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = match (self.calendar, largest_unit(self.period)) {
            (Some(period), _) => period.name().to_owned(),
            (None, (unit, one, ..)) if unit == self.period => one.to_owned(),
            _ => duration_text(self.period),
        };
        write!(f, "{}/{period}", self.limit)?;
        if self.has_burst() {
            write!(f, " burst {}", self.capacity())?;
        }
        Ok(())
    }
}

/// A unit of time: its microseconds, the name of one, the unit after a number, and how else it is written.
type Unit = (u64, &'static str, &'static str, &'static [&'static str]);

/// The units of time, from the largest to the smallest. A week comes last, because it is read and never
/// written.
const UNITS: [Unit; 7] = [
    (86_400 * SECOND, "day", "d", &["day", "days"]),
    (3_600 * SECOND, "h", "h", &["hour", "hours"]),
    (60 * SECOND, "min", "min", &["m", "mins", "minute", "minutes"]),
    (SECOND, "s", "s", &["sec", "secs", "second", "seconds"]),
    (1_000, "ms", "ms", &["millisecond", "milliseconds"]),
    (1, "us", "us", &["µs", "microsecond", "microseconds"]),
    (7 * 86_400 * SECOND, "week", "w", &["week", "weeks"]),
];

/// A length of time in the form of a configuration, such as `90s`.
pub(crate) fn duration_text(micros: u64) -> String {
    let (unit, _, name, _) = largest_unit(micros);
    format!("{}{name}", micros / unit)
}

/// The largest unit of which `micros` are a whole number: at least microseconds.
fn largest_unit(micros: u64) -> Unit {
    UNITS.into_iter().find(|(unit, ..)| micros.is_multiple_of(*unit)).unwrap_or(UNITS[5])
}

#[cfg(feature = "serde")]
super::from_text! { Quota => "a quota such as \"100/min\" or \"10/s burst 20\"" }
#[cfg(feature = "serde")]
super::to_text!(Quota);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_out_of_bounds_cannot_be_built() {
        struct Row {
            name: &'static str,
            limit: u64,
            period: Duration,
            message: &'static str,
        }
        let second = Duration::from_secs(1);
        let rows = [
            Row { name: "no units", limit: 0, period: second, message: "at least 1" },
            Row {
                name: "too many units",
                limit: MAX_UNITS + 1,
                period: second,
                message: "at most 999,999,999,999,999",
            },
            Row { name: "no time", limit: 1, period: Duration::ZERO, message: "at least 1 millisecond" },
            Row {
                name: "half a millisecond",
                limit: 1,
                period: Duration::from_micros(500),
                message: "at least 1 millisecond",
            },
            Row {
                name: "401 days",
                limit: 1,
                period: Duration::from_secs(401 * 86_400),
                message: "at most 400 days",
            },
            Row {
                name: "forever",
                limit: 1,
                period: Duration::MAX.saturating_sub(Duration::from_nanos(999)),
                message: "at most 400 days",
            },
            Row {
                name: "a nanosecond over",
                limit: 1,
                period: Duration::from_nanos(1_000_000_001),
                message: "whole microseconds",
            },
        ];
        for Row { name, limit, period, message } in rows {
            let error = Quota::try_new(limit, period).unwrap_err();
            assert!(error.to_string().contains(message), "{name}: {error}");
        }
        assert!(Quota::try_new(MAX_UNITS, Duration::from_millis(1)).is_ok());
        assert!(Quota::try_new(1, Duration::from_secs(400 * 86_400)).is_ok());
    }

    #[test]
    fn a_burst_out_of_bounds_cannot_be_built() {
        let quota = Quota::per_day(1);
        for (burst, message) in
            [(0, "at least 1"), (MAX_UNITS + 1, "at most 999,999,999,999,999"), (36_501, "100 years")]
        {
            let error = quota.try_burst(burst).unwrap_err();
            assert!(error.to_string().contains(message), "{burst}: {error}");
        }
        assert_eq!(quota.try_burst(36_500).unwrap().capacity(), 36_500);
    }

    #[test]
    #[should_panic(expected = "at least 1")]
    fn a_limit_of_zero_panics() {
        let _ = Quota::per_second(0);
    }
}
