//! Decisions without HTTP.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    Action, Answer, Charge, Decision, Error, ErrorKind, FailureMode, Key, Policy, Store, decision::Claim,
    permit::Held,
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
    pub fn check(&self, policy: &Policy, key: &Key, cost: u64) -> Check {
        self.ask_one(Action::Take, Charge::new(policy, key, cost))
    }

    /// Takes all of `charges`, or refuses and takes nothing, in one atomic step. No charges at all are admitted,
    /// and nothing is asked of the store.
    ///
    /// The future resolves as that of [`check`](Self::check), and to an
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) error where two charges are on the same key of
    /// policies with the same name: add their costs instead.
    pub fn check_all(&self, charges: &[Charge]) -> Check {
        self.ask(Action::Take, charges)
    }

    /// What [`check`](Self::check) would say now. Takes nothing.
    ///
    /// With a cost of 0 it always admits, and shows what remains. The future resolves as that of
    /// [`check`](Self::check).
    pub fn peek(&self, policy: &Policy, key: &Key, cost: u64) -> Check {
        self.ask_one(Action::Peek, Charge::new(policy, key, cost))
    }

    /// What [`check_all`](Self::check_all) would say now. Takes nothing.
    pub fn peek_all(&self, charges: &[Charge]) -> Check {
        self.ask(Action::Peek, charges)
    }

    /// Takes up to `cost` units from `key` under `policy`: as many as there are.
    ///
    /// [`Outcome::granted`](crate::Outcome::granted) says how many. Where there is none, it is a refusal that
    /// names the wait until there is one. The future resolves as that of [`check`](Self::check).
    pub fn check_up_to(&self, policy: &Policy, key: &Key, cost: u64) -> Check {
        self.ask_one(Action::TakeUpTo, Charge::new(policy, key, cost))
    }

    /// Returns `units` units to `key`, the latest ones first, whichever request was charged for them: for an
    /// administrator. Never more than were charged and still count, so never above the capacity. To undo a decision, refund that
    /// decision with [`refund`](Self::refund): a late refund without it returns units that other requests
    /// were charged.
    ///
    /// The decision shows what remains then; [`Decision::failure`] says where nothing was given back. Units in
    /// use of a [`Concurrency`](crate::Concurrency) policy are given back by dropping their decision instead.
    /// The future resolves as that of [`check`](Self::check).
    pub fn refund_latest(&self, policy: &Policy, key: &Key, units: u64) -> Check {
        self.ask_one(Action::Refund, Charge::new(policy, key, units))
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
    ///     Constant, Decision, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection,
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
    pub fn charge_more(&self, decision: &Decision, units: u64) -> Check {
        self.ask_or_keep(Action::Take, decision, &charges_of(decision, units))
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
    /// [`Concurrency`](crate::Concurrency) policy are released by dropping the decision.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{FixedWindow, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::new(MemoryStore::new().manual_clock(clock.clone()));
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
    pub fn refund(&self, decision: &Decision, units: u64) -> Check {
        let mut claims = Vec::with_capacity(decision.outcomes().len());
        let charges: Vec<Charge> = decision
            .outcomes()
            .iter()
            .map(|outcome| {
                let claim = outcome.claim_refund(units);
                // Where there is nothing to refund, the decision shows what remains.
                let charge = Charge::refunding(outcome, claim.units())
                    .unwrap_or_else(|| Charge::new(outcome.policy(), outcome.key(), 0));
                claims.push(claim);
                charge
            })
            .collect();
        let mut check = self.ask_or_keep(Action::Refund, decision, &charges);
        check.claims = claims;
        check
    }

    /// Forgets what `key` was charged under `policy`.
    ///
    /// # Errors
    ///
    /// What the store failed with, whatever the policy's [`FailureMode`].
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        self.store.reset(policy, key).await
    }

    /// Whether the store can count as `policy` wants it to.
    pub(crate) fn accept(&self, policy: &Policy) -> Result<(), Error> {
        self.store.accept(policy)
    }

    /// As [`ask`](Self::ask), for one charge that the store may keep.
    pub(crate) fn ask_one(&self, action: Action, charge: Charge) -> Check {
        if charge.is_held() {
            return self.ask(action, &[charge]);
        }
        let mode = charge.policy.failure_mode();
        Check {
            answer: Some(self.store.decide_one(action, charge)),
            mode,
            held: None,
            claims: Vec::new(),
            polled: false,
        }
    }

    /// Takes what is charged.
    pub(crate) fn take_one(&self, charge: Charge) -> Asked {
        if charge.is_held() {
            return self.ask(Action::Take, &[charge]).into();
        }
        // As `ask_one`, without a `Check` where the decision is there: moving one costs as much as some decisions.
        let mode = charge.policy.failure_mode();
        match self.store.decide_one(Action::Take, charge).now() {
            Ok(decided) => Asked::Decided(decided.or_else(|error| fail(mode, error))),
            Err(answer) => Asked::Waits(Check {
                answer: Some(answer),
                mode,
                held: None,
                claims: Vec::new(),
                polled: false,
            }),
        }
    }

    fn ask(&self, action: Action, charges: &[Charge]) -> Check {
        // A peek, and what is given back, hold nothing.
        let takes = matches!(action, Action::Take | Action::TakeUpTo);
        if takes && charges.iter().any(Charge::is_held) {
            let charges: Vec<Charge> = charges.iter().map(Charge::taken_anew).collect();
            return self.ask_holding(action, &charges, Held::of(&self.store, &charges));
        }
        self.ask_holding(action, charges, None)
    }

    /// Asks for `charges`; where there are none, `decision` stands.
    fn ask_or_keep(&self, action: Action, decision: &Decision, charges: &[Charge]) -> Check {
        if charges.is_empty() {
            // It stands as it is, with its failure.
            let answer = Answer::ready(Ok(decision.clone()));
            return Check {
                answer: Some(answer),
                mode: FailureMode::Open,
                held: None,
                claims: Vec::new(),
                polled: false,
            };
        }
        self.ask(action, charges)
    }

    fn ask_holding(&self, action: Action, charges: &[Charge], held: Option<Held>) -> Check {
        let closed = charges.iter().any(|charge| charge.policy.failure_mode() == FailureMode::Closed);
        let answer = if charges.is_empty() {
            Answer::ready(Ok(Decision::new([])))
        } else if twice_the_same(charges) {
            Answer::ready(Err(Error::invalid(
                "two charges are on the same key of the same policy: add their costs, or name the policies apart",
            )))
        } else {
            self.store.decide(action, charges)
        };
        let mode = if closed { FailureMode::Closed } else { FailureMode::Open };
        Check { answer: Some(answer), mode, held, claims: Vec::new(), polled: false }
    }
}

fn charges_of(decision: &Decision, units: u64) -> Vec<Charge> {
    decision.outcomes().iter().map(|outcome| Charge::new(outcome.policy(), outcome.key(), units)).collect()
}

fn twice_the_same(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(i, one)| {
        charges[..i].iter().any(|other| one.key == other.key && one.policy.name() == other.policy.name())
    })
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

/// A decision on its way, from [`Limiter::check`]. See [`Limiter`] for an example.
#[must_use = "whether it is admitted is known when the check is awaited, and it may be charged before"]
#[derive(Debug)]
pub struct Check {
    /// There until it is done.
    answer: Option<Answer<Decision>>,
    mode: FailureMode,
    /// What an admission will hold.
    held: Option<Held>,
    /// What is about to be refunded.
    claims: Vec<Claim>,
    /// Whether a store that answers later may have been asked.
    polled: bool,
}

/// What a limiter was asked.
pub(crate) enum Asked {
    /// A store in process has decided.
    Decided(Result<Decision, Error>),
    Waits(Check),
}

impl From<Check> for Asked {
    fn from(mut check: Check) -> Self {
        match check.now() {
            Some(decided) => Self::Decided(decided),
            None => Self::Waits(check),
        }
    }
}

impl Check {
    /// The decision, where the store made it already: then it is taken.
    pub(crate) fn now(&mut self) -> Option<Result<Decision, Error>> {
        match self.answer.take()?.now() {
            Ok(decided) => Some(self.settle(decided)),
            Err(answer) => {
                self.answer = Some(answer);
                None
            }
        }
    }

    /// What the answer of the store comes to.
    fn settle(&mut self, decided: Result<Decision, Error>) -> Result<Decision, Error> {
        let held = self.held.take();
        let claims = mem::take(&mut self.claims);
        let error = match decided {
            Ok(mut decision) => {
                // A refusal holds nothing, so there is nothing to release.
                if let Some(held) = held.filter(|_| decision.is_allowed()) {
                    let permit = held.hold(&decision);
                    decision.hold(permit);
                }
                return Ok(decision);
            }
            Err(error) => error,
        };
        // Nothing was sent.
        if matches!(error.kind(), ErrorKind::StoreBusy | ErrorKind::InvalidConfig) {
            claims.into_iter().for_each(Claim::release);
        }
        // Where there is no answer, there may have been a charge.
        if let Some(held) = held
            && matches!(error.kind(), ErrorKind::StoreTimeout | ErrorKind::StoreUnreachable)
        {
            held.abandon(None);
        }
        fail(self.mode, error)
    }
}

/// What it comes to where the store gave no decision.
fn fail(mode: FailureMode, error: Error) -> Result<Decision, Error> {
    match mode {
        // A mistake in the program, not trouble with the store.
        _ if error.kind() == ErrorKind::InvalidConfig => Err(error),
        FailureMode::Open => Ok(Decision::failed_open(error)),
        FailureMode::Closed => Err(error),
    }
}

impl Future for Check {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.answer else {
            panic!("Check polled after completion");
        };
        let poll = Pin::new(answer).poll(cx);
        self.polled = true;
        let decided = ready!(poll);
        self.answer = None;
        Poll::Ready(self.settle(decided))
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        // A store that answers later is asked when it is polled.
        if !self.polled && self.answer.as_ref().is_some_and(|answer| !answer.is_ready()) {
            mem::take(&mut self.claims).into_iter().for_each(Claim::release);
        }
        if let (Some(answer), Some(held)) = (self.answer.take(), self.held.take())
            && (self.polled || answer.is_ready())
        {
            held.abandon(Some(answer));
        }
    }
}
