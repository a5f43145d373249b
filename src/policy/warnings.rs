//! Policies that are valid, and probably not what was meant.

use std::time::Duration;

use super::{Policy, traits::Traits};
use crate::{algorithm::counter::Shape, base::Quota};

/// Words of names of policies that protect a secret, where twice the limit is twice the guesses.
const LOGINS: [&[&str]; 9] = [
    &["login"],
    &["log", "in"],
    &["signin"],
    &["sign", "in"],
    &["password"],
    &["passcode"],
    &["otp"],
    &["2fa"],
    &["mfa"],
];

impl Policy {
    /// What is valid and probably not meant, each with what to write instead. A
    /// [layer](crate::RateLimitLayer::warnings) logs them; a test of a service's policies can assert that the list is
    /// empty.
    ///
    /// * Headers cannot express the period, because they count whole seconds.
    /// * The name suggests a login, and the algorithm admits nearly twice the limit within one period.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{algorithm::SlidingLog, Policy, Quota};
    ///
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// let [warning] = &login.warnings()[..] else { panic!("there is one") };
    /// assert!(warning.contains("up to 9 units in 60s") && warning.contains("SlidingLog"));
    /// assert!(login.algorithm(SlidingLog::new()).warnings().is_empty());
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        [self.window_warning(), self.login_warning()].into_iter().flatten().collect()
    }

    fn window_warning(&self) -> Option<String> {
        let period = self.quota().period();
        if self.has_permits() || period.subsec_nanos() == 0 {
            return None;
        }
        let shown = if period < Duration::from_secs(1) { "none" } else { "one that is rounded up" };
        let quota = whole_seconds(self.quota());
        Some(format!(
            "the policy {:?} has a period of {period:?}, which headers cannot express, so clients see {shown}: write the \
             quota with a period of whole seconds{quota}",
            self.name()
        ))
    }

    fn login_warning(&self) -> Option<String> {
        let limit = self.quota().limit();
        let (period, most) = (self.quota().period(), self.most_within_period()?);
        // One unit more is not worth a warning.
        if most <= u128::from(limit) + 1 || !is_of_login(self.name()) {
            return None;
        }
        Some(format!(
            "the policy {:?} admits up to {most} units in {period:?}, and its limit is {limit}: count it by SlidingLog, or \
             give it a burst of 1",
            self.name()
        ))
    }

    /// The most units of a key that are admitted within one period, wherever it begins. `None` if that is not known.
    fn most_within_period(&self) -> Option<u128> {
        let quota = self.quota();
        let limit = u128::from(quota.limit());
        Some(match self.shape()? {
            // The end of the period belongs to the next one.
            Shape::Bucket => u128::from(self.capacity()) + replenished(quota, quota.period_micros() - 1),
            Shape::Log => limit,
            // Half of it at the end of one window, and half at the start of the next one.
            Shape::FixedWindow | Shape::SlidingWindow => 2 * limit,
        })
    }

    /// Whether requests wait in its queue.
    pub(crate) fn has_queue(&self) -> bool {
        self.counting().queues()
    }

    /// `None` if it is not known, as for a custom algorithm.
    fn shape(&self) -> Option<Shape> {
        self.counting().counter()?.shape(self.arguments())
    }

    /// Whether this policy never denies what `other` admits, if both limit the same key and cost the same.
    pub(crate) fn never_binds_beside(&self, other: &Self) -> bool {
        let (Some(shape), Some(Shape::Bucket)) = (self.shape(), other.shape()) else { return false };
        // Debits, and bans, deny what the quota would admit.
        if self.has(Traits::DEBT.or(Traits::PENALTY)) {
            return false;
        }
        let (mine, theirs) = (self.quota(), other.quota());
        let counted = match shape {
            Shape::Bucket => {
                let rate = |quota: Quota, period| u128::from(quota.limit()) * u128::from(period);
                return other.capacity() <= self.capacity()
                    && rate(theirs, mine.period_micros()) <= rate(mine, theirs.period_micros());
            }
            Shape::Log | Shape::FixedWindow => mine.period_micros(),
            // What it counts in part may be up to two periods old.
            Shape::SlidingWindow => 2 * mine.period_micros(),
        };
        u128::from(other.capacity()) + replenished(theirs, counted) <= u128::from(mine.limit())
    }
}

/// Whether one of [`LOGINS`] is among the words of the name, also in the plural. `catalog-index` has no `log-in`.
fn is_of_login(name: &str) -> bool {
    let words = words(name);
    let is_same = |(word, expected): (&String, &&str)| {
        word == expected || word.strip_suffix('s').is_some_and(|one| one == *expected)
    };
    LOGINS
        .iter()
        .any(|login| words.windows(login.len()).any(|words| words.iter().zip(login.iter()).all(is_same)))
}

/// The words of a name such as `failed-logins`, `failed_logins` or `failedLogins`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let starts = !c.is_alphanumeric() || c.is_uppercase() && before.is_lowercase();
        if starts {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The units that are replenished in `micros`.
fn replenished(quota: Quota, micros: u64) -> u128 {
    u128::from(micros) * u128::from(quota.limit()) / u128::from(quota.period_micros())
}

/// `, such as 50/s`, for a period that divides a second.
fn whole_seconds(quota: Quota) -> String {
    const SECOND: u64 = 1_000_000;
    let period = quota.period_micros();
    let limit = quota.limit().checked_mul(SECOND / period).filter(|_| SECOND.is_multiple_of(period));
    let written = limit.and_then(|limit| Quota::try_new(limit, Duration::from_secs(1)).ok());
    written.map_or_else(String::new, |quota| format!(", such as {quota} with the burst you need"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Key, Limiter, ManualClock, MemoryStore,
        algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    };

    /// A policy of a few units, each within some hundred milliseconds.
    fn random_policy(name: &str) -> Policy {
        let quota = Quota::new(fastrand::u64(1..=12), Duration::from_millis(fastrand::u64(1..=40) * 10));
        let bursting = quota.burst(fastrand::u64(1..=12));
        match fastrand::u8(0..6) {
            0 => Policy::new(name, bursting),
            1 => Policy::new(name, bursting).algorithm(TokenBucket::new()),
            2 => Policy::new(name, bursting).algorithm(LeakyBucket::meter()),
            3 => Policy::new(name, quota).algorithm(SlidingLog::new()),
            4 => Policy::new(name, quota).algorithm(FixedWindow::aligned()),
            _ => Policy::new(name, quota).algorithm(SlidingWindow::new().segments(fastrand::u32(1..=2))),
        }
    }

    #[tokio::test]
    async fn a_policy_that_never_binds_beside_another_one_denies_nothing_that_it_admits() {
        fastrand::seed(7);
        let mut found = 0;
        while found < 300 {
            let (one, other) = (random_policy("one"), random_policy("other"));
            if !one.never_binds_beside(&other) {
                continue;
            }
            found += 1;
            let clock = ManualClock::new();
            let (key, store) = (Key::new("all"), MemoryStore::with_clock(clock.clone()));
            let limiter = Limiter::new(store);
            for _ in 0..200 {
                clock.advance(Duration::from_micros(fastrand::u64(0..3) * fastrand::u64(0..40_000)));
                if limiter.check(&other, &key, 1).await.unwrap().is_allowed() {
                    let decision = limiter.check(&one, &key, 1).await.unwrap();
                    assert!(decision.is_allowed(), "{one:?} beside {other:?}");
                }
            }
        }
    }

    #[test]
    fn policies_that_may_bind_are_not_redundant() {
        let day = Policy::new("day", Quota::per_day(10_000));
        let log = day.clone().algorithm(SlidingLog::new());
        let second = Policy::new("second", Quota::per_second(10));
        for (one, other) in [(&day, &second), (&second, &day), (&log, &second), (&second, &log), (&log, &day)]
        {
            assert!(!one.never_binds_beside(other), "{one:?} beside {other:?}");
        }
        // 1.1 million a day at most.
        let million = Policy::new("million", Quota::per_day(1_100_000)).algorithm(SlidingLog::new());
        assert!(million.never_binds_beside(&second));
        assert!(!million.clone().debt(1).never_binds_beside(&second));
        assert!(!million.penalty(crate::policy::Penalty::manual()).never_binds_beside(&second));
    }
}
