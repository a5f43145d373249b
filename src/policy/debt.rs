//! Policies with room for debts.

use std::sync::Arc;

use super::{Policy, policy::MAX_CAPACITY};
use crate::base::Error;

impl Policy {
    /// Lets a [debit](crate::Limiter::debit) charge up to `units` more than remain. Requests are then denied until the
    /// debt is paid off. Defaults to 0: a debit charges what remains.
    ///
    /// A bucket ([`Gcra`](crate::algorithm::Gcra), [`TokenBucket`](crate::algorithm::TokenBucket),
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket)) pays the debt off at the quota's rate. Under a
    /// [`SlidingLog`](crate::algorithm::SlidingLog) or a [`SlidingWindow`](crate::algorithm::SlidingWindow) the units
    /// count for a period, as all others. Under a [`FixedWindow`](crate::algorithm::FixedWindow) the debt ends with its
    /// window. While the store [fails](crate::FailureMode::Local), debits charge what remains in this process.
    ///
    /// Redis makes the decisions of such a policy with a longer script, which takes about twice the time.
    ///
    /// # Panics
    ///
    /// If the algorithm allows no debt ([`Concurrency`](crate::algorithm::Concurrency), or one of your own), or quota and
    /// debt together are above the bounds of a [`Quota`](crate::Quota). [`try_debt`](Self::try_debt) gives an error
    /// instead, and so does [`try_algorithm`](Self::try_algorithm) if it is called later.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let tokens = Policy::new("tokens", Quota::per_hour(1_000)).debt(500);
    /// let alice = Key::new("alice");
    ///
    /// let request = limiter.check(&tokens, &alice, 1).await?;
    /// // The answer took 1 200 tokens. 1 000 of them were available.
    /// let debited = limiter.debit(&request, 1_199).await?;
    /// assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (1_199, Some(0)));
    /// // 200 tokens of debt and one for this request, of 1 000 an hour.
    /// let denied = limiter.check(&tokens, &alice, 1).await?;
    /// assert_eq!(denied.retry_after().unwrap().as_secs().div_ceil(60), 13);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn debt(self, units: u64) -> Self {
        match self.try_debt(units) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`debt`](Self::debt), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`debt`](Self::debt) panics.
    pub fn try_debt(mut self, units: u64) -> Result<Self, Error> {
        Arc::make_mut(&mut self.0).debt = units;
        self.apply_debt()
    }

    /// Computes what follows from the debt, the quota and the algorithm.
    pub(super) fn apply_debt(mut self) -> Result<Self, Error> {
        let inner = Arc::make_mut(&mut self.0);
        inner.debits = None;
        let (quota, debt) = (inner.quota, inner.debt);
        let arguments = inner.algorithm.arguments(&quota)?;
        if debt == 0 {
            inner.arguments = arguments.into();
            return Ok(self);
        }
        let capacity = inner.capacity.saturating_add(debt);
        if capacity > MAX_CAPACITY || quota.try_burst(quota.capacity().saturating_add(debt)).is_err() {
            return Err(Error::invalid(
                "the debt is too large: quota and debt together must be within the bounds of a burst",
            ));
        }
        let counter = inner.algorithm.counter();
        let Some([own, debits]) = counter.and_then(|counter| counter.with_debt(&arguments, debt)) else {
            return Err(Error::invalid(
                "this algorithm allows no debt: leave out `debt`, or use another built-in algorithm than `Concurrency`",
            ));
        };
        inner.arguments = own.into();
        let mut room = self.clone();
        let inner = Arc::make_mut(&mut room.0);
        (inner.arguments, inner.capacity) = (debits.into(), capacity);
        (inner.debt, inner.most_leased, inner.penalty) = (0, 0, None);
        Arc::make_mut(&mut self.0).debits = Some(room);
        Ok(self)
    }

    /// The policy that counts debits, and the units of debt that it has room for.
    pub(crate) fn debits(&self) -> (&Self, u64) {
        (self.0.debits.as_ref().unwrap_or(self), self.0.debt)
    }
}
