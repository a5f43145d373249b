use std::{
    fmt,
    sync::{Arc, Mutex},
};

use super::{account::Account, background::Work, limiter::Limiter};
use crate::{
    base::{Answer, sync::lock},
    decision::Decision,
};

/// Units that a request has reserved, to be settled once its cost is known.
///
/// The request is charged an estimate. [`settle`](Self::settle) then refunds what it did not need, or debits what it
/// needed in addition. Use it if the cost is known only at the end, and charging only then would admit too many
/// concurrent requests: the tokens of a language model, the rows of a query.
///
/// [`record`](Self::record) stores what was used so far, for a handler that may be cancelled at any moment: a client
/// that closes its connection during a stream is charged what was recorded.
///
/// # When it ends
///
/// Cloning gives another handle on the same reservation. If [`settle`](Self::settle) was not called when the last
/// handle is dropped, the request is charged what was [recorded](Self::record). If nothing was recorded, the estimate
/// and what [`extend_to`](Self::extend_to) added stay charged, or are refunded after [`or_refund`](Self::or_refund). A
/// layer whose rule [reserves](crate::Rule::reserve) keeps a handle until the response's body has ended or been
/// dropped.
///
/// Calls to Redis are made in the background, one after the other, so they are completed even if their request is
/// cancelled. They run on the Tokio runtime in which the reservation is settled or dropped; outside a runtime, on the
/// one in which it was made. If this runtime has ended or is not driven, another one makes the calls, when its next
/// decision is made. With no runtime at all, a returned `Answer` makes its calls when awaited. [`Limiter::drain`] makes
/// all calls that are left, and waits for them before the process ends.
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
/// assert_eq!(reservation.decision().remaining(), Some(600));
/// assert_eq!(reservation.settle(150).await?.remaining(), Some(850));
///
/// // A stream is cut off after 30 tokens.
/// let decision = limiter.check(&tokens, &alice, 400).await?;
/// let reservation = Reservation::new(&limiter, &decision);
/// reservation.record(30);
/// drop(reservation);
/// assert_eq!(limiter.peek(&tokens, &alice, 1).await?.remaining(), Some(820));
///
/// // It needs more than the estimate.
/// let decision = limiter.check(&tokens, &alice, 20).await?;
/// let reservation = Reservation::new(&limiter, &decision);
/// assert_eq!(reservation.extend_to(120).await?.remaining(), Some(700));
/// assert_eq!(reservation.settle(130).await?.remaining(), Some(690));
///
/// // If it fails, it costs nothing.
/// let decision = limiter.check(&tokens, &alice, 400).await?;
/// drop(Reservation::new(&limiter, &decision).or_refund());
/// assert_eq!(limiter.peek(&tokens, &alice, 1).await?.remaining(), Some(690));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "dropping it settles the request at what was recorded or at the estimate, or refunds it"]
pub struct Reservation(Arc<Inner>);

/// What the handles share.
struct Inner {
    account: Arc<Account>,
    end: Mutex<End>,
}

/// How the reservation ends.
struct End {
    recorded: Option<u64>,
    refunds: bool,
    /// `None` once it is settled.
    open: Option<Work>,
}

impl Reservation {
    /// A reservation of the units that `decision` charged. `limiter` must be the one that made the decision, or a clone.
    ///
    /// It covers every policy of the decision; [`Decision::for_policy`] selects one. For a denied decision, it covers
    /// nothing.
    pub fn new(limiter: &Limiter, decision: &Decision) -> Self {
        let mut decision = decision.clone();
        // A permit is held by the decision itself.
        drop(decision.take_permit());
        let open = Some(limiter.begin_work());
        let end = Mutex::new(End { recorded: None, refunds: false, open });
        Self(Arc::new(Inner { account: Account::new(limiter, decision), end }))
    }

    /// Refunds what the reservation charged if its last handle is dropped before anything is settled or
    /// [recorded](Self::record), even if the client closes its connection, or the handler panics. Without this, the
    /// charge stays.
    ///
    /// The refund is sent to Redis in the background. If it fails, the same holds as for [`Limiter::refund`].
    pub fn or_refund(self) -> Self {
        lock(&self.0.end).refunds = true;
        self
    }

    /// The decision that charged the estimate.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.account.decision
    }

    /// Records that `units` were used so far, in total. This makes no call to the store. If the reservation
    /// [ends](#when-it-ends) without [`settle`](Self::settle), it settles at the units recorded last.
    ///
    /// Call it after each part of a stream: it only takes a lock, so it is cheap enough for every token. Until the
    /// stream ends, other requests see only the estimate as charged; if the cost may become much higher, also use
    /// [`extend_to`](Self::extend_to).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, Reservation};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (tokens, alice) = (Policy::new("tokens", Quota::per_hour(1_000)), Key::new("alice"));
    ///
    /// let decision = limiter.check(&tokens, &alice, 400).await?;
    /// let reservation = Reservation::new(&limiter, &decision).or_refund();
    /// for sent in 1..=7 {
    ///     reservation.record(sent);
    /// }
    /// // The client leaves.
    /// drop(reservation);
    /// assert_eq!(limiter.peek(&tokens, &alice, 1).await?.remaining(), Some(993));
    /// # Ok(())
    /// # }
    /// ```
    pub fn record(&self, units: u64) {
        lock(&self.0.end).recorded = Some(units);
    }

    /// Charges `units` in total instead of the estimate: [refunds](Limiter::refund) the rest, or
    /// [debits](Limiter::debit) what is missing. The decision shows what remains afterwards.
    ///
    /// It takes effect when it is called, even if the answer is dropped. A later call replaces the total. A debit
    /// charges at most what remains and what the policy allows as [debt](crate::Policy::debt); a later call with a
    /// higher total tries to charge the rest. A lower total refunds only units that were charged, by the estimate or by
    /// one of the reservation's latest 16 debits.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::debit`]. After an error, you can call it again: it repeats only what was [certainly not
    /// charged](crate::ErrorKind::may_have_charged).
    pub fn settle(&self, units: u64) -> Answer<Decision> {
        let open = lock(&self.0.end).open.take();
        let answer = self.charge(|_| units);
        // Not before: its calls count as work from now on.
        drop(open);
        answer
    }

    /// Charges `units` in total if that is more than the total so far, and does not settle. For a cost that grows, such
    /// as a stream's: call it after each part, and [`settle`](Self::settle) or [`record`](Self::record) the final cost.
    ///
    /// Like [`settle`](Self::settle), it takes effect when it is called. Calls made while another one is under way are
    /// combined into one call to the store.
    ///
    /// # Errors
    ///
    /// The same as [`settle`](Self::settle).
    pub fn extend_to(&self, units: u64) -> Answer<Decision> {
        self.charge(|wanted| wanted.max(units))
    }

    fn charge(&self, units: impl Fn(u64) -> u64) -> Answer<Decision> {
        let account = &self.0.account;
        account.limiter.enforced(|| account.charge(units))
    }

    /// Charges no more under the policies of `refunded`, which the layer refunds.
    pub(crate) fn fix(&self, refunded: &Decision) {
        self.0.account.fix(refunded);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let end = self.end.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(_open) = end.open.take() else { return };
        match end.recorded {
            Some(units) => drop(self.account.charge(|_| units)),
            None if end.refunds => drop(self.account.charge(|_| 0)),
            None => {}
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", self.decision())
            .field("is_settled", &lock(&self.0.end).open.is_none())
            .finish_non_exhaustive()
    }
}
