//! Policies that are valid, and probably not what was meant.

use std::time::Duration;

use super::policy::Policy;
use crate::base::Quota;

/// Words of names of policies that protect a secret, where twice the limit is twice the guesses.
const LOGINS: [&str; 9] =
    ["login", "log-in", "signin", "sign-in", "password", "passcode", "otp", "2fa", "mfa"];

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
    #[doc(hidden)]
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
        let (quota, limit) = (self.quota(), self.quota().limit());
        let most = self.counting().counter()?.most_within_period(self.arguments(), &quota)?;
        let period = quota.period();
        // One unit more is not worth a warning.
        if most <= limit + 1 || !is_of_login(self.name()) {
            return None;
        }
        Some(format!(
            "the policy {:?} admits up to {most} units in {period:?}, and its limit is {limit}: count it by SlidingLog, or \
             give it a burst of 1",
            self.name()
        ))
    }
}

/// Whether one of [`LOGINS`] is among the words of a name such as `failed-logins`, `failed_login` or `failedLogins`.
/// `catalog-index` has no `log-in`.
fn is_of_login(name: &str) -> bool {
    let (mut words, mut before) = (String::from("-"), ' ');
    for c in name.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            words.push('-');
        }
        words.push(if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        before = c;
    }
    words.push('-');
    LOGINS.iter().any(|login| ["-", "s-"].iter().any(|end| words.contains(&format!("-{login}{end}"))))
}

/// `, such as 50/s`, for a period that divides a second.
fn whole_seconds(quota: Quota) -> String {
    const SECOND: u64 = 1_000_000;
    let period = quota.period_micros();
    let limit = quota.limit().checked_mul(SECOND / period).filter(|_| SECOND.is_multiple_of(period));
    let written = limit.and_then(|limit| Quota::try_new(limit, Duration::from_secs(1)).ok());
    written.map_or_else(String::new, |quota| format!(", such as {quota} with the burst you need"))
}
