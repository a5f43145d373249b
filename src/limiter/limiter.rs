use std::{fmt, sync::Arc};

use super::{pending::Pending, permit::Holding};
use crate::{
    answer::Answer,
    decision::{Charge, Decision},
    error::{Error, ErrorKind},
    key::Key,
    policy::{FailureMode, Policy},
    store::{Action, Store},
    util::per_thread::Apart,
};

/// Decides, with no HTTP in it: for jobs, message consumers, websockets, and handlers that charge more
/// once they have looked at the request. [`RateLimitLayer`](crate::RateLimitLayer) is built on it.
///
/// Cloning is cheap and gives another handle on the same store.
///
/// # When the store fails
///
/// A check whose policies all say [`Open`](FailureMode::Open) is admitted, with the failure in
/// [`Decision::failure`]. One with a policy that says [`Closed`](FailureMode::Closed) is an error.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let mails = Policy::new("mails", Quota::per_hour(100));
/// let tenant = Key::new("acme");
///
/// // A batch of 60 mails, and another.
/// let first = limiter.check(&mails, &tenant, 60).await?;
/// assert!(first.is_allowed());
/// assert_eq!(first.outcomes()[0].remaining(), 40);
/// assert!(!limiter.check(&mails, &tenant, 60).await?.is_allowed());
///
/// // Looking charges nothing.
/// assert!(limiter.peek(&mails, &tenant, 40).await?.is_allowed());
/// assert_eq!(limiter.peek(&mails, &tenant, 0).await?.outcomes()[0].remaining(), 40);
///
/// limiter.reset(&mails, &tenant).await?;
/// assert!(limiter.check(&mails, &tenant, 100).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    store: Arc<dyn Store>,
}

impl Limiter {
    /// A limiter over the counts in `store`.
    #[must_use]
    pub fn new(store: impl Store) -> Self {
        Self { store: Arc::new(store) }
    }

    /// Takes `cost` units from `key` under `policy`, or refuses and takes nothing.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) decides before this returns, a
    /// [`RedisStore`](crate::RedisStore) when the future is polled, unless the units are on
    /// [lease](Policy::leased); one that is dropped before it is done may have charged.
    ///
    /// The future resolves to
    ///
    /// * `Ok`: the [`Decision`], admitting or refusing.
    /// * `Err`: the store failed and the policy is [`Closed`](FailureMode::Closed) then.
    pub fn check(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.decide_one(Action::Charge, Charge::new(policy, key, cost))
    }

    /// Takes all of `charges`, or refuses and takes nothing, in one atomic step. No charges at all are admitted,
    /// and nothing is asked of the store.
    ///
    /// The future resolves as that of [`check`](Self::check), and to an
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) error where two charges are on the same key of
    /// policies with the same name: add their costs instead.
    pub fn check_all(&self, charges: &[Charge]) -> Answer<Decision> {
        self.decide(Action::Charge, charges)
    }

    /// What [`check`](Self::check) would say now. Takes nothing.
    ///
    /// With a cost of 0 it always admits, and shows what remains. The future resolves as that of
    /// [`check`](Self::check).
    pub fn peek(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.decide_one(Action::Peek, Charge::new(policy, key, cost))
    }

    /// What [`check_all`](Self::check_all) would say now. Takes nothing.
    pub fn peek_all(&self, charges: &[Charge]) -> Answer<Decision> {
        self.decide(Action::Peek, charges)
    }

    /// Takes up to `cost` units from `key` under `policy`: as many as there are.
    ///
    /// [`Outcome::granted`](crate::decision::Outcome::granted) says how many. Where there is none, it is a refusal that
    /// names the wait until there is one. The future resolves as that of [`check`](Self::check).
    pub fn check_up_to(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.decide_one(Action::ChargeUpTo, Charge::new(policy, key, cost))
    }

    /// Returns `units` units to `key`, the latest ones first, whichever request was charged for them: for an
    /// administrator. Never more than were charged and still count, so never above the capacity. To undo a decision, refund that
    /// decision with [`refund`](Self::refund): a late refund without it returns units that other requests
    /// were charged.
    ///
    /// The decision shows what remains then; [`Decision::failure`] says where nothing was given back. Units in
    /// use of a [`Concurrency`](crate::algorithm::Concurrency) policy are given back by dropping their decision instead.
    /// The future resolves as that of [`check`](Self::check).
    pub fn refund_latest(&self, policy: &Policy, key: &Key, units: u64) -> Answer<Decision> {
        self.decide_one(Action::Refund, Charge::new(policy, key, units))
    }

    /// Takes `units` units more from every key that `decision` was over, under the same policies: for a
    /// handler that knows the cost only after it has looked at the request, or has answered it. All or
    /// nothing, as [`check_all`](Self::check_all); after a decision that the [failed](Decision::failure) store
    /// did not make, nothing is asked and everything admitted.
    ///
    /// The response tells the client of its own keys, those of the layer: a decision over somebody else's under the
    /// same policy, from [`check`](Self::check), changes nothing in the fields.
    ///
    /// # Example
    ///
    /// ```
    /// # #[cfg(feature = "axum")] mod example {
    /// use axum::{Router, body::Body, response::IntoResponse, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{
    ///     key::Constant, Decision, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection,
    /// };
    ///
    /// // One unit for the request, and one more for each line of its body.
    /// async fn import(decision: Decision, limiter: Limiter, body: String) -> Result<impl IntoResponse, Rejection> {
    ///     let lines = body.lines().count() as u64;
    ///     let decision = limiter.charge_more(&decision, lines).await?.into_result()?;
    ///     Ok((decision, "done"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # pub async fn main() {
    /// let policy = Policy::new("lines", Quota::per_hour(5));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Constant::new("all"));
    /// let app = Router::new().route("/", post(import)).layer(layer);
    ///
    /// let send = async |body: &'static str| {
    ///     app.clone().oneshot(Request::post("/").body(Body::from(body)).unwrap()).await.unwrap()
    /// };
    /// let done = send("a\nb\n").await;
    /// assert_eq!(done.headers()["ratelimit"], r#""lines";r=2;t=1440"#);
    /// // The request itself is admitted, its two lines are not.
    /// let refused = send("c\nd\n").await;
    /// assert_eq!(refused.status(), 429);
    /// assert_eq!(refused.headers()["retry-after"], "720");
    /// # }
    /// # }
    /// # #[cfg(feature = "axum")] example::main();
    /// ```
    pub fn charge_more(&self, decision: &Decision, units: u64) -> Answer<Decision> {
        self.decide_more(Action::Charge, decision, &charges_of(decision, units))
    }

    /// Refunds `units` units of what `decision` charged each of its keys: as many as still count.
    ///
    /// The refund is tied to the charge, so it never returns units that another request was charged: nothing once
    /// the charge's window has ended, its bucket has drained past it or its entry has left the log, and in all never
    /// more than the decision charged. So the requests that were not refunded keep within the limit by themselves,
    /// whatever was refunded, and when. [`charge_more`](Self::charge_more) gives a decision of its own, to be refunded
    /// by itself. A denied decision, a peek, and one that the [failed](Decision::failure) store did not make charged
    /// nothing and have nothing to refund. A refund that fails is not made up for: what it may have returned is not
    /// returned again. Nor does it know of a [`reset`](Self::reset), of a bucket's quota that was changed, or of a
    /// clock that stepped back: after one of these it can return units of charges that came later. Units in use of a
    /// [`Concurrency`](crate::algorithm::Concurrency) policy are released by dropping the decision.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{algorithm::FixedWindow, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    /// let logins = Policy::new("logins", Quota::per_minute(5)).algorithm(FixedWindow::anchored());
    /// let alice = Key::new("alice");
    ///
    /// // Only failed logins count: a login that succeeds is refunded.
    /// let first = limiter.check(&logins, &alice, 1).await?;
    /// assert_eq!(limiter.refund(&first, 1).await?.remaining(), Some(5));
    ///
    /// // One that ends in the next window has nothing to return there.
    /// let slow = limiter.check(&logins, &alice, 1).await?;
    /// clock.advance(Duration::from_secs(60));
    /// limiter.check(&logins, &alice, 1).await?;
    /// assert_eq!(limiter.refund(&slow, 1).await?.remaining(), Some(4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn refund(&self, decision: &Decision, units: u64) -> Answer<Decision> {
        let mut claims = Vec::with_capacity(decision.outcomes().len());
        let charges: Vec<Charge> = decision
            .outcomes()
            .iter()
            .map(|outcome| {
                let claim = outcome.claim_refund(units);
                // Where there is nothing to refund, the decision shows what remains.
                let charge = outcome.refund(claim.units());
                claims.push(claim);
                charge.unwrap_or_else(|| Charge::new(outcome.policy(), outcome.key(), 0))
            })
            .collect();
        if charges.is_empty() {
            return Answer::ready(Ok(decision.clone()));
        }
        Pending::new(mode(&charges), None, claims).finish(self.ask(Action::Refund, &charges))
    }

    /// Forgets what `key` was charged under `policy`.
    ///
    /// # Errors
    ///
    /// What the store failed with, whatever the policy's [`FailureMode`].
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        self.store.reset(policy, key).await
    }

    /// Whether a layer that limits by `others` already can limit by `policy` as well.
    pub(crate) fn accept<'a>(
        &self,
        policy: &Policy,
        mut others: impl Iterator<Item = &'a Policy>,
    ) -> Result<(), Error> {
        self.store.accept(policy)?;
        if others.any(|other| other.name() == policy.name()) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("the layer has two policies named {:?}: give each its own name", policy.name()),
            ));
        }
        Ok(())
    }

    /// [`check_all`](Self::check_all) for one charge, which the store may keep.
    pub(crate) fn check_charge(&self, charge: Charge) -> Answer<Decision> {
        self.decide_one(Action::Charge, charge)
    }

    fn decide_one(&self, action: Action, charge: Charge) -> Answer<Decision> {
        if charge.needs_permit() {
            return self.decide(action, &[charge]);
        }
        let mode = charge.policy().failure_mode();
        finish(self.store.decide_one(action, charge), mode)
    }

    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        // A peek and a refund hold no permits.
        let admits = matches!(action, Action::Charge | Action::ChargeUpTo);
        if admits && charges.iter().any(Charge::needs_permit) {
            let charges: Vec<Charge> = charges.iter().map(Charge::anew).collect();
            let holding = Holding::of(&self.store, &charges);
            let pending = Pending::new(mode(&charges), holding, Vec::new());
            return pending.finish(self.ask(action, &charges));
        }
        finish(self.ask(action, charges), mode(charges))
    }

    /// [`decide`](Self::decide); where there are no charges, `decision` stands as it is, with its failure.
    fn decide_more(&self, action: Action, decision: &Decision, charges: &[Charge]) -> Answer<Decision> {
        if charges.is_empty() { Answer::ready(Ok(decision.clone())) } else { self.decide(action, charges) }
    }

    fn ask(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if charges.is_empty() {
            return Answer::ready(Ok(Decision::new([])));
        }
        if any_key_twice(charges) {
            return Answer::ready(Err(Error::invalid(
                "two charges are on the same key of the same policy: add their costs, or name the policies apart",
            )));
        }
        self.store.decide(action, charges)
    }
}

/// The answer of a store that is asked for nothing that would have to be undone.
fn finish(answer: Answer<Decision>, mode: FailureMode) -> Answer<Decision> {
    answer.then_fn(match mode {
        FailureMode::Open => |decided| decided.or_else(|error| FailureMode::Open.decide(error)),
        FailureMode::Closed => |decided| decided.or_else(|error| FailureMode::Closed.decide(error)),
    })
}

/// The strictest mode of the policies.
fn mode(charges: &[Charge]) -> FailureMode {
    let closed = charges.iter().any(|charge| charge.policy().failure_mode() == FailureMode::Closed);
    if closed { FailureMode::Closed } else { FailureMode::Open }
}

fn charges_of(decision: &Decision, units: u64) -> Vec<Charge> {
    decision.outcomes().iter().map(|outcome| Charge::new(outcome.policy(), outcome.key(), units)).collect()
}

fn any_key_twice(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(i, one)| {
        charges[..i]
            .iter()
            .any(|other| one.key() == other.key() && one.policy().name() == other.policy().name())
    })
}

impl Apart for Limiter {
    fn apart(&self) -> Self {
        Self::new(self.store.clone())
    }
}

impl<S: Store> From<S> for Limiter {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}
