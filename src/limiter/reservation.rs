use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tokio::runtime::Handle;

use super::limiter::Limiter;
use crate::{
    answer::Answer,
    decision::{Decision, Outcome},
    error::Error,
    util::sync::lock,
};

/// Units that a request has reserved, to be settled once its cost is known.
///
/// The request is charged an estimate. [`settle`](Self::settle) then refunds what it did not need, or debits what it
/// needed beyond that. Use it where the cost is known late and a charge at the end would admit too much meanwhile: the
/// tokens of a language model, the rows of a query.
///
/// Cloning gives another handle on the same reservation. When the last one is dropped and none was settled, the
/// estimate stays charged, or is refunded after [`or_refund`](Self::or_refund).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, Reservation};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let tokens = Policy::new("tokens", Quota::per_hour(1_000)).debt(500);
/// let alice = Key::new("alice");
///
/// // A request may produce up to 400 tokens.
/// let decision = limiter.check(&tokens, &alice, 400).await?;
/// let reservation = Reservation::new(&limiter, &decision);
/// assert_eq!(reservation.settle(150).await?.remaining(), Some(850));
///
/// // If it fails, it costs nothing.
/// let decision = limiter.check(&tokens, &alice, 400).await?;
/// drop(Reservation::new(&limiter, &decision).or_refund());
/// assert_eq!(limiter.peek(&tokens, &alice, 1).await?.remaining(), Some(850));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "dropping it settles the request at the estimate, or refunds it"]
pub struct Reservation(Arc<Inner>);

struct Inner {
    limiter: Limiter,
    decision: Decision,
    state: Mutex<State>,
    /// Where it was made, because it may be dropped outside the runtime.
    runtime: Option<Handle>,
}

struct State {
    /// The units that each outcome is charged, as far as is known.
    charged: Vec<u64>,
    is_settled: bool,
    refunds: bool,
}

impl Reservation {
    /// The reservation of the units that `decision`, made by `limiter`, has charged.
    ///
    /// It covers every policy of the decision; [`Decision::for_policy`] selects one. Of a denial it covers nothing.
    pub fn new(limiter: &Limiter, decision: &Decision) -> Self {
        let mut decision = decision.clone();
        // A permit is held by the decision itself.
        drop(decision.take_permit());
        let charged = match decision.is_allowed() {
            true => decision.all_outcomes().iter().map(Outcome::granted).collect(),
            false => Vec::new(),
        };
        Self(Arc::new(Inner {
            limiter: limiter.clone(),
            decision,
            state: Mutex::new(State { charged, is_settled: false, refunds: false }),
            runtime: Handle::try_current().ok(),
        }))
    }

    /// Refunds the estimate if the last handle is dropped before it is settled. Without this, the estimate stays
    /// charged.
    ///
    /// The refund is sent to Redis in the background. If it fails, it is repeated as that of
    /// [`Limiter::refund`] is.
    pub fn or_refund(self) -> Self {
        lock(&self.0.state).refunds = true;
        self
    }

    /// The decision that charged the estimate.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// Whether [`settle`](Self::settle) was called.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        lock(&self.0.state).is_settled
    }

    /// Charges `units` in total instead of the estimate: [refunds](Limiter::refund) the rest, or
    /// [debits](Limiter::debit) what is missing. The decision shows what remains then.
    ///
    /// A later call charges the difference to this one. Units that were debited are not refunded by it.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::debit`]. Call it again after an error that [may not have
    /// charged](crate::ErrorKind::may_have_charged).
    pub fn settle(&self, units: u64) -> Answer<Decision> {
        lock(&self.0.state).is_settled = true;
        self.charge_in_total(|_| units)
    }

    /// Charges `units` in total if that is more than the estimate, and does not settle. For a cost that grows, such as
    /// that of a stream: call it after each part, and [`settle`](Self::settle) at the end.
    ///
    /// # Errors
    ///
    /// Those of [`settle`](Self::settle).
    pub fn extend_to(&self, units: u64) -> Answer<Decision> {
        self.charge_in_total(|charged| charged.max(units))
    }

    /// Charges each outcome `units` of what it is charged.
    fn charge_in_total(&self, units: impl Fn(u64) -> u64) -> Answer<Decision> {
        let Inner { limiter, decision, state, .. } = &*self.0;
        // What each was charged, and will be.
        let change = |charged: &mut u64| (std::mem::replace(charged, units(*charged)), *charged);
        let changes: Vec<(u64, u64)> = lock(state).charged.iter_mut().map(change).collect();
        let missing =
            |place: usize| changes.get(place).map_or(0, |(before, after)| after.saturating_sub(*before));
        let surplus =
            |place: usize| changes.get(place).map_or(0, |(before, after)| before.saturating_sub(*after));
        let debits = (0..changes.len()).any(|place| missing(place) > 0);
        let refunds = (0..changes.len()).any(|place| surplus(place) > 0);
        let answer = match (debits, refunds) {
            (false, false) => return Answer::ready(Ok(decision.clone())),
            (true, false) => limiter.debit_each(decision, missing),
            (false, true) => limiter.refund_each(decision, surplus),
            (true, true) => {
                let (debited, refunded) =
                    (limiter.debit_each(decision, missing), limiter.refund_each(decision, surplus));
                Answer::pending(async move {
                    let debited = debited.await?;
                    Ok(debited.updated(&refunded.await?))
                })
            }
        };
        let reservation = self.clone();
        answer.then(move |settled| {
            reservation.0.changed(&changes, &settled);
            settled
        })
    }
}

impl Inner {
    /// Records how `changes` of the charges ended.
    fn changed(&self, changes: &[(u64, u64)], ended: &Result<Decision, Error>) {
        let failure = match ended {
            // What this process counts meanwhile is charged.
            Ok(decision) if !decision.outcomes().is_empty() => None,
            Ok(decision) => decision.failure(),
            Err(error) => Some(error),
        };
        if failure.is_some_and(|failure| !failure.kind().may_have_charged()) {
            for (charged, (before, after)) in lock(&self.state).charged.iter_mut().zip(changes) {
                // Unless it was changed again meanwhile.
                if charged == after {
                    *charged = *before;
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !state.refunds || state.is_settled {
            return;
        }
        if let Err(answer) = self.limiter.refund(&self.decision, u64::MAX).now()
            && let Some(runtime) = &self.runtime
        {
            runtime.spawn(answer);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", &self.0.decision)
            .field("is_settled", &self.is_settled())
            .finish_non_exhaustive()
    }
}
