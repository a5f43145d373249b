//! Windows of a period, each with a count from 0.

use std::time::Duration;

#[cfg(feature = "time-zones")]
use super::calendar::NamedZone;
use super::{
    Algorithm, Replenishment,
    calendar::{Calendar, Unit, Weekday, Zone},
    counter::{Change, Counter, Plan, exactly, usual},
    state::{Count, Owed, State},
    twin::{Gauge, Receipt},
};
#[cfg(feature = "time-zones")]
use crate::base::valid;
use crate::base::{CalendarPeriod, Error, Quota};

/// Counts the units of each window: at most the limit in each one.
///
/// A window is [anchored](Self::anchored) by default: it starts with a client's first charge, and the next
/// one with the first charge after it ended. [Aligned](Self::aligned) windows follow the clock and the
/// calendar instead, the same for every client: minutes, hours, days, weeks, months, quarters or years.
///
/// | quota | aligned windows | settings |
/// |---|---|---|
/// | a period that divides a day, such as `100/h` | start at midnight, and at each multiple of the period after it | an offset |
/// | `1000/day` | calendar days | an offset or a time zone |
/// | `5000/week` | start on Monday | the same, and [`from_weekday`](Self::from_weekday) |
/// | `100000/month` | start on the first day | the same, and [`from_day`](Self::from_day) |
/// | `1/quarter`, `1/year` | start in January | the same, and [`from_month`](Self::from_month) |
///
/// * **Promise**: at most the limit in each window. With a [debt](crate::Policy::max_debt), at most the limits of
///   any windows in a row, and the debt.
/// * **Source**: the classic counter with an expiry. Here the state has the time of the window's first
///   charge, so a lost TTL or a clock that steps back cannot block a client.
/// * **Cost in Redis**: one string per key. GET; SETRANGE or SET if units are charged.
/// * **Weakness**: a client can use the limit at the end of one window and again at the start of the next:
///   twice the limit within a moment. Aligned windows also make all clients retry in the same second. If that
///   is a problem, use [`Gcra`](crate::algorithm::Gcra).
/// * **A wrong clock of the server**: if the clock steps back over the start of an aligned window, a key that is
///   used then has its units in the earlier window, and the whole limit again once the clock is right. A budget for
///   a month needs a server whose clock is right when it starts.
///
/// # Errors
///
/// [`Policy::try_algorithm`](crate::Policy::try_algorithm) returns an error, and
/// [`Policy::algorithm`](crate::Policy::algorithm) panics, if the quota has a [`burst`](Quota::burst); if
/// windows of its period cannot be aligned, such as `10/7h`, or anchored, such as `10/month`; and if a
/// setting does not concern the period, or is out of range.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::FixedWindow, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new(); // 2026-01-01, midnight UTC
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// // Calendar days of Berlin in winter, one hour ahead of UTC.
/// let berlin = FixedWindow::aligned().utc_offset_east(Duration::from_secs(3_600));
/// let policy = Policy::new("daily", Quota::per_day(1)).algorithm(berlin);
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 1).await?.is_admitted());
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert!(!denied.is_admitted());
/// // It is 01:00 in Berlin: the day ends in 23 hours.
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(23 * 3_600)));
///
/// // A day from the client's first request.
/// let policy = Policy::new("trial", Quota::per_day(1)).algorithm(FixedWindow::anchored());
/// limiter.check(&policy, &key, 1).await?;
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(24 * 3_600)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedWindow {
    windows: Kind,
}

#[derive(Clone, Copy, Debug, Default)]
enum Kind {
    #[default]
    Anchored,
    Aligned(Alignment),
}

/// When aligned windows start.
#[derive(Clone, Copy, Debug)]
struct Alignment {
    /// Microseconds ahead of UTC.
    ahead: i128,
    #[cfg(feature = "time-zones")]
    zone: Option<&'static NamedZone>,
    from_weekday: Option<Weekday>,
    from_day: Option<u8>,
    from_month: Option<u8>,
}

const UTC: Alignment = Alignment {
    ahead: 0,
    #[cfg(feature = "time-zones")]
    zone: None,
    from_weekday: None,
    from_day: None,
    from_month: None,
};

const DAY: u64 = 86_400_000_000;
const WEEK: u64 = 7 * DAY;

impl FixedWindow {
    /// Starts a window with a client's first charge.
    #[must_use]
    pub const fn anchored() -> Self {
        Self { windows: Kind::Anchored }
    }

    /// Starts windows by the clock and the calendar, the same for every client: see the table
    /// [above](Self). Defaults to UTC. The store's clock decides in which window a charge is counted; on
    /// Redis, the server's.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{
    ///     Key, Limiter, MemoryStore, Policy, Quota,
    ///     algorithm::{FixedWindow, Weekday},
    ///     store::ManualClock,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// // It is Thursday, 2026-01-01, midnight UTC.
    /// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    /// let acme = Key::new("acme");
    /// let days_left = async |policy: Policy| {
    ///     limiter.check(&policy, &acme, 1).await?;
    ///     let left = limiter.check(&policy, &acme, 1).await?.retry_after();
    ///     Ok::<_, tower_ratelimit::Error>(left.map(|left| left.as_secs() / 86_400))
    /// };
    /// let windows = FixedWindow::aligned();
    /// assert_eq!(days_left(Policy::new("month", Quota::per_month(1))).await?, Some(31));
    /// // The months of a plan that was ordered on a 15th.
    /// let plan = Policy::new("plan", Quota::per_month(1)).algorithm(windows.from_day(15));
    /// assert_eq!(days_left(plan).await?, Some(14));
    /// let week = Policy::new("week", Quota::per_week(1));
    /// assert_eq!(days_left(week.clone().algorithm(windows)).await?, Some(4));
    /// let week = Policy::new("us-week", Quota::per_week(1)).algorithm(windows.from_weekday(Weekday::Sunday));
    /// assert_eq!(days_left(week).await?, Some(3));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn aligned() -> Self {
        Self::by(UTC)
    }

    const fn by(alignment: Alignment) -> Self {
        Self { windows: Kind::Aligned(alignment) }
    }

    const fn alignment(self) -> Alignment {
        match self.windows {
            Kind::Anchored => UTC,
            Kind::Aligned(alignment) => alignment,
        }
    }

    /// Aligns the windows to a time zone that is `by` ahead of UTC, such as 5 h 30 min for India. Defaults to
    /// UTC. Implies [`aligned`](Self::aligned). Fractions of a microsecond are ignored.
    #[must_use]
    pub const fn utc_offset_east(self, by: Duration) -> Self {
        Self::by(Alignment { ahead: by.as_micros() as i128, ..self.alignment() })
    }

    /// Aligns the windows to a time zone that is `by` behind UTC, such as 5 h for New York in winter.
    /// Defaults to UTC. Implies [`aligned`](Self::aligned). Fractions of a microsecond are ignored.
    #[must_use]
    pub const fn utc_offset_west(self, by: Duration) -> Self {
        Self::by(Alignment { ahead: -(by.as_micros() as i128), ..self.alignment() })
    }

    /// Aligns the windows to the time zone `name` of the IANA database, such as `Europe/Berlin`, with its
    /// rules for summer time. Implies [`aligned`](Self::aligned). For days and longer periods.
    ///
    /// The rules come from the system's database, or from the one that is compiled in if the system has none.
    /// If two instances have different rules, they disagree only about the time between the two starts of a
    /// window: a client can be charged up to the limit again in that time.
    ///
    /// A day whose midnight the zone skips starts when the clock first shows that date. A day with two
    /// midnights starts at the first one.
    ///
    /// # Panics
    ///
    /// If the database has no such zone. [`try_time_zone`](Self::try_time_zone) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::FixedWindow, store::ManualClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    /// let windows = FixedWindow::aligned().time_zone("Europe/Berlin");
    /// let plan = Policy::new("plan", Quota::per_month(1)).algorithm(windows);
    /// let acme = Key::new("acme");
    ///
    /// limiter.check(&plan, &acme, 1).await?;
    /// let denied = limiter.check(&plan, &acme, 1).await?;
    /// // In Berlin it is 01:00 on January 1.
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs((31 * 24 - 1) * 3_600)));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "time-zones")]
    #[cfg_attr(docsrs, doc(cfg(feature = "time-zones")))]
    #[must_use]
    #[track_caller]
    pub fn time_zone(self, name: &str) -> Self {
        valid(self.try_time_zone(name))
    }

    /// The fallible form of [`time_zone`](Self::time_zone), for a name read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`time_zone`](Self::time_zone) panics.
    #[cfg(feature = "time-zones")]
    #[cfg_attr(docsrs, doc(cfg(feature = "time-zones")))]
    pub fn try_time_zone(self, name: &str) -> Result<Self, Error> {
        Ok(Self::by(Alignment { zone: Some(NamedZone::find(name)?), ..self.alignment() }))
    }

    /// Starts weeks on `day`. Defaults to Monday. Implies [`aligned`](Self::aligned). For quotas per week.
    #[must_use]
    pub const fn from_weekday(self, day: Weekday) -> Self {
        Self::by(Alignment { from_weekday: Some(day), ..self.alignment() })
    }

    /// Starts months, quarters and years on this day of the month, from 1 to 31: on the last day of a shorter
    /// month. Defaults to 1. Implies [`aligned`](Self::aligned). For quotas per month, quarter or year.
    #[must_use]
    pub const fn from_day(self, day: u8) -> Self {
        Self::by(Alignment { from_day: Some(day), ..self.alignment() })
    }

    /// Starts years, and one of the quarters, in this month, from 1 to 12: 4 for a fiscal year from April.
    /// Defaults to 1. Implies [`aligned`](Self::aligned). For quotas per quarter or year.
    #[must_use]
    pub const fn from_month(self, month: u8) -> Self {
        Self::by(Alignment { from_month: Some(month), ..self.alignment() })
    }
}

impl Alignment {
    /// The named time zone. `None` if there is only an offset.
    #[cfg_attr(
        not(feature = "time-zones"),
        expect(clippy::unused_self, reason = "there are no zones without the feature")
    )]
    fn zone(&self) -> Option<Zone> {
        #[cfg(feature = "time-zones")]
        return self.zone.map(Zone::Named);
        #[cfg(not(feature = "time-zones"))]
        None
    }

    fn check(&self, quota: &Quota) -> Result<(), Error> {
        let (period, calendar, has_zone) = (quota.period_micros(), quota.calendar(), self.zone().is_some());
        let is_week = calendar.is_none() && period == WEEK;
        let has_months = matches!(calendar, Some(CalendarPeriod::Quarter | CalendarPeriod::Year));
        let rows = [
            (
                calendar.is_some() || is_week || DAY.is_multiple_of(period),
                "windows of this period cannot be aligned: use a period that divides a day, a day, a week, a month, a \
                 quarter or a year, or `FixedWindow::anchored()`",
            ),
            (
                calendar.is_none() || self.ahead.unsigned_abs() < u128::from(DAY),
                "the offset from UTC must be shorter than a day",
            ),
            (!has_zone || self.ahead == 0, "set an offset from UTC or a time zone, not both"),
            (
                !has_zone || period >= DAY,
                "windows in a time zone must be days or longer: set an offset from UTC, or leave out the time zone",
            ),
            (self.from_weekday.is_none() || is_week, "`from_weekday` is for quotas per week"),
            (
                self.from_day.is_none() || calendar.is_some(),
                "`from_day` is for quotas per month, quarter or year",
            ),
            (self.from_month.is_none() || has_months, "`from_month` is for quotas per quarter or year"),
            (self.from_day.is_none_or(|day| (1..=31).contains(&day)), "`from_day` must be from 1 to 31"),
            (
                self.from_month.is_none_or(|month| (1..=12).contains(&month)),
                "`from_month` must be from 1 to 12",
            ),
        ];
        match rows.iter().find(|(is_met, _)| !is_met) {
            Some((_, problem)) => Err(Error::invalid(problem)),
            None => Ok(()),
        }
    }

    /// Whether windows are a calendar's, and not multiples of a period.
    fn is_by_calendar(&self, quota: &Quota) -> bool {
        quota.calendar().is_some() || self.zone().is_some()
    }

    /// The calendar of windows of `quota`, if they are a calendar's.
    fn calendar(&self, quota: &Quota) -> Calendar {
        let unit = match quota.calendar() {
            Some(CalendarPeriod::Month) => Unit::Month,
            Some(CalendarPeriod::Quarter) => Unit::Quarter,
            Some(CalendarPeriod::Year) => Unit::Year,
            None if quota.period_micros() == WEEK => Unit::Week,
            None => Unit::Day,
        };
        Calendar {
            unit,
            from_weekday: self.from_weekday.unwrap_or_default(),
            from_day: self.from_day.unwrap_or(1),
            from_month: self.from_month.unwrap_or(1),
            zone: self.zone_or_offset(),
        }
    }

    fn zone_or_offset(&self) -> Zone {
        // `check` has bounded the offset.
        self.zone().unwrap_or(Zone::Offset(self.ahead as i64))
    }

    /// When the first window after 1970-01-01 starts, in microseconds, if windows are multiples of `period`.
    fn offset(&self, period: u64) -> u64 {
        // 1970 began on a Thursday.
        let first_day = match period {
            WEEK => 4 + self.from_weekday.unwrap_or_default() as u64,
            _ => 0,
        };
        let offset = (i128::from(first_day * DAY) - self.ahead).rem_euclid(i128::from(period));
        // Below the period, so it fits.
        offset as u64
    }
}

/// The third argument: how windows start.
const ANCHORED: u64 = 0;
/// At the offset, which is the fourth argument, and each multiple of the period after it.
const ALIGNED: u64 = 1;
/// By the calendar that has the fourth argument as its number.
const BY_CALENDAR: u64 = 2;
/// Added to one of these if the policy has a debt. Then the debt follows, and 1 for its debits, otherwise 0.
const WITH_DEBT: u64 = 3;

/// The most windows of a calendar that a debt reaches: each call has the start of each of them.
const MOST_WINDOWS: u64 = 24;
/// 100 years in microseconds, the most time that a debt takes in windows of one length.
const LONGEST_DEBT: u64 = 36_500 * DAY;

impl Algorithm for FixedWindow {
    built_in!("fixed-window", "fixed_window.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        ensure!(!quota.has_burst(), "a fixed window has no burst: leave out `burst`, or use `Gcra`");
        let period = quota.period_micros();
        let (kind, number) = match self.windows {
            Kind::Anchored => {
                ensure!(
                    quota.calendar().is_none(),
                    "anchored windows have one length: use `FixedWindow::aligned()` for a month, a quarter or a year, \
                     or a quota of days, such as `100/30d`"
                );
                (ANCHORED, 0)
            }
            Kind::Aligned(alignment) => {
                alignment.check(quota)?;
                if alignment.is_by_calendar(quota) {
                    (BY_CALENDAR, alignment.calendar(quota).number())
                } else {
                    (ALIGNED, alignment.offset(period))
                }
            }
        };
        Ok(vec![quota.limit(), period, kind, number])
    }

    fn replenishment(&self, _: &Quota) -> Replenishment {
        Replenishment::InWindows
    }
}

/// The arguments of a policy.
struct Arguments {
    limit: u64,
    /// Nominal for a calendar, whose windows do not use it.
    period: u64,
    kind: u64,
    /// The offset of aligned windows, or the number of the calendar.
    offset_or_number: u64,
    debt: u64,
    /// The units beyond the limit that this charge may owe: the debt for a debit, otherwise 0.
    room: u64,
}

/// The window as of now.
struct OpenWindow {
    /// When the first of its units was charged.
    started: u64,
    used: u64,
    owed: Owed,
    /// When the window ends.
    ends: u64,
    /// Whether a denial must write this state.
    stale: bool,
}

impl Arguments {
    fn of(arguments: &[u64]) -> Self {
        match *arguments {
            [limit, period, kind, offset_or_number, debt, is_debit] => {
                let kind = kind - WITH_DEBT;
                Self { limit, period, kind, offset_or_number, debt, room: debt * is_debit }
            }
            _ => {
                let [limit, period, kind, offset_or_number] = exactly(arguments);
                Self { limit, period, kind, offset_or_number, debt: 0, room: 0 }
            }
        }
    }
}

impl FixedWindow {
    /// The calendar of a policy with these arguments, whose number has the unit of the quota. `None` if windows have one length.
    fn calendar_of(&self, arguments: &Arguments) -> Option<Calendar> {
        let zone = || self.alignment().zone_or_offset();
        (arguments.kind == BY_CALENDAR).then(|| Calendar::of_number(arguments.offset_or_number, zone()))
    }

    fn open(&self, arguments: &Arguments, state: Option<&State>, now: u64) -> OpenWindow {
        let Arguments { period, kind, offset_or_number: offset, .. } = *arguments;
        let window = match (kind, self.calendar_of(arguments)) {
            (_, Some(calendar)) => Some(calendar.window(now)),
            (ALIGNED, None) => {
                // The first window of 1970 may start before 0.
                let starts = now.saturating_sub((now + period - offset) % period);
                Some([starts, starts + period])
            }
            _ => None,
        };
        let is_over = |at: u64| window.map_or(at + period <= now, |[starts, _]| at < starts);
        let (started, used, owed, stale) = match state {
            Some(State::Count(state)) if state.at > now => (now, state.count, Owed::default(), true),
            Some(State::Count(state)) if !is_over(state.at) => {
                (state.at, state.count, Owed::default(), false)
            }
            Some(State::Window(state)) => {
                let starts = window.map(|[starts, _]| starts);
                self.open_with_debt(arguments, state, now, starts)
            }
            _ => (now, 0, Owed::default(), false),
        };
        let ends = window.map_or(started + period, |[_, ends]| ends);
        OpenWindow { started, used, owed, ends, stale }
    }

    /// Returns the time, the units, the debt and whether the state is stale of a window with a debt, or the one
    /// of `now` after it, which starts at `starts`; an anchored one starts when another has ended.
    #[cold]
    fn open_with_debt(
        &self,
        arguments: &Arguments,
        &(Count { at, count }, owed): &(Count, Owed),
        now: u64,
        starts: Option<u64>,
    ) -> (u64, u64, Owed, bool) {
        let owed = owed.under(arguments, count);
        let passed = self.windows_since(arguments, at, now);
        if passed == 0 {
            return (at.min(now), count, owed, at > now);
        }
        // Each window pays for as many units as its limit.
        let carried = owed.units.saturating_sub((passed - 1).saturating_mul(arguments.limit));
        if carried == 0 {
            return (now, 0, Owed::default(), false);
        }
        let units = carried.saturating_sub(arguments.limit);
        let starts = starts.unwrap_or(at + passed * arguments.period);
        (starts, carried, Owed { units, carried, from: at }, false)
    }

    /// Returns how many windows after the one of `at` the window of `now` is; above the most that a debt
    /// reaches, any such number.
    fn windows_since(&self, arguments: &Arguments, at: u64, now: u64) -> u64 {
        let Arguments { period, kind, offset_or_number: offset, .. } = *arguments;
        if at >= now {
            return 0;
        }
        let Some(calendar) = self.calendar_of(arguments) else {
            let number = |time: u64| (time + period - offset) / period;
            return if kind == ALIGNED { number(now) - number(at) } else { (now - at) / period };
        };
        let ([mut starts, _], mut passed) = (calendar.window(now), 0);
        while at < starts && passed <= MOST_WINDOWS {
            [starts, _] = calendar.window(starts - 1);
            passed += 1;
        }
        passed
    }

    /// Returns the microseconds until the window starts that is `windows` after this one.
    fn wait(&self, arguments: &Arguments, open: &OpenWindow, now: u64, windows: u64) -> u64 {
        if windows == 1 {
            return open.ends - now;
        }
        let starts = match self.calendar_of(arguments) {
            Some(calendar) => (1..windows).fold(open.ends, |starts, _| calendar.window(starts)[1]),
            None => open.ends + (windows - 1) * arguments.period,
        };
        starts - now
    }

    /// Returns the microseconds until the quota is fully replenished, with `used` units of which `owed` are
    /// owed.
    fn reset(&self, arguments: &Arguments, open: &OpenWindow, now: u64, used: u64, owed: u64) -> u64 {
        if used == 0 { 0 } else { self.wait(arguments, open, now, 1 + owed.div_ceil(arguments.limit)) }
    }
}

impl Owed {
    /// What is owed of a window with `used` units under a policy with these arguments: units that a larger
    /// limit admits are not, nor what is above the debt.
    fn under(self, arguments: &Arguments, used: u64) -> Self {
        let units = self.units.min(arguments.debt).min(used.saturating_sub(arguments.limit));
        Self { units, ..self }
    }

    /// What is owed after `cost` units in addition to `used`.
    fn after(self, arguments: &Arguments, used: u64, cost: u64) -> Self {
        let units = self.units + (used + cost).saturating_sub(used.max(arguments.limit));
        Self { units, ..self }
    }
}

/// The state of a window. `None` without units.
fn state_of(at: u64, count: u64, owed: Owed) -> Option<State> {
    let window = Count { at, count };
    match owed {
        _ if count == 0 => None,
        Owed { units: 0, carried: 0, .. } => Some(State::Count(window)),
        owed => Some(State::Window(Box::new((window, owed)))),
    }
}

/// Returns what is left of a window and its debt after a refund of up to `units` of its latest units.
fn refunded(count: u64, owed: Owed, units: u64) -> (u64, Owed) {
    let count = count.saturating_sub(units);
    let owed = Owed { units: owed.units.saturating_sub(units), carried: owed.carried.min(count), ..owed };
    (count, owed)
}

impl Counter for FixedWindow {
    fn most_units(&self) -> u64 {
        // A count and a cost together are exact in Lua.
        999_999_999_999_999
    }

    fn counts_calendar_periods(&self) -> bool {
        true
    }

    fn usual(&self, arguments: &[u64]) -> Option<Vec<u64>> {
        let Arguments { limit, period, kind, offset_or_number: offset, debt, .. } = Arguments::of(arguments);
        Some(match kind {
            _ if debt > 0 => return None,
            BY_CALENDAR => vec![usual::CALENDAR, limit],
            ALIGNED => vec![usual::WINDOW, limit, period, offset],
            _ => vec![usual::WINDOW, limit, period, period],
        })
    }

    fn calendar(&self, arguments: &[u64]) -> Option<(Calendar, u64)> {
        let arguments = Arguments::of(arguments);
        Some((self.calendar_of(&arguments)?, arguments.debt.div_ceil(arguments.limit)))
    }

    fn window_ends(&self, arguments: &[u64], charge: Receipt) -> Option<u64> {
        let arguments = &Arguments::of(arguments);
        let window = State::Count(Count { at: charge.mark, count: 1 });
        (arguments.debt > 0).then(|| self.open(arguments, Some(&window), charge.made).ends)
    }

    /// The next windows pay for the debt.
    fn with_debt(&self, arguments: &[u64], debt: u64) -> Result<[Vec<u64>; 2], Error> {
        let [limit, period, kind, offset] = exactly(arguments);
        let (windows, most) = (debt.div_ceil(limit), LONGEST_DEBT / period);
        ensure!(windows <= most, "the debt is too large: windows must pay for it within 100 years");
        ensure!(
            kind != BY_CALENDAR || windows <= MOST_WINDOWS,
            "the debt is too large: in windows of a calendar, it may be at most 24 times the limit"
        );
        let with = |is_debit| vec![limit, period, kind + WITH_DEBT, offset, debt, is_debit];
        Ok([with(0), with(1)])
    }

    fn most_within_period(&self, _: &[u64], quota: &Quota) -> Option<u64> {
        // A whole limit may be charged at the end of one window, and another at the start of the next one.
        Some(2 * quota.limit())
    }

    fn lease_recovery(&self, arguments: &[u64], _: u64) -> Option<u64> {
        // A charge counts until the window ends.
        let arguments = Arguments::of(arguments);
        Some(self.calendar_of(&arguments).map_or(arguments.period, |calendar| calendar.longest()))
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let arguments = &Arguments::of(arguments);
        let open = &self.open(arguments, state, now);
        let OpenWindow { started, used, owed, stale, .. } = *open;
        let reset = |used, owed: Owed| self.reset(arguments, open, now, used, owed.units);
        let Arguments { limit, room, .. } = *arguments;
        let remaining = limit.saturating_sub(used) + room.saturating_sub(owed.units);
        let before = Gauge { remaining, reset: reset(used, owed) };
        let reset_after =
            if cost <= remaining { reset(used + cost, owed.after(arguments, used, cost)) } else { 0 };
        Plan::of(cost, limit + room, before, reset_after, stale && used > 0, || {
            // A debit charges what remains, so it does not wait.
            let windows = if room > 0 { 1 } else { (owed.units + cost).div_ceil(limit) };
            self.wait(arguments, open, now, windows)
        })
        .marked(started)
    }

    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> Option<u64> {
        if let Change::RefundOf(units, charge) = change {
            refund(state, units, charge.mark);
            return None;
        }
        let arguments = &Arguments::of(arguments);
        let open = &self.open(arguments, state.as_ref(), now);
        let OpenWindow { started, used, owed, .. } = *open;
        let (used, owed) = match change {
            Change::Charge(cost, _) => (used + cost, owed.after(arguments, used, cost)),
            Change::Refund(units, _) => refunded(used, owed, units),
            Change::Repair | Change::Renew(..) | Change::RefundOf(..) => (used, owed),
        };
        *state = state_of(started, used, owed);
        Some(self.reset(arguments, open, now, used, owed.units))
    }
}

/// Refunds units of the charge with this mark.
fn refund(state: &mut Option<State>, units: u64, mark: u64) {
    // The stored window is used as it is, because the decision may be of an older quota. In another window,
    // the charge no longer counts, except for what it has left to the stored one.
    let (Count { at, count }, owed) = match state {
        Some(State::Count(window)) => (*window, Owed::default()),
        Some(State::Window(window)) => **window,
        _ => return,
    };
    let (own, carried) = (count - owed.carried, owed.carried);
    let (most, carried) = match mark {
        mark if mark == at => (own, carried),
        mark if carried > 0 && mark == owed.from => (carried, carried.saturating_sub(units)),
        _ => return,
    };
    let (count, owed) = refunded(count, owed, units.min(most));
    *state = state_of(at, count, Owed { carried, ..owed });
}
