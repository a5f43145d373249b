use std::{fmt, time::Duration};

use super::policy::Policy;
use crate::{
    algorithm::penalty::Strikes,
    base::{Error, duration_text, time::micros, valid},
};

/// When a [`Policy`](crate::Policy::penalty) bans a key, and for how long.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{algorithm::SlidingLog, policy::Penalty, Policy, Quota};
///
/// let (minutes, hour, day) = (Duration::from_secs(600), Duration::from_secs(3_600), Duration::from_secs(86_400));
/// let penalty = Penalty::after(10, minutes).ban(hour).up_to(day);
/// assert_eq!(penalty.to_string(), "ban 1h up to 1d after 10 denials in 10min");
/// // Only operators ban.
/// assert_eq!(Penalty::manual().to_string(), "manual");
///
/// let login = Policy::new("login", Quota::per_minute(5)).algorithm(SlidingLog::new()).penalty(penalty);
/// assert_eq!(login.to_string(), "5/min, sliding-log, penalty, failure mode local");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Penalty {
    /// 0 if only operators ban keys.
    after: u64,
    within: Duration,
    /// `None` for as long as `within`.
    first: Option<Duration>,
    /// `None` for as long as the first one.
    longest: Option<Duration>,
}

const MAX_DENIALS: u64 = 1_000_000;
const MILLISECOND: u64 = 1_000;
const MAX_WINDOW: u64 = 400 * 86_400_000_000;
/// Ten years. A time until then is exact in Lua.
pub(crate) const MAX_BAN: u64 = 3_650 * 86_400_000_000;

impl Penalty {
    /// Bans a key once the policy has denied it `denials` times in one window of the length `within`.
    ///
    /// A window starts with a denial. The first denial after its end starts the next one, with a new count.
    pub const fn after(denials: u64, within: Duration) -> Self {
        Self { after: if denials == 0 { u64::MAX } else { denials }, within, first: None, longest: None }
    }

    /// Bans no key automatically: only operators do, with [`Operator::ban`](crate::Operator::ban).
    pub const fn manual() -> Self {
        Self { after: 0, within: Duration::ZERO, first: None, longest: None }
    }

    /// Sets how long the first ban lasts. Defaults to the time within which denials count.
    pub const fn ban(mut self, time: Duration) -> Self {
        self.first = Some(time);
        self
    }

    /// Doubles the time of each further ban, up to `longest`. Defaults to no growth: each ban is as long as the first.
    ///
    /// Once a key has had no ban for the time `longest`, its earlier bans are forgotten, and the next one is as long as
    /// the first.
    pub const fn up_to(mut self, longest: Duration) -> Self {
        self.longest = Some(longest);
        self
    }

    /// What counts the denials.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`Policy::penalty`] panics.
    #[doc(hidden)]
    pub fn strikes(self) -> Result<Strikes, Error> {
        if self.after == 0 {
            if self.first.or(self.longest).is_some() {
                return Err(Error::invalid(
                    "a manual penalty has no times: leave out `ban` and `up_to`, and pass the time to `Operator::ban`",
                ));
            }
            return Ok(Strikes::MANUAL);
        }
        if self.after > MAX_DENIALS {
            return Err(Error::invalid(
                "a penalty must be after 1 to 1,000,000 denials: use `Penalty::manual()` to ban no key automatically",
            ));
        }
        let within = micros(self.within);
        if !(MILLISECOND..=MAX_WINDOW).contains(&within) {
            return Err(Error::invalid("the denials of a penalty must count within 1 ms to 400 days"));
        }
        let first = self.first.map_or(within, micros);
        let longest = self.longest.map_or(first, micros);
        if !(MILLISECOND..=MAX_BAN).contains(&first) || longest > MAX_BAN {
            return Err(Error::invalid("a ban must last 1 ms to 3650 days"));
        }
        if longest < first {
            return Err(Error::invalid(
                "the longest ban is shorter than the first one: raise `up_to`, or leave it out for bans that do not grow",
            ));
        }
        let remembered = if longest > first { longest } else { 0 };
        Ok(Strikes { after: self.after, within, first, longest, remembered })
    }
}

/// Such as `ban 1h up to 1d after 10 denials in 10min`, or `manual`.
impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.after == 0 {
            return f.write_str("manual");
        }
        let time = |time: Duration| duration_text(micros(time));
        write!(f, "ban {}", time(self.first.unwrap_or(self.within)))?;
        if let Some(longest) = self.longest {
            write!(f, " up to {}", time(longest))?;
        }
        write!(f, " after {} denials in {}", self.after, time(self.within))
    }
}

impl Policy {
    /// Bans a key temporarily after too many denials, over all instances. Defaults to no penalty.
    ///
    /// A ban denies every request of the key that costs something, and its CORS preflights, regardless of the remaining
    /// quota. It charges nothing, like any other denial. [`Decision::banned_for`](crate::Decision::banned_for) has the
    /// remaining time. Clients get the problem type `abnormal-usage-detected`, and `Retry-After` states the remaining
    /// time.
    ///
    /// [Penalties](crate::policy#penalties) explains which denials count, bans by hand, and what a failure of the store
    /// changes.
    ///
    /// # Panics
    ///
    /// If the numbers are out of bounds (1 to 1,000,000 denials within 1 ms to 400 days, bans of 1 ms to 3650 days),
    /// the longest ban is shorter than the first, a [manual](Penalty::manual) penalty has a time, or the policy is
    /// [leased](Self::leased). [`try_penalty`](Self::try_penalty) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{algorithm::SlidingLog, policy::Penalty, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    /// let (minute, hour, day) = (Duration::from_secs(60), Duration::from_secs(3_600), Duration::from_secs(86_400));
    /// let login = Policy::new("login", Quota::per_minute(5))
    ///     .algorithm(SlidingLog::new())
    ///     .penalty(Penalty::after(10, 10 * minute).ban(hour).up_to(day));
    /// let mallory = Key::new("203.0.113.7");
    ///
    /// for _ in 0..5 + 9 {
    ///     assert!(limiter.check(&login, &mallory, 1).await?.banned_for().is_none());
    /// }
    /// assert!(limiter.check(&login, &mallory, 1).await?.banned_for().is_some());
    /// clock.advance(minute);
    /// let banned = limiter.check(&login, &mallory, 1).await?;
    /// assert_eq!(banned.banned_for(), Some(59 * minute));
    ///
    /// limiter.operator().unban(&login, &mallory).await?;
    /// assert!(limiter.check(&login, &mallory, 1).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn penalty(self, penalty: Penalty) -> Self {
        valid(self.try_penalty(penalty))
    }

    /// The fallible form of [`penalty`](Self::penalty), for a penalty read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`penalty`](Self::penalty) panics.
    pub fn try_penalty(self, penalty: Penalty) -> Result<Self, Error> {
        let strikes = penalty.strikes()?;
        self.with(|settings| settings.penalty = Some(strikes))
    }

    /// Whether each denial must reach the store, because the penalty counts it.
    pub(crate) fn counts_denials(&self) -> bool {
        self.settings().penalty.is_some_and(|strikes| strikes.after > 0)
    }

    /// The policy with the same bans, which counts no denials.
    pub(crate) fn with_manual_bans(&self) -> Self {
        self.with_independent(|settings| settings.penalty = settings.penalty.map(|_| Strikes::MANUAL))
    }

    /// The policy without its penalty.
    pub(crate) fn without_penalty(&self) -> Self {
        self.with_independent(|settings| settings.penalty = None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_penalty_out_of_bounds_is_an_error_that_says_what_to_write() {
        let (short, long) = (Duration::from_secs(60), Duration::from_secs(3_651 * 86_400));
        let rows = [
            (Penalty::after(0, short), "1 to 1,000,000 denials: use `Penalty::manual()`"),
            (Penalty::after(1_000_001, short), "1 to 1,000,000 denials"),
            (Penalty::after(1, Duration::ZERO), "within 1 ms to 400 days"),
            (Penalty::after(1, long), "within 1 ms to 400 days"),
            (Penalty::after(1, short).ban(Duration::ZERO), "1 ms to 3650 days"),
            (Penalty::after(1, short).ban(long), "1 ms to 3650 days"),
            (Penalty::after(1, short).up_to(long), "1 ms to 3650 days"),
            (Penalty::after(1, short).up_to(Duration::from_secs(59)), "raise `up_to`"),
            (Penalty::manual().ban(short), "pass the time to `Operator::ban`"),
        ];
        for (penalty, expected) in rows {
            let error = penalty.strikes().unwrap_err().to_string();
            assert!(error.contains(expected), "{penalty}: {error}");
        }
    }

    #[test]
    fn a_penalty_is_shown_in_words() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        let rows = [
            (Penalty::manual(), "manual"),
            (Penalty::after(3, minute), "ban 1min after 3 denials in 1min"),
            (Penalty::after(3, minute).ban(hour), "ban 1h after 3 denials in 1min"),
        ];
        for (penalty, expected) in rows {
            assert_eq!(penalty.to_string(), expected);
        }
    }
}
