//! [`Penalty`]: when a key is banned, and for how long.

use std::{fmt, time::Duration};

use crate::{
    algorithm::penalty::Strikes,
    base::{Error, duration_text, time::micros},
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
    /// The number of denials that ban a key; 0 if only operators ban.
    after: u64,
    /// The length of the window in which denials count.
    within: Duration,
    /// The length of the first ban.
    first: Duration,
    /// The length up to which bans grow; `None` if all bans are as long as the first.
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
        Self { after: if denials == 0 { u64::MAX } else { denials }, within, first: within, longest: None }
    }

    /// Bans no key automatically: only operators do, with [`Operator::ban`](crate::Operator::ban).
    pub const fn manual() -> Self {
        Self { after: 0, within: Duration::ZERO, first: Duration::ZERO, longest: None }
    }

    /// Sets how long the first ban lasts. Defaults to the time within which denials count.
    pub const fn ban(mut self, time: Duration) -> Self {
        self.first = time;
        self
    }

    /// Doubles the time of each further ban, up to `longest`. Defaults to no growth: each ban is as long as
    /// the first.
    ///
    /// Once a key has had no ban for the time `longest`, its earlier bans are forgotten, and the next one is
    /// as long as the first.
    pub const fn up_to(mut self, longest: Duration) -> Self {
        self.longest = Some(longest);
        self
    }

    /// Whether denials ban keys.
    pub(super) const fn is_automatic(self) -> bool {
        self.after > 0
    }

    /// The algorithm that counts the denials.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`Policy::penalty`](crate::Policy::penalty)
    /// panics.
    pub(super) fn strikes(self) -> Result<Strikes, Error> {
        if !self.is_automatic() {
            ensure!(
                self.first.is_zero() && self.longest.is_none(),
                "a manual penalty has no times: leave out `ban` and `up_to`, and pass the time to `Operator::ban`"
            );
            return Ok(Strikes::MANUAL);
        }
        ensure!(
            self.after <= MAX_DENIALS,
            "a penalty must be after 1 to 1,000,000 denials: use `Penalty::manual()` to ban no key automatically"
        );
        let within = micros(self.within);
        ensure!(
            (MILLISECOND..=MAX_WINDOW).contains(&within),
            "the denials of a penalty must count within 1 ms to 400 days"
        );
        let first = micros(self.first);
        let longest = self.longest.map_or(first, micros);
        ensure!(
            (MILLISECOND..=MAX_BAN).contains(&first) && longest <= MAX_BAN,
            "a ban must last 1 ms to 3650 days"
        );
        ensure!(
            longest >= first,
            "the longest ban is shorter than the first one: raise `up_to`, or leave it out for bans that do not grow"
        );
        let remembered = if longest > first { longest } else { 0 };
        Ok(Strikes { after: self.after, within, first, longest, remembered })
    }
}

/// Writes text such as `ban 1h up to 1d after 10 denials in 10min`, or `manual`.
impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_automatic() {
            return f.write_str("manual");
        }
        let time = |time: Duration| duration_text(micros(time));
        write!(f, "ban {}", time(self.first))?;
        if let Some(longest) = self.longest {
            write!(f, " up to {}", time(longest))?;
        }
        write!(f, " after {} denials in {}", self.after, time(self.within))
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
