//! Waits until a request is admitted.

use std::{mem, time::Duration};

use tokio::time::{Instant, sleep};

use super::{fallback::counted, limiter::Limiter};
use crate::{
    base::{Error, ErrorKind, random::random_time},
    decision::{Charge, Decision},
    key::Key,
    policy::{Enforcement, Policy},
    store::Action,
};

impl Limiter {
    /// Waits for at most `patience` until `cost` units are available to `key` under `policy`, and charges them. For
    /// jobs and outgoing calls.
    ///
    /// Await it in a Tokio runtime. If the decision [`is_admitted`](Decision::is_admitted), the caller may go on now. If it is
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
    /// # When the store fails
    ///
    /// A [`check`](Self::check) whose answer is late is decided by the [failure mode](crate::FailureMode), which may admit
    /// what the store would deny. A wait has time, so it asks the store again: after a missed deadline, a broken connection,
    /// a failed attempt to connect, or if the store is busy. The pauses grow from 10 ms to at most 250 ms, and are random.
    /// The failure mode decides when the patience is over, or immediately if the store is known to be unavailable
    /// ([`StoreSuspended`](ErrorKind::StoreSuspended): the circuit breaker of a `RedisStore` is open) or answers with an
    /// error. So a single failure admits nothing beyond the limit, and an outage lets no worker wait for its whole
    /// patience. If the limit must hold in an outage too, use [`Closed`](crate::FailureMode::Closed): this then fails with
    /// an error, and the job can be put back.
    ///
    /// The store [may have charged](ErrorKind::may_have_charged) a try whose answer is late, and the next try charges again.
    /// The units of such a try are not refunded: they count until they are replenished, as if a call had been made. So
    /// failures let fewer calls through than the limit, never more. A permit of such a try is released.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check).
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
    ///     assert!(limiter.wait(&calls, &partner, 1, Duration::from_secs(5)).await?.is_admitted());
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
        if waited.patience.is_zero() || self.enforcement() != Enforcement::On {
            return self.check_all(charges).await;
        }
        // A penalty counts each request that is denied, so it does not count the denials that this one waits out.
        let uncounted = |charge: &Charge| match charge.policy().counts_denials() {
            true => charge.clone().under(&charge.policy().with_manual_bans()),
            false => charge.clone(),
        };
        let tries: Vec<Charge> = charges.iter().map(uncounted).collect();
        loop {
            self.shared.background.check_overdue();
            let (answer, asked) = self.ask(Action::Charge, tries.clone());
            let mut decided = answer.await;
            let pause = decided.as_ref().err().and_then(|error| waited.pause_after(error));
            let wait = match pause {
                Some(pause) => {
                    // Only the failure counts: another try makes the decision.
                    drop(counted(Action::Charge, decided));
                    pause
                }
                None => {
                    decided = self.shared.complete(Action::Charge, &asked, decided);
                    let decision = decided?;
                    match waited.next(&decision) {
                        Some(wait) => wait,
                        None => return self.end_wait(charges, decision).await,
                    }
                }
            };
            waits();
            sleep(wait).await;
        }
    }

    /// Ends a wait for `charges` with the decision of its last try. A penalty counts a denial.
    async fn end_wait(&self, charges: &[Charge], tried: Decision) -> Result<Decision, Error> {
        if tried.is_denied() && charges.iter().any(|charge| charge.policy().counts_denials()) {
            let (answer, asked) = self.ask(Action::Charge, charges.to_vec());
            match answer.await {
                // The denial of the store remains one. It is not counted.
                Err(error) if tried.failure().is_none() => drop(counted(Action::Charge, Err(error))),
                decided => return self.shared.complete(Action::Charge, &asked, decided),
            }
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
    /// The next wait for a permit, or the longest pause after a failure.
    next: Duration,
}

const FIRST_WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(250);

impl WaitState {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { since: Instant::now(), patience, next: FIRST_WAIT }
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
            wait = wait.max(self.growing()).min(left);
        }
        Some(wait)
    }

    /// The pause after a failure of the store, before the next try. `None` if the failure lasts until it is mended, or if
    /// the time is over.
    fn pause_after(&mut self, error: &Error) -> Option<Duration> {
        let (left, passes) = (
            self.left(),
            matches!(
                error.kind(),
                ErrorKind::StoreTimeout
                    | ErrorKind::StoreBusy
                    | ErrorKind::StoreUnreachable
                    | ErrorKind::StoreDisconnected
            ),
        );
        if left.is_zero() || !passes {
            return None;
        }
        // Random, so not all that wait for a store ask it in the same moment.
        let half = self.growing() / 2;
        Some((half + random_time(half)).min(left))
    }

    fn growing(&mut self) -> Duration {
        let longer = (self.next * 2).min(MAX_WAIT);
        mem::replace(&mut self.next, longer)
    }
}
