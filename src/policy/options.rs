//! The optional settings of a policy: failure mode, unit, shadow and rollout, debt, leases, penalty; and
//! warnings of settings that are probably mistakes.

use super::{Criticality, FailureMode, Headroom, Penalty, QuotaUnit, policy::Policy, warnings};
use crate::base::{Error, valid};

impl Policy {
    /// Sets what happens to a request if the store makes no decision in time. Defaults to
    /// [`FailureMode::Local`].
    ///
    /// If several policies are decided together and one is [`Closed`](FailureMode::Closed), the request is
    /// rejected. Otherwise the policies that are [`Local`](FailureMode::Local) decide.
    #[must_use]
    pub fn failure_mode(self, mode: FailureMode) -> Self {
        self.with_independent(|settings| settings.failure_mode = mode)
    }

    /// What a unit of the quota is, for the header `RateLimit-Policy`. Defaults to
    /// [`Requests`](QuotaUnit::Requests), as clients assume. It does not change what is charged.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule, policy::QuotaUnit};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Policy::new("bytes", Quota::per_minute(100_000)).quota_unit(QuotaUnit::ContentBytes);
    /// let rule = Rule::new(bytes, Key::new("all")).response_bytes();
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    /// let download = layer.layer(tower::service_fn(|_: Request<()>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
    /// }));
    /// let response = download.oneshot(Request::new(())).await?;
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""bytes";q=100000;qu="content-bytes";w=60"#);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn quota_unit(self, unit: QuotaUnit) -> Self {
        self.with_independent(|settings| settings.quota_unit = unit)
    }

    /// Reports each time that a key has used one of these shares of the quota, in percent from 1 to 100: to
    /// [`Limiter::on_threshold`](crate::Limiter::on_threshold), in the log at info, and in the metric
    /// `ratelimit_thresholds_total`. Defaults to none.
    ///
    /// * **Without windows**, under a bucket or a [`SlidingLog`](crate::algorithm::SlidingLog), units become available
    ///   all the time. A key that stays near a share is reported once, and again after a period in which it did not
    ///   reach the share. The share of a bucket is of the burst. Prefer windows, such as a quota per month, for what
    ///   a person should read.
    /// * **A changed limit** reports nothing until the next charge. After a raised one, the same share of the new limit is
    ///   reported with another id. If a lowered one is below what is used, the key is exhausted, and nothing is
    ///   reported until its next window.
    /// * **A cost above 1** may be denied before 100 % are used.
    /// * **A window that pays for a [debt](Self::max_debt)** begins with used units. The shares that these have reached
    ///   are not reported in it.
    /// * **[Shadows](Self::shadow)** and [gradual enforcement](Self::rollout) report for all keys.
    /// * **[Leased](Self::max_lease) units** count as used when they are leased.
    ///
    /// # Panics
    ///
    /// If a share is 0 or above 100. [`try_notify_at`](Self::try_notify_at) gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn notify_at(self, percents: impl IntoIterator<Item = u8>) -> Self {
        valid(self.try_notify_at(percents))
    }

    /// The fallible form of [`notify_at`](Self::notify_at), for shares read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`notify_at`](Self::notify_at) panics.
    pub fn try_notify_at(self, percents: impl IntoIterator<Item = u8>) -> Result<Self, Error> {
        let mut percents: Vec<u8> = percents.into_iter().collect();
        percents.sort_unstable();
        percents.dedup();
        self.with(|settings| settings.notify_at = percents)
    }

    /// Makes this a shadow policy: it decides, counts and is reported, but never denies. Use it to see what a
    /// new limit would deny before you enforce it.
    ///
    /// If it would have denied a request, it charges neither the request nor anything settled for it later.
    /// Other policies of the request are enforced as usual. Clients see no trace of a shadow policy. Its
    /// outcome is in [`Decision::shadows`](crate::Decision::shadows), for
    /// [`on_decision`](crate::RateLimitLayer::on_decision), and the metric `ratelimit_decisions_total` counts
    /// its denials with the verdict `shadow_denied`. It has no leases, and its [failure
    /// mode](Self::failure_mode) does not apply.
    ///
    /// Counts are kept when a policy becomes a shadow or is enforced again.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let strict = Policy::new("strict", Quota::per_hour(1)).shadow();
    /// let alice = Key::new("alice");
    ///
    /// assert!(limiter.check(&strict, &alice, 1).await?.is_admitted());
    /// let decision = limiter.check(&strict, &alice, 1).await?;
    /// assert!(decision.is_admitted());
    /// assert!(decision.shadows()[0].verdict().is_denied());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with_independent(|settings| settings.enforced = 0.0)
    }

    /// Lets keys of several [kinds](crate::KeyExtractor::kind) share the counts of this policy, without a
    /// [warning](crate::RateLimitLayer::warnings) of the layers that use it. Defaults to a warning.
    ///
    /// The stored name of a count has the policy and the identity, and nothing of the extractor: user 42 of one rule
    /// and tenant 42 of another one share a count. Use this if equal identities mean the same client.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule, layer::Rules};
    ///
    /// let layer = |policy: Policy| {
    ///     let rules = Rules::new()
    ///         .route("/me", Rule::new(policy.clone(), Header::new("x-user")))
    ///         .route("/login", Rule::new(policy, Header::new("x-login")));
    ///     RateLimitLayer::with_rules(MemoryStore::new(), rules)
    /// };
    /// let policy = Policy::new("per-user", Quota::per_minute(60));
    /// let expected = "the policy \"per-user\" has keys of two kinds, the header `x-user` and the header `x-login`";
    /// assert!(layer(policy.clone()).warnings()[0].starts_with(expected));
    /// assert!(layer(policy.allow_mixed_keys()).warnings().is_empty());
    /// ```
    #[must_use]
    pub fn allow_mixed_keys(self) -> Self {
        self.with_independent(|settings| settings.allows_mixed_keys = true)
    }

    /// Enforces the policy for this share of the keys, from 0 to 1, and makes it a [shadow](Self::shadow) for
    /// the others. Defaults to 1. Use it to enforce a new limit step by step.
    ///
    /// Whether a key is in the share depends only on the key and the policy's name, so it is the same on
    /// every instance and for every request. A larger share includes all keys of a smaller one.
    ///
    /// # Panics
    ///
    /// If `share` is not 0 and not from 0.000001 to 1. [`try_rollout`](Self::try_rollout) gives an error
    /// instead.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let strict = Policy::new("strict", Quota::per_hour(1)).rollout(0.25);
    ///
    /// let mut enforced = 0;
    /// for client in 0..1_000 {
    ///     limiter.check(&strict, &Key::new(client), 1).await?;
    ///     let second = limiter.check(&strict, &Key::new(client), 1).await?;
    ///     // For the other keys, a shadow denies.
    ///     assert_ne!(second.is_admitted(), second.shadows().is_empty());
    ///     enforced += u32::from(!second.is_admitted());
    /// }
    /// assert!((200..300).contains(&enforced));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn rollout(self, share: f64) -> Self {
        valid(self.try_rollout(share))
    }

    /// The fallible form of [`rollout`](Self::rollout), for a share read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`rollout`](Self::rollout) panics.
    pub fn try_rollout(self, share: f64) -> Result<Self, Error> {
        self.with(|settings| settings.enforced = share)
    }

    /// Lets a [debit](crate::Limiter::debit) charge up to `units` more than remain. Requests are then denied
    /// until the debt is paid off. Defaults to 0: a debit charges what remains.
    ///
    /// * A bucket ([`Gcra`](crate::algorithm::Gcra), [`TokenBucket`](crate::algorithm::TokenBucket),
    ///   [`LeakyBucket`](crate::algorithm::LeakyBucket)) pays the debt off at the quota's rate.
    /// * A [`FixedWindow`](crate::algorithm::FixedWindow) pays it off window by window, at most one limit in
    ///   each: with 1,000 a month, 1,400 used in January leave 600 for February. A denied request waits for the
    ///   start of the window in which it fits.
    /// * A [`SlidingLog`](crate::algorithm::SlidingLog) or a
    ///   [`SlidingWindow`](crate::algorithm::SlidingWindow) counts the units for a period, as all units, and
    ///   then forgets them. The policy [warns](Self::warnings) of that.
    ///
    /// While the store [fails](crate::FailureMode::Local), there is no debt: debits charge what remains in
    /// this process.
    ///
    /// Redis makes the decisions of such a policy with a longer script, which takes about twice the time.
    ///
    /// # Panics
    ///
    /// If the algorithm allows no debt ([`Concurrency`](crate::algorithm::Concurrency), or a custom one); if
    /// quota and debt together are above the bounds of a [`Quota`](crate::Quota); or if the debt needs more
    /// than 100 years of windows, or more than 24 windows of a calendar, to be paid off.
    /// [`try_max_debt`](Self::try_max_debt) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let tokens = Policy::new("tokens", Quota::per_hour(1_000)).max_debt(500);
    /// let alice = Key::new("alice");
    ///
    /// let request = limiter.check(&tokens, &alice, 1).await?;
    /// // The answer took 1,200 tokens. 1,000 of them were available.
    /// let debited = limiter.debit(&request, 1_199).await?;
    /// assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (1_199, Some(0)));
    /// // 200 tokens of debt and one for this request, of 1,000 an hour.
    /// let denied = limiter.check(&tokens, &alice, 1).await?;
    /// assert_eq!(denied.retry_after().unwrap().as_secs().div_ceil(60), 13);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn max_debt(self, units: u64) -> Self {
        valid(self.try_max_debt(units))
    }

    /// The fallible form of [`max_debt`](Self::max_debt), for a debt read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`max_debt`](Self::max_debt) panics.
    pub fn try_max_debt(self, units: u64) -> Result<Self, Error> {
        self.with(|settings| settings.max_debt = units)
    }

    /// Lets requests of this [`Criticality`], and of each lower one, leave so much of the capacity unused: it is kept for the more
    /// critical ones. Defaults to none: all requests are equal.
    ///
    /// A charge of `c` units with a headroom of `h` is admitted if `c + h` units remain, and charged `c`. Otherwise it is denied with
    /// the wait for `c + h`, and without one if `c + h` is above the capacity. If `c` units remain, it is *shed*, and counts for no
    /// [penalty](Self::penalty). Under a bucket, headroom is a part of the burst, and the rate is for all; under windows and logs,
    /// less critical requests get the rest of each period; under [`Concurrency`](crate::algorithm::Concurrency), `h` permits stay
    /// free.
    ///
    /// It takes effect for requests of which [`Rule::criticality`](crate::Rule::criticality) or
    /// [`Charge::with_criticality`](crate::Charge::with_criticality) says that they are less critical; [`Limiter`](crate::Limiter)
    /// takes charges in `check_all`, `peek_all` and `wait_all`. Clients read what remains for their requests: the units less their
    /// headroom. Refunds, debits and settlements have none. A policy with headroom is not [leased](Self::max_lease). With
    /// [`Local`](crate::FailureMode::Local), each instance keeps its share of the headroom in an outage, rounded up.
    ///
    /// # Panics
    ///
    /// If `criticality` is [`CriticalPlus`](Criticality::CriticalPlus), or `headroom` is above 100 percent.
    /// [`try_headroom`](Self::try_headroom) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Criticality, Key, Limiter, MemoryStore, Policy, Quota, policy::Headroom};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// // Crawlers leave a fifth to the others.
    /// let site = Policy::new("site", Quota::per_hour(10)).headroom(Criticality::Sheddable, Headroom::Percent(20));
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let request = |criticality| [Charge::new(&site, &Key::new("all"), 1).with_criticality(criticality)];
    ///
    /// let crawl = request(Criticality::Sheddable);
    /// for _ in 0..8 {
    ///     assert!(limiter.check_all(&crawl).await?.is_admitted());
    /// }
    /// let denied = limiter.check_all(&crawl).await?;
    /// assert!(denied.is_denied() && denied.outcomes()[0].is_shed());
    /// assert!(limiter.check_all(&request(Criticality::CriticalPlus)).await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn headroom(self, criticality: Criticality, headroom: Headroom) -> Self {
        valid(self.try_headroom(criticality, headroom))
    }

    /// The fallible form of [`headroom`](Self::headroom), for one read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`headroom`](Self::headroom) panics.
    pub fn try_headroom(self, criticality: Criticality, headroom: Headroom) -> Result<Self, Error> {
        self.with(|settings| _ = settings.headroom.insert(criticality, headroom))
    }

    /// The most units of a lease; `None` without leases. What an instance has leased is not kept for more critical requests
    /// elsewhere, so a policy with headroom has none.
    pub(crate) fn most_leased(&self) -> Option<u64> {
        self.settings().max_lease.filter(|_| self.settings().headroom.is_empty())
    }

    /// Lets each instance lease up to `most` units of a hot key from Redis in one call, and spend them in
    /// process. Defaults to no leases: every request is decided by Redis.
    ///
    /// For a [`RedisStore`](crate::RedisStore). A [`MemoryStore`](crate::MemoryStore) decides in process
    /// already and ignores this setting.
    ///
    /// A policy with [headroom](Self::headroom) leases nothing, for critical requests either.
    ///
    /// All instances together never admit more than the limit. The price: one instance may hold unused units
    /// while another denies requests. See [leases](crate::policy#leases) for their exactness, their size, and
    /// refunds.
    ///
    /// # Panics
    ///
    /// If `most` is 0 or above 1,000,000,000,000, or the units of the algorithm cannot be leased exactly:
    /// [`SlidingLog`](crate::algorithm::SlidingLog),
    /// [`LeakyBucket::queue`](crate::algorithm::LeakyBucket::queue),
    /// [`Concurrency`](crate::algorithm::Concurrency), or a custom one; or the policy has a
    /// [penalty](Self::penalty). [`try_max_lease`](Self::try_max_lease) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Policy, Quota};
    ///
    /// let api = Policy::new("api", Quota::per_second(50_000)).max_lease(1_000);
    /// // One second, plus 20 ms to replenish 1,000 units at 50 per millisecond.
    /// assert_eq!(api.lease_bound(), Some(Duration::from_millis(1_020)));
    /// ```
    #[must_use]
    #[track_caller]
    pub fn max_lease(self, most: u64) -> Self {
        valid(self.try_max_lease(most))
    }

    /// The fallible form of [`max_lease`](Self::max_lease), for a lease read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`max_lease`](Self::max_lease) panics.
    pub fn try_max_lease(self, most: u64) -> Result<Self, Error> {
        self.with(|settings| settings.max_lease = Some(most))
    }

    /// Bans a key temporarily after too many denials, over all instances. Defaults to no penalty.
    ///
    /// A ban denies every request of the key that costs something, and its CORS preflights, regardless of the
    /// remaining quota. It charges nothing, like any other denial.
    /// [`Decision::banned_for`](crate::Decision::banned_for) has the remaining time. Clients get the problem
    /// type `abnormal-usage-detected`, and `Retry-After` states the remaining time.
    ///
    /// [Penalties](crate::policy#penalties) explains which denials count, bans by hand, and what a failure of
    /// the store changes.
    ///
    /// # Panics
    ///
    /// If the numbers are out of bounds (1 to 1,000,000 denials within 1 ms to 400 days, bans of 1 ms to 3650
    /// days), the longest ban is shorter than the first, a [manual](Penalty::manual) penalty has a time, or
    /// the policy is [leased](Self::max_lease). [`try_penalty`](Self::try_penalty) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{
    ///     Key, Limiter, MemoryStore, Policy, Quota, algorithm::SlidingLog, policy::Penalty,
    ///     store::ManualClock,
    /// };
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
    /// assert!(limiter.check(&login, &mallory, 1).await?.is_admitted());
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
        self.with(|settings| settings.penalty = Some(penalty))
    }

    /// Likely mistakes in this valid policy, each with what to write instead. A
    /// [layer](crate::RateLimitLayer::warnings) logs them; a test of a service's policies can assert that the
    /// list is empty.
    ///
    /// * Headers cannot express the period, because they count whole seconds.
    /// * The name suggests a login, and the algorithm admits nearly twice the limit within one period.
    /// * A debt is forgotten before it is paid off.
    /// * A [headroom](Self::headroom) is the whole capacity, or stands beside a [lease](Self::max_lease), which it turns off.
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
        warnings::of(self)
    }

    /// Whether each denial must reach the store, because the penalty counts it.
    pub(crate) fn counts_denials(&self) -> bool {
        self.settings().penalty.is_some_and(Penalty::is_automatic)
    }

    /// The policy with the same bans, which counts no denials.
    pub(crate) fn with_manual_bans(&self) -> Self {
        self.with_independent(|settings| settings.penalty = settings.penalty.map(|_| Penalty::manual()))
    }

    /// The policy without its penalty.
    pub(crate) fn without_penalty(&self) -> Self {
        self.with_independent(|settings| settings.penalty = None)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog},
        base::{ErrorKind, Quota},
    };

    #[test]
    fn a_debt_that_cannot_be_counted_is_an_error() {
        let rows = [
            (
                "permits",
                Policy::concurrency("permits", 5).try_max_debt(1),
                "this algorithm allows no debt: leave out `max_debt`, or use another built-in algorithm than `Concurrency`",
            ),
            (
                "too large",
                Policy::new("large", Quota::per_second(1)).try_max_debt(u64::MAX),
                "the debt is too large: quota and debt together must be within the bounds of a quota, and of a burst for \
                 algorithms that refill",
            ),
            (
                "takes a century",
                Policy::new("slow", Quota::per_day(1)).try_max_debt(40_000),
                "the debt is too large: quota and debt together must be within the bounds of a quota, and of a burst for \
                 algorithms that refill",
            ),
        ];
        for (name, policy, message) in rows {
            assert_eq!(policy.unwrap_err().to_string(), message, "{name}");
        }
        // The algorithm may be set after the debt.
        let queue = Policy::new("queue", Quota::per_second(1)).max_debt(3);
        assert!(queue.try_algorithm(Concurrency::new()).is_err());
    }

    #[test]
    fn policies_that_cannot_be_leased_are_errors_in_either_order() {
        let queue = LeakyBucket::queue(Duration::from_secs(1));
        let policy = || Policy::new("p", Quota::per_second(10));
        let rows = [
            ("log", policy().max_lease(5).try_algorithm(SlidingLog::new())),
            ("log", policy().algorithm(SlidingLog::new()).try_max_lease(5)),
            ("queue", policy().max_lease(5).try_algorithm(queue)),
            ("queue", policy().algorithm(queue).try_max_lease(5)),
            ("in use", policy().max_lease(5).try_algorithm(Concurrency::new())),
            ("in use", policy().algorithm(Concurrency::new()).try_max_lease(5)),
            ("nothing", policy().try_max_lease(0)),
            ("too much", policy().try_max_lease(u64::MAX)),
        ];
        for (name, built) in rows {
            let error = built.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}");
            assert!(error.to_string().contains("leave out `max_lease`"), "{name}: {error}");
        }
        let either = [
            policy().max_lease(5).algorithm(FixedWindow::anchored()),
            policy().algorithm(FixedWindow::anchored()).max_lease(5),
        ];
        for policy in either {
            let bound = policy.lease_bound().unwrap();
            assert_eq!(bound, Duration::from_secs(1));
        }
        assert_eq!(policy().lease_bound(), None);
        assert!(policy().try_max_lease(1_000_000_000_000).is_ok());
        // A lease never holds more units than the limit.
        let bound = Policy::new("p", Quota::per_minute(100)).max_lease(1_000_000).lease_bound().unwrap();
        assert_eq!(bound, Duration::from_secs(61));
    }

    #[test]
    fn a_policy_with_a_penalty_cannot_be_leased() {
        let (penalty, quota) = (Penalty::manual(), Quota::per_second(1_000));
        let leased = Policy::new("p", quota).max_lease(10);
        let punishing = Policy::new("p", quota).penalty(penalty);
        for built in [leased.try_penalty(penalty), punishing.try_max_lease(10)] {
            let error = built.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("leave out `max_lease` or `penalty`"), "{error}");
        }
    }
}
