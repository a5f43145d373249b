//! Waits until a request is admitted.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::limiter::Limiter;
use crate::{
    base::Error,
    decision::{Charge, Decision},
    key::Key,
    policy::{Enforcement, Policy},
    store::Action,
};

impl Limiter {
    /// Waits for at most `patience` until `cost` units are available to `key` under `policy`, and charges them. For
    /// jobs and outgoing calls.
    ///
    /// Await it in a Tokio runtime. If the decision [`is_allowed`](Decision::is_allowed), the caller may go on now. If it is
    /// denied, nothing was charged. If the units will not be available within the patience, this returns without waiting for
    /// them; the denial has the remaining wait. A cost above the capacity is denied immediately.
    ///
    /// * After a denial, this waits for its [`retry_after`](Decision::retry_after) and tries again. Callers are not
    ///   queued: others may charge the units first. Only [`LeakyBucket::queue`](crate::algorithm::LeakyBucket::queue)
    ///   admits in order.
    /// * For such a queue, this waits for the [delay](Decision::delay) of the decision. If the delay is longer than the
    ///   remaining patience, the units are refunded, and the decision is a denial.
    /// * The time of a permit's release is not known in advance. Under a [`Concurrency`](crate::algorithm::Concurrency)
    ///   policy, this tries again after 10 ms, then after increasing waits of at most 250 ms.
    /// * A [penalty](Policy::penalty) counts one denial if this returns a denial, and none if the request is admitted
    ///   after a wait.
    ///
    /// If the future is dropped while it waits after a denial, nothing is charged. If it is dropped during a delay, the
    /// units stay charged, because others are queued behind them.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check). It does not wait for a store that failed.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let calls = Policy::new("partner-api", Quota::per_second(100).burst(1));
    /// let partner = Key::new("partner");
    ///
    /// for _ in 0..3 {
    ///     // The second and the third wait for 10 ms.
    ///     assert!(limiter.wait(&calls, &partner, 1, Duration::from_secs(5)).await?.is_allowed());
    /// }
    /// // More than the burst is denied immediately.
    /// assert!(limiter.wait(&calls, &partner, 2, Duration::from_secs(5)).await?.verdict().is_denied());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(
        &self,
        policy: &Policy,
        key: &Key,
        cost: u64,
        patience: Duration,
    ) -> Result<Decision, Error> {
        let mut waited = WaitState::new(patience);
        let decision = self.check_until(&[Charge::new(policy, key, cost)], &mut waited, || {}).await?;
        let Some(delay) = decision.delay() else { return Ok(decision) };
        let late = delay.saturating_sub(waited.left());
        if late.is_zero() {
            sleep(delay).await;
            return Ok(decision.after_delay());
        }
        self.enforced(|| {
            let refund = self.refund(&decision, cost);
            // A refund that fails may have no outcomes.
            refund.map(move |refunded| decision.updated(&refunded).map(|one| one.denying(late)))
        })
        .await
    }

    /// [`check_all`](Self::check_all), again until the request is admitted or cannot be in time. Calls `waits` before each
    /// wait.
    pub(crate) async fn check_until(
        &self,
        charges: &[Charge],
        waited: &mut WaitState,
        mut waits: impl FnMut(),
    ) -> Result<Decision, Error> {
        loop {
            let decision = self.check_waiting(charges, *waited).await?;
            let Some(wait) = waited.next(&decision) else { return Ok(decision) };
            waits();
            sleep(wait).await;
        }
    }

    /// [`check_all`](Self::check_all) for a request that has `waited`. A penalty counts each request that is denied, so it
    /// does not count the denials that this one waits out.
    async fn check_waiting(&self, charges: &[Charge], mut waited: WaitState) -> Result<Decision, Error> {
        let is_counted = |charge: &Charge| charge.policy().counts_denials();
        let may_wait = !waited.patience.is_zero() && self.enforcement() == Enforcement::On;
        if !may_wait || !charges.iter().any(is_counted) {
            return self.check_all(charges).await;
        }
        let uncounted = |charge: &Charge| charge.clone().under(&charge.policy().with_manual_bans());
        let tries: Vec<Charge> = charges.iter().map(uncounted).collect();
        let tried = self.decide(Action::Charge, tries).await?;
        if tried.is_denied() && waited.next(&tried).is_none() {
            return self.decide(Action::Charge, charges).await;
        }
        Ok(tried.map(|outcome| {
            let is_same = |charge: &&Charge| {
                charge.key() == outcome.key() && charge.policy().label() == outcome.policy().label()
            };
            match charges.iter().find(is_same) {
                Some(charge) => outcome.under(charge.policy()),
                None => outcome,
            }
        }))
    }
}

/// How long a denied request has waited, and how long it waits next.
#[derive(Clone, Copy)]
pub(crate) struct WaitState {
    since: Instant,
    /// How long it may wait in total.
    patience: Duration,
    /// The next wait for a permit.
    permit_wait: Duration,
}

const FIRST_PERMIT_WAIT: Duration = Duration::from_millis(10);
const MAX_PERMIT_WAIT: Duration = Duration::from_millis(250);

impl WaitState {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { since: Instant::now(), patience, permit_wait: FIRST_PERMIT_WAIT }
    }

    fn left(&self) -> Duration {
        self.patience.saturating_sub(self.since.elapsed())
    }

    /// The wait after `decision`, before the next try. `None` if the request is admitted, or cannot be in time.
    pub(crate) fn next(&mut self, decision: &Decision) -> Option<Duration> {
        if !decision.is_denied() {
            return None;
        }
        let left = self.left();
        let mut wait = Duration::ZERO;
        let mut needs_permit = false;
        for outcome in decision.outcomes().iter().filter(|outcome| outcome.is_denied()) {
            let retry_after = outcome.retry_after()?;
            if outcome.policy().has_permits() && !outcome.is_banned() {
                // The denial names when a permit expires if its holder is gone. It may be released earlier.
                needs_permit = true;
            } else {
                wait = wait.max(retry_after);
            }
        }
        if left.is_zero() || wait > left {
            return None;
        }
        if needs_permit {
            wait = wait.max(self.permit_wait).min(left);
            self.permit_wait = (self.permit_wait * 2).min(MAX_PERMIT_WAIT);
        }
        Some(wait)
    }
}
