use std::{
    fmt,
    future::Future,
    pin::Pin,
    slice,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    background::{Background, PermitRequest, Work},
    fallback::{Pending, Shared, User, counted},
};
use crate::{
    base::{Answer, Error, ErrorKind, Now},
    decision::{Charge, Charges, Decision, Outcome},
    key::Key,
    policy::{Enforcement, Policy},
    store::{Action, LocalCounts, ManualClock, Store},
};

/// A charge that the store decides. What completes it needs no allocation.
pub(crate) struct Deciding {
    answer: Answer<Decision>,
    /// To decide in the store's place if it fails. `None` if the answer is complete as it is.
    charges: Option<Charges>,
}

/// A decision, or a charge that is under way.
type Begun = Now<Result<Decision, Error>, Deciding>;

impl Deciding {
    #[inline]
    fn counting(action: Action, answer: Answer<Decision>) -> Begun {
        match answer.now() {
            Now::Ready(decided) => Now::Ready(counted(action, decided)),
            Now::Later(answer) => {
                Now::Later(Self::from(answer.then(move |decided| counted(action, decided))))
            }
        }
    }
}

impl From<Answer<Decision>> for Deciding {
    fn from(answer: Answer<Decision>) -> Self {
        Self { answer, charges: None }
    }
}

/// Makes decisions without a layer: for jobs, message consumers, WebSockets, and handlers that learn the cost while they
/// process a request.
///
/// [`RateLimitLayer`](crate::RateLimitLayer) is built on it. Cloning is cheap and gives another handle on the same
/// store.
///
/// # Which call when
///
/// | you want to | call | if too few units remain |
/// |---|---|---|
/// | charge one policy | [`check`](Self::check) | denies, charges nothing |
/// | charge several policies or keys, all or nothing | [`check_all`](Self::check_all) | denies, charges nothing |
/// | charge what remains, up to a number | [`check_up_to`](Self::check_up_to) | charges fewer; denies if none remain |
/// | charge as soon as possible | [`wait`](Self::wait) | waits, or denies if that takes longer than the longest wait you allow |
/// | look without charging | [`peek`](Self::peek), [`peek_all`](Self::peek_all) | denies |
/// | charge more to all of a request's keys, before the work | [`charge_more`](Self::charge_more) | denies, charges nothing |
/// | charge more under some rules of a layer | [`Reservation::charge_more`](crate::Reservation::charge_more) | denies, charges nothing |
/// | charge the actual cost to a request's keys, after the work | [`debit`](Self::debit) | charges what remains, and [debt](Policy::max_debt); admits |
/// | charge an estimate first, the cost later | [`Reservation`](crate::Reservation) | the check denies; the settlement is a debit or a refund |
/// | return units | [`refund`](Self::refund) | |
/// | reset, ban or unban a key | [`operator`](Self::operator) | |
///
/// # When the store fails
///
/// The [`FailureMode`](crate::FailureMode) of the policies decides, and [`Decision::failure`] has the cause. Policies
/// that are [`Local`](crate::FailureMode::Local), the default, are counted in this process. Policies that are
/// [`Open`](crate::FailureMode::Open) admit. If one is [`Closed`](crate::FailureMode::Closed), the check fails with an
/// error.
///
/// During an outage, limiters on clones of one [`RedisStore`](crate::RedisStore), or clones of one limiter on any store,
/// share their in-process counts, so layers that share a limit keep sharing it.
///
/// # In a handler
///
/// The limiter of a request follows the [`Enforcement`] that its layer had when the request arrived. Under
/// [`ReportOnly`](Enforcement::ReportOnly) its checks, peeks and debits run as usual and always admit:
/// [`Decision::outcomes`] shows which policies denied. Under [`Off`](Enforcement::Off) they admit without using the
/// store.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let mails = Policy::new("mails", Quota::per_hour(100));
/// let tenant = Key::new("acme");
///
/// // The first 60 mails are admitted, the next 60 are denied.
/// let first = limiter.check(&mails, &tenant, 60).await?;
/// assert!(first.is_admitted());
/// assert_eq!(first.outcomes()[0].remaining(), 40);
/// assert!(!limiter.check(&mails, &tenant, 60).await?.is_admitted());
///
/// // A peek charges nothing.
/// assert!(limiter.peek(&mails, &tenant, 40).await?.is_admitted());
/// assert_eq!(limiter.peek(&mails, &tenant, 0).await?.outcomes()[0].remaining(), 40);
///
/// // Two policies, all or nothing: the day has room for 100, the hour does not.
/// let daily = Policy::new("daily", Quota::per_day(1_000));
/// let both = [Charge::new(&mails, &tenant, 100), Charge::new(&daily, &tenant, 100)];
/// assert!(!limiter.peek_all(&both).await?.is_admitted());
/// assert!(!limiter.check_all(&both).await?.is_admitted());
/// assert_eq!(limiter.peek(&daily, &tenant, 0).await?.remaining(), Some(1_000));
/// // As many as remain.
/// assert_eq!(limiter.check_up_to(&mails, &tenant, 100).await?.outcomes()[0].granted(), 40);
///
/// limiter.operator().reset(&mails, &tenant).await?;
/// assert!(limiter.check(&mails, &tenant, 100).await?.is_admitted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(super) shared: Arc<Shared>,
    /// `None` [for work](Self::for_work).
    #[expect(dead_code, reason = "only dropped")]
    user: Option<Arc<User>>,
    /// The enforcement of the request whose handler has this limiter.
    enforcement: Enforcement,
}

impl Limiter {
    /// A limiter with the counts in `store`.
    #[must_use]
    pub fn new(store: impl Store) -> Self {
        let backend = store.backend();
        let local = backend.and_then(|backend| backend.0.local_counts());
        let local = local.unwrap_or_else(|| LocalCounts::new(false));
        // A store around another one may fail, and sees every decision.
        let unwrapped = backend.filter(|_| store.inner().is_none());
        let decide_one = unwrapped.and_then(|backend| backend.0.decide_one());
        let background = Background::new();
        let user = Some(Arc::new(User(background.clone())));
        let shared = Shared { store: Arc::new(store), decide_one, local, background };
        Self { shared: Arc::new(shared), user, enforcement: Enforcement::On }
    }

    /// This limiter under another [`Enforcement`]. Defaults to [`On`](Enforcement::On) for a new limiter; in a handler, to
    /// the enforcement that the layer had when the request arrived.
    ///
    /// So a handler can enforce a limit under a layer that only reports, and the other way around. A layer takes over the
    /// enforcement of its limiter, unless it [sets its own](crate::RateLimitLayer::enforcement).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, policy::Enforcement};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (policy, alice) = (Policy::new("api", Quota::per_hour(5)), Key::new("alice"));
    /// assert!(!limiter.check(&policy, &alice, 6).await?.is_admitted());
    ///
    /// let reporting = limiter.under(Enforcement::ReportOnly);
    /// let decision = reporting.check(&policy, &alice, 6).await?;
    /// assert!(decision.is_admitted() && decision.outcomes()[0].verdict().is_denied());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn under(&self, enforcement: Enforcement) -> Self {
        Self { enforcement, ..self.clone() }
    }

    /// A clone for work in the background, which does not count as a user. Otherwise, the limiter and work that no
    /// runtime does would keep each other.
    pub(super) fn for_work(&self) -> Self {
        Self { user: None, ..self.clone() }
    }

    /// Its [enforcement](Self::under).
    pub(crate) const fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    /// The decision of `decide`, which admits unless this limiter enforces it.
    pub(super) fn enforced(&self, decide: impl FnOnce() -> Answer<Decision>) -> Answer<Decision> {
        match self.enforcement {
            Enforcement::On => decide(),
            Enforcement::ReportOnly => decide().then(|decided| match decided {
                Ok(decision) => Ok(decision.admitted()),
                // A mistake in the call.
                Err(error) if error.kind() == ErrorKind::InvalidConfig => Err(error),
                Err(error) => Ok(Decision::failed_open(error)),
            }),
            Enforcement::Off => Answer::ready(Ok(Decision::not_limited())),
        }
    }

    /// Charges `key` with `cost` units under `policy`, or denies and charges nothing.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) decides before this method returns. A [`RedisStore`](crate::RedisStore)
    /// decides when the future is polled, except for units on [lease](Policy::max_lease) and denials from the deny cache. A
    /// future that is dropped early may have charged.
    ///
    /// # Errors
    ///
    /// The future resolves to an error if the store failed and the policy is [`Closed`](crate::FailureMode::Closed), to
    /// an [`InvalidConfig`](ErrorKind::InvalidConfig) error if the store does not support the policy, and to a
    /// [`MissingSetup`](ErrorKind::MissingSetup) error if a `RedisStore` is used outside a Tokio runtime. A denial is
    /// not an error.
    ///
    pub fn check(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.enforced(|| self.decide(Action::Charge, Charge::new(policy, key, cost)))
    }

    /// Makes all of `charges`, or denies and charges nothing, in one atomic step. In a Redis Cluster, charges to
    /// different keys are decided [one after the other](crate::guide::redis#cluster). An empty list is admitted without
    /// the store.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check), and an [`InvalidConfig`](ErrorKind::InvalidConfig) error if there are more
    /// than 256 charges, or if two of them have the same key and the same policy name: then add their costs.
    pub fn check_all(&self, charges: &[Charge]) -> Answer<Decision> {
        self.enforced(|| self.decide(Action::Charge, charges))
    }

    /// Decides as [`check`](Self::check) would now, and charges nothing.
    ///
    /// A cost of 0 is always admitted, and the decision shows what remains. Errors are the same as for
    /// [`check`](Self::check).
    pub fn peek(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.enforced(|| self.decide(Action::Peek, Charge::new(policy, key, cost)))
    }

    /// Decides as [`check_all`](Self::check_all) would now, and charges nothing.
    pub fn peek_all(&self, charges: &[Charge]) -> Answer<Decision> {
        self.enforced(|| self.decide(Action::Peek, charges))
    }

    /// Charges `key` with as many units as remain under `policy`, up to `cost`.
    ///
    /// [`Outcome::granted`](crate::decision::Outcome::granted) is the number of units charged. If none remain, the
    /// request is denied, with the wait until one does. Errors are the same as for [`check`](Self::check).
    pub fn check_up_to(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.enforced(|| self.decide(Action::ChargeUpTo, Charge::new(policy, key, cost)))
    }

    /// Charges `units` more units to every key of `decision`, under the same policies, all or nothing. For a handler
    /// that learns the cost from the request or from its own response.
    ///
    /// In a layer with several rules, this charges all of them, including a limit on addresses. To charge only some, let those
    /// rules [reserve](crate::Rule::reserve) and use [`Reservation::charge_more`](crate::Reservation::charge_more), or
    /// select a policy with [`Decision::for_policy`].
    ///
    /// If `decision` has no outcomes, because no layer charged the request, or because the store
    /// [failed](Decision::failure) and the policies are [`Open`](crate::FailureMode::Open), this admits without using
    /// the store. Errors are the same as for [`check_all`](Self::check_all).
    ///
    /// Return the new decision from the handler, and the layer writes it into the response's headers. You can also
    /// return a decision of [`check`](Self::check): its outcomes under other policies are added to the headers. For
    /// another key under the same policy, the headers keep the outcome of the request's own key.
    ///
    /// # Example
    ///
    /// ```
    /// # #[cfg(feature = "axum")] mod example {
    /// use axum::{Router, body::Body, response::IntoResponse, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{Decision, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection};
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
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all"));
    /// let app = Router::new().route("/", post(import)).layer(layer);
    ///
    /// let send = async |body: &'static str| {
    ///     app.clone().oneshot(Request::post("/").body(Body::from(body)).unwrap()).await.unwrap()
    /// };
    /// let done = send("a\nb\n").await;
    /// assert_eq!(done.headers()["ratelimit"], r#""lines";r=2;t=1440"#);
    /// // The request itself is admitted. The charge for its two lines is denied.
    /// let rejection = send("c\nd\n").await;
    /// assert_eq!(rejection.status(), 429);
    /// assert_eq!(rejection.headers()["retry-after"], "720");
    /// # }
    /// # }
    /// # #[cfg(feature = "axum")] example::main();
    /// ```
    pub fn charge_more(&self, decision: &Decision, units: u64) -> Answer<Decision> {
        self.enforced(|| match &*charges_of(decision, units) {
            // Nothing is charged. If the decision was made in an outage, it has the failure.
            [] => Answer::ready(Ok(decision.clone())),
            charges => self.decide(Action::Charge, charges),
        })
    }

    /// Charges `units` more units to every key of `decision`, under the same policies, regardless of what remains. For
    /// a cost that is known only after the work is done: the bytes of a response, the tokens of a model.
    ///
    /// It charges what remains, and beyond that as much as the policy allows as [debt](Policy::max_debt). So it always
    /// admits; [`Outcome::granted`] is the number of units charged, and later requests are denied until the units are
    /// replenished. [`charge_more`](Self::charge_more) instead denies, and charges nothing, if too few units remain.
    /// Permits of a [`Concurrency`](crate::algorithm::Concurrency) policy are not debited, nor is a
    /// [shadow](Policy::shadow) that would have denied the request.
    ///
    /// To debit only one of several policies, select it with [`Decision::for_policy`]. To debit rules, whose policies may
    /// be looked up, or to charge an estimate first, use a [`Reservation`](crate::Reservation).
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check). If the store fails, the [failure mode](crate::FailureMode) of the policies
    /// applies. A debit that fails is not repeated: it may have been charged.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let bytes = Policy::new("bytes", Quota::per_day(1_000));
    /// let alice = Key::new("alice");
    ///
    /// let request = limiter.check(&bytes, &alice, 1).await?;
    /// let response = "x".repeat(2_000);
    /// let debited = limiter.debit(&request, response.len() as u64).await?;
    /// assert!(debited.is_admitted());
    /// assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (999, Some(0)));
    /// assert!(!limiter.check(&bytes, &alice, 1).await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    pub fn debit(&self, decision: &Decision, units: u64) -> Answer<Decision> {
        self.enforced(|| self.debit_each(decision, |_| units))
    }

    /// Debits the given number of units of each outcome.
    pub(super) fn debit_each(
        &self,
        decision: &Decision,
        units: impl Fn(&Outcome) -> u64,
    ) -> Answer<Decision> {
        let is_debited = |one: &&Outcome| !(one.policy().has_permits() || one.is_shadow() && one.is_denied());
        let debit =
            |one: &Outcome| (one.policy().clone(), Charge::new(one.policy().debits(), one.key(), units(one)));
        let (policies, charges): (Vec<Policy>, Vec<Charge>) =
            decision.all_outcomes().iter().filter(is_debited).map(debit).unzip();
        if charges.is_empty() {
            return Answer::ready(Ok(decision.clone()));
        }
        self.decide(Action::Debit, charges).then(move |debited| Ok(of_policies(&policies, debited?)))
    }

    /// Refunds up to `units` units that `decision` charged to each of its keys, if they still count.
    ///
    /// A refund does not return units that another request was charged, with the exceptions below. Units stop counting
    /// when the charge's window ends, when its bucket has drained past the charge, or when its entry leaves the log.
    /// All refunds of a decision together never exceed its charge.
    ///
    /// Windows, the log and permits return all of that. So do buckets if units are refunded in the order of their charges.
    /// In another order, a bucket may keep a part charged: of 50 requests at one moment, under 50 units per second, and
    /// refunded in random order within 50 ms, it kept a third.
    ///
    /// A denied decision or a peek has nothing to refund. A decision from [`charge_more`](Self::charge_more) is
    /// refunded separately. A permit of a [`Concurrency`](crate::algorithm::Concurrency) policy is not refunded; drop
    /// its decision instead.
    ///
    /// If the store [failed](Decision::failure) and this process made the decision, the units are refunded in this
    /// process, or in the store if it was charged for them in the meantime. A refund that fails is not repeated,
    /// because it may have been carried out. If it was certainly not sent and the policy is
    /// [`Local`](crate::FailureMode::Local), it is sent once the store answers.
    ///
    /// A refund does not detect a [`reset`](super::Operator::reset), a changed quota of a bucket, or a clock that
    /// stepped back. After one of these it can return units of later charges.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::FixedWindow, store::ManualClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    /// let searches = Policy::new("searches", Quota::per_minute(5)).algorithm(FixedWindow::anchored());
    /// let alice = Key::new("alice");
    ///
    /// // A search that failed does not count.
    /// let first = limiter.check(&searches, &alice, 1).await?;
    /// assert_eq!(limiter.refund(&first, 1).await?.remaining(), Some(5));
    ///
    /// // The window of this charge ends before the refund, so there is nothing to refund.
    /// let slow = limiter.check(&searches, &alice, 1).await?;
    /// clock.advance(Duration::from_secs(60));
    /// limiter.check(&searches, &alice, 1).await?;
    /// assert_eq!(limiter.refund(&slow, 1).await?.remaining(), Some(4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn refund(&self, decision: &Decision, units: u64) -> Answer<Decision> {
        self.refund_each(decision, |_| units).1
    }

    /// Refunds the given number of units of each outcome. Also returns how many are refunded.
    pub(super) fn refund_each(
        &self,
        decision: &Decision,
        units: impl Fn(&Outcome) -> u64,
    ) -> (Vec<u64>, Answer<Decision>) {
        let (mut refunded, mut claims) = (Vec::new(), Vec::new());
        let (mut charges, mut here) = (Vec::new(), Vec::new());
        for outcome in decision.all_outcomes() {
            // A denial charges nothing. In a Cluster, what it charged in some slots is refunded before it is returned.
            let units = if decision.is_denied() { 0 } else { units(outcome) };
            let claim = outcome.claim_refund(units);
            if let Some(local) = outcome.local() {
                refunded.push(claim.units);
                let (remains, of_store) = self.shared.local.refund(outcome, local, claim.units);
                match of_store {
                    Some(charge) => charges.push(charge),
                    None => here.push(remains),
                }
                continue;
            }
            // With nothing to refund, a charge of 0 shows what remains.
            let charge = outcome.refund(claim.units);
            refunded.push(if charge.is_some() { claim.units } else { 0 });
            claims.push(claim);
            charges.push(charge.unwrap_or_else(|| Charge::new(outcome.policy(), outcome.key(), 0)));
        }
        let here = (!here.is_empty()).then(|| Decision::refunded_locally(here, decision));
        if charges.is_empty() {
            return (refunded, Answer::ready(Ok(here.unwrap_or_else(|| decision.clone()))));
        }
        let answer = self.dispatch(Action::Refund, &charges);
        let answer = Pending::refund(&self.shared.background, &charges, claims).finish(answer);
        let shared = self.shared.clone();
        let answer = answer.then(move |decided| shared.complete(Action::Refund, &charges, decided));
        let answer = match here {
            Some(here) => answer.map(move |refunded| here.updated(&refunded)),
            None => answer,
        };
        (refunded, answer)
    }

    /// Checks whether the store supports the algorithm of `policy`. A layer does so when it is built.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if it does not.
    pub fn supports(&self, policy: &Policy) -> Result<(), Error> {
        self.shared.store.backend().map_or(Ok(()), |backend| backend.0.supports(policy))
    }

    /// The clock that a test has set in place of the store's.
    pub(crate) fn manual_clock(&self) -> Option<ManualClock> {
        self.shared.store.backend()?.0.manual_clock()
    }

    /// Shows the counters of `policies`, failures and rejections at 0.
    #[cfg(feature = "metrics")]
    pub(crate) fn count_from_zero(&self, policies: impl Iterator<Item = Policy>) {
        crate::metrics::record::count_from_zero();
        policies.for_each(|policy| {
            crate::decision::metrics::count_policy_from_zero(&policy, self.shared.decide_one.is_none())
        });
    }

    /// Begins work that [`drain`](Self::drain) waits for.
    pub(crate) fn begin_work(&self) -> Work {
        self.shared.background.begin_work()
    }

    /// [`check_all`](Self::check_all), for a layer: the decision, or what [`poll_charge`](Self::poll_charge) waits for.
    #[inline]
    pub(crate) fn charge(&self, charges: impl Into<Charges>) -> Begun {
        self.begin(Action::Charge, charges.into())
    }

    #[inline]
    pub(crate) fn poll_charge(
        &self,
        charge: &mut Deciding,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let decided = ready!(Pin::new(&mut charge.answer).poll(cx));
        Poll::Ready(match charge.charges.take() {
            Some(charges) => self.shared.complete(Action::Charge, &charges, decided),
            None => decided,
        })
    }

    pub(super) fn decide(&self, action: Action, charges: impl Into<Charges>) -> Answer<Decision> {
        match self.begin(action, charges.into()) {
            Now::Ready(decided) => Answer::ready(decided),
            Now::Later(Deciding { answer, charges: None }) => answer,
            Now::Later(Deciding { answer, charges: Some(charges) }) => {
                let shared = self.shared.clone();
                answer.then(move |decided| shared.complete(action, &charges, decided))
            }
        }
    }

    fn begin(&self, action: Action, charges: Charges) -> Begun {
        let Shared { store, decide_one, background, .. } = &*self.shared;
        background.check_overdue();
        let charges = match charges {
            // Nothing to check.
            Charges::One(charge) if !charge.needs_permit() => {
                if let Some(decide_one) = decide_one {
                    return Deciding::counting(action, decide_one(action, charge));
                }
                let answer = store.decide(action, slice::from_ref(&charge));
                return self.complete(action, Charges::One(charge), answer);
            }
            Charges::One(charge) => vec![charge],
            Charges::Many(charges) => charges,
        };
        let (answer, charges) = self.ask(action, charges);
        if decide_one.is_some() {
            return Deciding::counting(action, answer);
        }
        self.complete(action, Charges::Many(charges), answer)
    }

    /// The answer of the store, without the failure modes, and the charges as the store gets them.
    pub(super) fn ask(&self, action: Action, mut charges: Vec<Charge>) -> (Answer<Decision>, Vec<Charge>) {
        let Shared { store, background, .. } = &*self.shared;
        // Decisions have the outcomes of shadows last. This order lets stores and the fallback pair them with the
        // charges.
        charges.sort_by_key(Charge::is_shadow);
        // Only charges get permits.
        let admits = matches!(action, Action::Charge | Action::ChargeUpTo);
        if admits && charges.iter().any(Charge::needs_permit) {
            charges = charges.iter().map(Charge::with_new_holder).collect();
            let pending = Pending::charge(background, PermitRequest::of(store, background, &charges));
            return (pending.finish(self.dispatch(action, &charges)), charges);
        }
        (self.dispatch(action, &charges), charges)
    }

    /// Applies the failure modes to an answer that needs no undoing, if it is ready.
    // Inlined because a call would move the charges once more.
    #[inline(always)]
    fn complete(&self, action: Action, charges: Charges, answer: Answer<Decision>) -> Begun {
        match answer.now() {
            Now::Ready(decided) => Now::Ready(self.shared.complete(action, &charges, decided)),
            Now::Later(answer) => Now::Later(Deciding { answer, charges: Some(charges) }),
        }
    }

    fn dispatch(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if charges.is_empty() {
            return Answer::ready(Ok(Decision::new([])));
        }
        if charges.len() > MAX_CHARGES {
            return Answer::ready(Err(Error::invalid("a decision has at most 256 charges: split it")));
        }
        if has_duplicate_key(charges) {
            return Answer::ready(Err(Error::invalid(
                "two charges have the same key and the same policy name: add their costs, or rename a policy",
            )));
        }
        self.shared.store.decide(action, charges)
    }
}

/// The most charges of a decision. More would not fit into one call of a script.
pub(super) const MAX_CHARGES: usize = 256;

fn charges_of(decision: &Decision, units: u64) -> Vec<Charge> {
    let charge = |outcome: &Outcome| Charge::new(outcome.policy(), outcome.key(), units);
    decision.all_outcomes().iter().map(charge).collect()
}

/// The decision of a debit, as one of `policies` instead of those that count debits.
fn of_policies(policies: &[Policy], debited: Decision) -> Decision {
    // While the store fails, there is no room for debt.
    let is_local = debited.failure().is_some();
    debited.map(|outcome: Outcome| match policies.iter().find(|one| one.debits() == outcome.policy()) {
        Some(policy) => outcome.of_debit(policy, if is_local { 0 } else { policy.settings().max_debt }),
        None => outcome,
    })
}

pub(super) fn has_duplicate_key(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(i, one)| charges[..i].iter().any(|other| one.is_of_same_count(other)))
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
