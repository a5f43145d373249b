//! Policies with room for debts.

use std::sync::Arc;

use super::policy::{Debt, MAX_CAPACITY, Policy};
use crate::base::{Error, valid};

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
    /// If the algorithm allows no debt ([`Concurrency`](crate::algorithm::Concurrency), or a custom one), or quota and
    /// debt together are above the bounds of a [`Quota`](crate::Quota). [`try_debt`](Self::try_debt) returns an error
    /// instead, as does a later call of [`try_algorithm`](Self::try_algorithm).
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
    pub fn debt(self, units: u64) -> Self {
        valid(self.try_debt(units))
    }

    /// The fallible form of [`debt`](Self::debt), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`debt`](Self::debt) panics.
    pub fn try_debt(self, units: u64) -> Result<Self, Error> {
        self.with_debt(units)?.checked()
    }

    /// This policy with room for `units` of debt.
    pub(super) fn with_debt(mut self, units: u64) -> Result<Self, Error> {
        let inner = Arc::make_mut(&mut self.0);
        let (quota, counting) = (inner.quota, &mut inner.counting);
        inner.options.debt = None;
        let arguments = counting.algorithm.arguments(&quota)?;
        if units == 0 {
            counting.arguments = arguments.into();
            return Ok(self);
        }
        let capacity = counting.capacity.saturating_add(units);
        if capacity > MAX_CAPACITY || quota.try_burst(quota.capacity().saturating_add(units)).is_err() {
            return Err(Error::invalid(
                "the debt is too large: quota and debt together must be within the bounds of a burst",
            ));
        }
        let counter = counting.algorithm.counter();
        let Some([own, debits]) = counter.and_then(|counter| counter.with_debt(&arguments, units)) else {
            return Err(Error::invalid(
                "this algorithm allows no debt: leave out `debt`, or use another built-in algorithm than `Concurrency`",
            ));
        };
        counting.arguments = own.into();
        let mut counted_by = self.clone().set(|options| {
            (options.lease, options.penalty, options.counts_debits) = (0, None, true);
        });
        let counting = &mut Arc::make_mut(&mut counted_by.0).counting;
        (counting.arguments, counting.capacity) = (debits.into(), capacity);
        Arc::make_mut(&mut self.0).options.debt = Some(Debt { units, counted_by });
        Ok(self)
    }

    /// The units of debt that it has room for.
    pub(crate) fn debt_units(&self) -> u64 {
        self.0.options.debt.as_ref().map_or(0, |debt| debt.units)
    }

    /// Whether it is the policy that counts another one's debits.
    pub(crate) fn counts_debits(&self) -> bool {
        self.0.options.counts_debits
    }

    /// The policy that counts debits.
    pub(crate) fn debits(&self) -> &Self {
        self.0.options.debt.as_ref().map_or(self, |debt| &debt.counted_by)
    }
}
