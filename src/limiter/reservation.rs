use std::{
    fmt, mem,
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
/// needed beyond that. Use it where the cost is known late and a charge at the end would admit too much until then: the
/// tokens of a language model, the rows of a query.
///
/// [`record`](Self::record) notes what was used so far, for a handler that may be cancelled at any moment: a client that
/// closes its connection during a stream is charged what was recorded.
///
/// # When it ends
///
/// Cloning gives another handle on the same reservation. When the last one is dropped and none was settled, the request is
/// charged what was [recorded](Self::record). If nothing was, the estimate stays charged, or is refunded after
/// [`or_refund`](Self::or_refund).
///
/// Calls to Redis are made in the background, one after the other, so they are completed although their request is
/// cancelled. They run on the Tokio runtime in which the reservation is settled or dropped; outside a runtime, on the one in
/// which it was made. Without either, an answer makes its calls when it is awaited, and a drop makes none.
/// [`Limiter::drain`] waits for them before the process ends.
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
    is_settled: bool,
    recorded: Option<u64>,
    refunds: bool,
    /// Until it is settled or dropped.
    open: Option<Work>,
}

impl Reservation {
    /// The reservation of the units that `decision`, made by `limiter`, has charged.
    ///
    /// It covers every policy of the decision; [`Decision::for_policy`] selects one. Of a denial it covers nothing.
    pub fn new(limiter: &Limiter, decision: &Decision) -> Self {
        let mut decision = decision.clone();
        // A permit is held by the decision itself.
        drop(decision.take_permit());
        let open = Some(limiter.begin_work());
        let end = Mutex::new(End { is_settled: false, recorded: None, refunds: false, open });
        Self(Arc::new(Inner { account: Account::new(limiter, decision), end }))
    }

    /// Refunds the estimate if the last handle is dropped before anything is settled or [recorded](Self::record), even if
    /// the client closes its connection, or the handler panics. Without this, the estimate stays charged.
    ///
    /// The refund is sent to Redis in the background. If it fails, it is repeated as [`Limiter::refund`] does.
    pub fn or_refund(self) -> Self {
        lock(&self.0.end).refunds = true;
        self
    }

    /// The decision that charged the estimate.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        self.0.account.decision()
    }

    /// Whether [`settle`](Self::settle) was called.
    #[doc(hidden)]
    #[must_use]
    pub fn is_settled(&self) -> bool {
        lock(&self.0.end).is_settled
    }

    /// Records that `units` were used so far, in total. Nothing is sent: when the last handle is dropped and none was
    /// [settled](Self::settle), it settles at the units that were recorded last.
    ///
    /// Call it after each part of a stream. It takes a lock and makes no call, so it suits every token. Other requests see
    /// only the estimate until the stream ends; use [`extend_to`](Self::extend_to) too if it may become much more.
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
    /// [debits](Limiter::debit) what is missing. The decision shows what remains then.
    ///
    /// It takes effect when it is called, even if the answer is dropped. A later call replaces the total. Units that
    /// were not granted, because a debit exceeded what remained, are not refunded, and a later call with a higher total
    /// debits them again. Units of a debit are refunded like units of the estimate, if it is one of the latest 16 of
    /// the reservation.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::debit`]. Call it again after an error that [may not have
    /// charged](crate::ErrorKind::may_have_charged). Units that may have been charged, or refunded, are neither debited
    /// again nor refunded.
    pub fn settle(&self, units: u64) -> Answer<Decision> {
        let open = {
            let mut end = lock(&self.0.end);
            end.is_settled = true;
            end.open.take()
        };
        let answer = self.charge(|_| units);
        // Not before: its calls count as work from now on.
        drop(open);
        answer
    }

    /// Charges `units` in total if that is more than the estimate, and does not settle. For a cost that grows, such as
    /// a stream's: call it after each part, and [`settle`](Self::settle) or [`record`](Self::record) the end.
    ///
    /// As [`settle`](Self::settle), it takes effect when it is called. Calls that are made while one is under way share
    /// the next one.
    ///
    /// # Errors
    ///
    /// The same as [`settle`](Self::settle).
    pub fn extend_to(&self, units: u64) -> Answer<Decision> {
        self.charge(|wanted| wanted.max(units))
    }

    fn charge(&self, units: impl Fn(u64) -> u64) -> Answer<Decision> {
        let account = &self.0.account;
        account.limiter().enforced(|| account.charge(units))
    }

    /// Charges no more under the policies of `refunded`, which is refunded because of the response.
    pub(crate) fn fix(&self, refunded: &Decision) {
        self.0.account.fix(refunded);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let end = self.end.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _open = mem::take(&mut end.open);
        match end.recorded {
            _ if end.is_settled => {}
            Some(units) => drop(self.account.charge(|_| units)),
            None if end.refunds => self.account.refund(),
            None => {}
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", self.decision())
            .field("is_settled", &self.is_settled())
            .finish_non_exhaustive()
    }
}
