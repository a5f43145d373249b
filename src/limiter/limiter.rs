//! `Limiter`: the calls of jobs, consumers, WebSockets and handlers. Each is decided by `decider.rs`.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    background::{Background, User},
    decider::{Decider, enforced},
    drain::drain,
    operator::Operator,
    wait::WaitState,
};
#[cfg(feature = "settlement-tokens")]
use super::{
    token::{Settlement, SettlementSecret, settle},
    units::Units,
};
use crate::{
    base::{Answer, Error},
    decision::{Charge, Decision, DenialLog, ThresholdEvent},
    key::Key,
    policy::{Enforcement, Policy},
    store::{Action, LocalCounts, ManualClock, Store, StoreIdentity},
};

/// Makes decisions without a layer: for jobs, message consumers, WebSockets, and handlers that learn the cost
/// while they process a request.
///
/// [`RateLimitLayer`](crate::RateLimitLayer) is built on it. Cloning is cheap and gives another handle on the
/// same store.
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
/// | settle a reservation in another process | `settle_token`, with the feature `settlement-tokens` | a debit or a refund, once |
/// | return units | [`refund`](Self::refund) | |
/// | reset, ban or unban a key | [`operator`](Self::operator) | |
///
/// # When the store fails
///
/// The [`FailureMode`](crate::FailureMode) of the policies decides, and [`Decision::failure`] has the cause.
/// Policies that are [`Local`](crate::FailureMode::Local), the default, are counted in this process. Policies
/// that are [`Open`](crate::FailureMode::Open) admit. If one is [`Closed`](crate::FailureMode::Closed), the
/// check fails with an error.
///
/// During an outage, limiters on clones of one [`RedisStore`](crate::RedisStore), or clones of one limiter on
/// any store, share their in-process counts, so layers that share a limit keep sharing it.
///
/// # In a handler
///
/// The limiter of a request follows the [`Enforcement`] that its layer had when the request arrived. Under
/// [`ReportOnly`](Enforcement::ReportOnly) its checks, peeks and debits run as usual and always admit:
/// [`Decision::outcomes`] shows which policies denied. Under [`Off`](Enforcement::Off) they admit without
/// using the store.
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
    pub(crate) decider: Arc<Decider>,
    /// Work in the background has no reference to it: otherwise, the limiter and work that no runtime does would keep
    /// each other alive.
    user: Arc<User>,
    /// The enforcement of the request whose handler has this limiter.
    pub(super) enforcement: Enforcement,
}

impl Limiter {
    /// A limiter with the counts in `store`.
    #[must_use]
    pub fn new(store: impl Store) -> Self {
        let backend = store.backend();
        let local = backend.and_then(|backend| backend.0.local_counts());
        let local = local.unwrap_or_else(LocalCounts::new);
        // A store around another one may fail, and sees every decision.
        let unwrapped = backend.filter(|_| store.inner().is_none());
        let decide_one = unwrapped.and_then(|backend| backend.0.decide_one());
        let background = Background::new();
        let user = Arc::new(User(background.clone()));
        let decider = Arc::new(Decider { store: Arc::new(store), decide_one, local, background });
        Self { decider, user, enforcement: Enforcement::On }
    }

    /// Calls `hook` whenever a key has used a share of a quota that its policy [notifies
    /// at](Policy::notify_at), for all limiters and layers on this store, in this process.
    ///
    /// When the use of a key rises to a share, one event is reported, by the instance that made the charge: over
    /// all instances at most once, and exactly once unless the reply of the store is lost. Charges of layers and
    /// handlers count, debits and settlements too, and after an outage what was charged then.
    ///
    /// After a refund or a reset, the use can rise to the share again, and without windows each time that units
    /// have become available again. A process reports such repeats only once for each window or, without
    /// windows, after a period in which the share was not reached. Another instance may report one: its
    /// [`ThresholdEvent::id`] is the same if there are windows. Of 4,096 shares that were reached in this
    /// process, the earliest is forgotten.
    ///
    /// `hook` runs where the decision was made and delays the request, so send or spawn what takes longer. For
    /// units on [lease](Policy::max_lease) it runs in a thread for blocking work. If it panics, the decision
    /// stands, and the first panic is logged: see [your code in the crate](crate::guide::your_code).
    ///
    /// # Example
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (sender, receiver) = mpsc::channel();
    /// limiter.on_threshold(move |event| drop(sender.send((event.percent, event.used, event.id()))));
    ///
    /// let plan = Policy::new("plan", Quota::per_month(1_000)).notify_at([80, 100]);
    /// let acme = Key::new("acme");
    /// limiter.check(&plan, &acme, 790).await?;
    /// let charged = limiter.check(&plan, &acme, 20).await?;
    /// let (percent, used, id) = receiver.try_recv().unwrap();
    /// assert_eq!((percent, used), (80, 810));
    ///
    /// assert!(id.starts_with("plan:"));
    ///
    /// // After a refund, it is reached again, and not reported again.
    /// limiter.refund(&charged, 20).await?;
    /// limiter.check(&plan, &acme, 30).await?;
    /// assert!(receiver.try_recv().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`ThresholdEvent::id`]: crate::decision::ThresholdEvent::id
    pub fn on_threshold(&self, hook: impl Fn(&ThresholdEvent<'_>) + Send + Sync + 'static) {
        self.decider.local.watchers.inform(Arc::new(hook));
    }

    /// Records from now on which keys are denied, by all limiters and layers on this store in this process, and
    /// returns the log. Every call returns the same one.
    ///
    /// The log is for operators: the router of `tower-ratelimit-operate` shows it. It has the denials that layers,
    /// handlers and jobs get, even if enforcement only reports, and those by [shadows](Policy::shadow). Peeks do not
    /// count. Requests that are rejected without a decision, such as
    /// requests of clients on a [blocklist](crate::RateLimitLayer::block_if), are not in it.
    ///
    /// It is off until the first call, because it keeps identities in memory. Then it stays on until the process
    /// ends, and takes about 250 KB. A denial then takes about 100 instructions more, in a flood of new keys about
    /// 560, and an admission about 20. [`DenialLog::recent`] has an example.
    #[must_use]
    pub fn record_denials(&self) -> DenialLog {
        self.decider.local.watchers.denials()
    }

    /// This limiter under another [`Enforcement`]. Defaults to [`On`](Enforcement::On) for a new limiter; in
    /// a handler, to the enforcement that the layer had when the request arrived.
    ///
    /// So a handler can enforce a limit under a layer that only reports, and the other way around. A layer
    /// takes over the enforcement of its limiter, unless it [sets its
    /// own](crate::RateLimitLayer::enforcement).
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

    /// Its [enforcement](Self::under).
    pub(crate) const fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    fn enforced(&self, decide: impl FnOnce() -> Answer<Decision>) -> Answer<Decision> {
        enforced(self.enforcement, decide)
    }

    /// Charges `key` with `cost` units under `policy`, or denies and charges nothing.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) decides before this method returns. A
    /// [`RedisStore`](crate::RedisStore) decides when the future is polled, except for units on
    /// [lease](Policy::max_lease) and denials from the deny cache. A future that is dropped early may have
    /// charged.
    ///
    /// # Errors
    ///
    /// The future resolves to an error if the store failed and the policy is
    /// [`Closed`](crate::FailureMode::Closed), to an [`InvalidConfig`](crate::ErrorKind::InvalidConfig) error
    /// if the store does not support the policy, and to a [`MissingSetup`](crate::ErrorKind::MissingSetup)
    /// error if a `RedisStore` is used outside a Tokio runtime. A denial is not an error.
    ///
    pub fn check(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.enforced(|| self.decider.decide(Action::Charge, Charge::new(policy, key, cost)))
    }

    /// Makes all of `charges`, or denies and charges nothing, in one atomic step. In a Redis Cluster, charges
    /// to different keys are decided [one after the other](crate::guide::redis#cluster). An empty list is
    /// admitted without the store.
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check), and an [`InvalidConfig`](crate::ErrorKind::InvalidConfig) error if
    /// there are more than 256 charges, or if two of them have the same key and the same policy name: then
    /// add their costs.
    pub fn check_all(&self, charges: &[Charge]) -> Answer<Decision> {
        self.enforced(|| self.decider.decide(Action::Charge, charges))
    }

    /// Decides as [`check`](Self::check) would now, and charges nothing.
    ///
    /// A cost of 0 is always admitted, and the decision shows what remains. Errors are the same as for
    /// [`check`](Self::check).
    pub fn peek(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.enforced(|| self.decider.decide(Action::Peek, Charge::new(policy, key, cost)))
    }

    /// Decides as [`check_all`](Self::check_all) would now, and charges nothing.
    pub fn peek_all(&self, charges: &[Charge]) -> Answer<Decision> {
        self.enforced(|| self.decider.decide(Action::Peek, charges))
    }

    /// Charges `key` with as many units as remain under `policy`, up to `cost`.
    ///
    /// [`Outcome::granted`](crate::decision::Outcome::granted) is the number of units charged. If none
    /// remain, the request is denied, with the wait until one does. Errors are the same as for
    /// [`check`](Self::check).
    pub fn check_up_to(&self, policy: &Policy, key: &Key, cost: u64) -> Answer<Decision> {
        self.enforced(|| self.decider.decide(Action::ChargeUpTo, Charge::new(policy, key, cost)))
    }

    /// Waits for at most `patience` until `cost` units are available to `key` under `policy`, and charges
    /// them. For jobs and outgoing calls.
    ///
    /// Await it in a Tokio runtime. If the decision [`is_admitted`](Decision::is_admitted), the caller may go
    /// on now. If it is denied, nothing was charged. If the units will not be available within the patience,
    /// this returns without waiting for them; the denial has the remaining wait. A cost above the capacity is
    /// denied immediately.
    ///
    /// * After a denial, this waits for its [`retry_after`](Decision::retry_after) and tries again. Callers
    ///   are not queued: others may charge the units first. Only
    ///   [`LeakyBucket::queue`](crate::algorithm::LeakyBucket::queue) admits in order.
    /// * For such a queue, this waits for the [delay](Decision::delay) of the decision. If the delay is
    ///   longer than the remaining patience, the units are refunded, and the decision is a denial.
    /// * The time of a permit's release is not known in advance. Under a
    ///   [`Concurrency`](crate::algorithm::Concurrency) policy, this tries again after 10 ms, then after
    ///   increasing waits of at most 250 ms.
    /// * A [penalty](Policy::penalty) counts one denial if this returns a denial, and none if the request is
    ///   admitted after a wait.
    ///
    /// If the future is dropped while it waits after a denial, nothing is charged. If it is dropped during a
    /// delay, the units stay charged, because others are queued behind them.
    ///
    /// # When the store fails
    ///
    /// A [`check`](Self::check) whose answer is late is decided by the [failure mode](crate::FailureMode),
    /// which may admit what the store would deny. A wait has time, so it asks the store again: after a missed
    /// deadline, a broken connection, a failed attempt to connect, or if the store is busy. The pauses grow
    /// from 10 ms to at most 250 ms, and are random. The failure mode decides when the patience is over, or
    /// immediately if the store is known to be unavailable
    /// ([`StoreSuspended`](crate::ErrorKind::StoreSuspended): the circuit breaker of a `RedisStore` is open)
    /// or answers with an error. So a single failure admits nothing beyond the limit, and an outage lets no
    /// worker wait for its whole patience. If the limit must hold in an outage too, use
    /// [`Closed`](crate::FailureMode::Closed): this then fails with an error, and the job can be put back.
    ///
    /// The store [may have charged](crate::ErrorKind::may_have_charged) a try whose answer is late, and the
    /// next try charges again. The units of such a try are not refunded: they count until they are
    /// replenished, as if a call had been made. So failures let fewer calls through than the limit, never
    /// more. A permit of such a try is released.
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
        self.wait_all(&[Charge::new(policy, key, cost)], patience).await
    }

    /// Makes all of `charges`, in one atomic step, as soon as all of them are admitted, and waits for that up to
    /// `patience`: [`wait`](Self::wait) for several policies, such as a partner's limits per second and per hour.
    ///
    /// It waits for the policy that takes longest, so nothing is charged by one while another one denies. If a
    /// [queue](crate::algorithm::LeakyBucket::queue) among them delays the request for longer than the remaining
    /// patience, all of them are refunded. Everything else is as for `wait`, with each policy's failure mode.
    ///
    /// # Errors
    ///
    /// The same as [`check_all`](Self::check_all).
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let fast = Policy::new("per-second", Quota::per_second(100).burst(1));
    /// let slow = Policy::new("per-hour", Quota::per_hour(3));
    /// let partner = Key::new("partner");
    /// let charges = [&fast, &slow].map(|policy| Charge::new(policy, &partner, 1));
    ///
    /// for _ in 0..3 {
    ///     assert!(limiter.wait_all(&charges, Duration::from_secs(5)).await?.is_admitted());
    /// }
    /// // The fourth call of the hour is put back, with its wait. The limit per second was not charged.
    /// let denied = limiter.wait_all(&charges, Duration::from_secs(5)).await?;
    /// assert!(denied.retry_after() > Some(Duration::from_secs(1_000)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_all(&self, charges: &[Charge], patience: Duration) -> Result<Decision, Error> {
        let mut waited = WaitState::new(patience);
        let decision = self.check_until(charges, &mut waited, || {}).await?;
        let Some(delay) = decision.delay() else { return Ok(decision) };
        let left = waited.left();
        if delay <= left {
            sleep(delay).await;
            return Ok(decision.after_delay());
        }
        self.enforced(|| {
            let refund = self.refund(&decision, u64::MAX);
            // The decision of a refund that failed may have no outcomes, so it only updates the first
            // decision.
            refund
                .map(move |refunded| decision.updated(&refunded).map(|one| decision.denied_after(one, left)))
        })
        .await
    }

    /// Charges `units` more units to every key of `decision`, under the same policies, all or nothing. For a
    /// handler that learns the cost from the request or from its own response.
    ///
    /// In a layer with several rules, this charges all of them, including a limit on addresses. To charge
    /// only some, let those rules [reserve](crate::Rule::reserve) and use
    /// [`Reservation::charge_more`](crate::Reservation::charge_more), or select a policy with
    /// [`Decision::for_policy`].
    ///
    /// If `decision` has no outcomes, because no layer charged the request, or because the store
    /// [failed](Decision::failure) and the policies are [`Open`](crate::FailureMode::Open), this admits
    /// without using the store. Errors are the same as for [`check_all`](Self::check_all).
    ///
    /// Return the new decision from the handler, and the layer writes it into the response's headers. You can
    /// also return a decision of [`check`](Self::check): its outcomes under other policies are added to the
    /// headers. For another key under the same policy, the headers keep the outcome of the request's own key.
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
        self.enforced(|| self.decider.charge_more(decision, units))
    }

    /// Charges `units` more units to every key of `decision`, under the same policies, regardless of what
    /// remains. For a cost that is known only after the work is done: the bytes of a response, the tokens of
    /// a model.
    ///
    /// It charges what remains, and beyond that as much as the policy allows as [debt](Policy::max_debt). So
    /// it always admits; [`Outcome::granted`](crate::decision::Outcome::granted) is the number of units
    /// charged, and later requests are denied until the units are replenished.
    /// [`charge_more`](Self::charge_more) instead denies, and charges nothing, if too few units remain.
    /// Permits of a [`Concurrency`](crate::algorithm::Concurrency) policy are not debited, nor is a
    /// [shadow](Policy::shadow) that would have denied the request.
    ///
    /// To debit only one of several policies, select it with [`Decision::for_policy`]. To debit rules, whose
    /// policies may be looked up, or to charge an estimate first, use a [`Reservation`](crate::Reservation).
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check). If the store fails, the [failure mode](crate::FailureMode) of the
    /// policies applies. A debit that fails is not repeated: it may have been charged.
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
        self.enforced(|| self.decider.debit_each(decision, |_| units))
    }

    /// Refunds up to `units` units that `decision` charged to each of its keys, if they still count.
    ///
    /// A refund does not return units that another request was charged, with the exceptions below. Units stop
    /// counting when the charge's window ends, when its bucket has drained past the charge, or when its entry
    /// leaves the log. All refunds of a decision together never exceed its charge.
    ///
    /// Windows, the log and permits return all of that. So do buckets if units are refunded in the order of
    /// their charges. In another order, a bucket may keep a part charged: of 50 requests at one moment, under
    /// 50 units per second, and refunded in random order within 50 ms, it kept a third.
    ///
    /// A denied decision or a peek has nothing to refund. A decision from [`charge_more`](Self::charge_more)
    /// is refunded separately. A permit of a [`Concurrency`](crate::algorithm::Concurrency) policy is not
    /// refunded; drop its decision instead.
    ///
    /// If the store [failed](Decision::failure) and this process made the decision, the units are refunded in
    /// this process, or in the store if it was charged for them in the meantime. A refund that fails is not
    /// repeated, because it may have been carried out. If it was certainly not sent and the policy is
    /// [`Local`](crate::FailureMode::Local), it is sent once the store answers.
    ///
    /// After a [`reset`](super::Operator::reset), it returns nothing of a charge from before. It does not detect
    /// that the store has lost the key, a changed quota of a bucket, or a clock that stepped back. After one of
    /// these it can return units of later charges.
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
        self.decider.refund_each(decision, |_| units).1
    }

    /// Settles the [token](crate::Reservation::into_token) of a reservation: charges `units` in total instead
    /// of the estimate, as [`Reservation::settle`](crate::Reservation::settle) does. Another process has made
    /// the token, with a limiter on the same store.
    ///
    /// `policies` has the policy of each of the token's rules, and may have others. Policies are found by
    /// their name and algorithm. Their quotas may have changed since the charge.
    ///
    /// Each rule is settled once: in one step, the store settles it and keeps a stamp of that. A second call changes
    /// nothing, even if it has other units, and [says so](crate::settlement::SettledRule::is_repeated). So
    /// repeat a call that failed, or whose answer was lost, until it is answered. The rules are settled
    /// concurrently, in separate steps. Rules with units that are not given stay unsettled, and another call can
    /// settle them.
    ///
    /// The store's clock decides whether the token has expired; on Redis, the server's. The
    /// [failure modes](crate::FailureMode) do not apply: while the store fails, this is an error.
    ///
    /// # Errors
    ///
    /// * [`InvalidToken`](crate::ErrorKind::InvalidToken): the text is not a token, is truncated, was changed,
    ///   is sealed with another secret, or is of another store: a `RedisStore` settles the tokens of its
    ///   [prefix](crate::store::RedisStoreBuilder::prefix), a `MemoryStore` its own.
    /// * [`ExpiredToken`](crate::ErrorKind::ExpiredToken): it was not settled in its lifetime, so the estimate
    ///   stays charged.
    /// * [`InvalidConfig`](crate::ErrorKind::InvalidConfig): a policy of the token is not among `policies`, a number
    ///   has no unit and the rules have several, no rule has one of the units, or the store is a custom one.
    ///   Nothing is settled.
    /// * Every error of the store. The message lists the policies whose rules are not settled; the others
    ///   are. Repeat the call.
    ///
    /// # Example
    ///
    /// See the module [`settlement`](crate::settlement).
    #[cfg(feature = "settlement-tokens")]
    #[cfg_attr(docsrs, doc(cfg(feature = "settlement-tokens")))]
    pub fn settle_token<'a>(
        &self,
        secret: &SettlementSecret,
        token: &str,
        policies: &[Policy],
        units: impl Into<Units<'a>>,
    ) -> Answer<Settlement> {
        settle(&self.decider, secret, token, policies, &units.into())
    }

    /// The calls that operators make, on the same store.
    #[must_use]
    pub fn operator(&self) -> Operator {
        Operator { decider: self.decider.clone(), _user: self.user.clone() }
    }

    /// Completes what must still be sent to the store. Await it after the last request, before the process
    /// ends.
    ///
    /// For at most `deadline`, it waits until:
    ///
    /// * every [`Reservation`](crate::Reservation) is settled or dropped;
    /// * every settlement and refund in the background has ended, including settlements and refunds of an
    ///   outage;
    /// * every permit whose decision was dropped is released;
    /// * what was admitted in process during an outage is charged to the store;
    /// * units on [lease](crate::Policy::max_lease) are returned to the store.
    ///
    /// This covers the reservations and refunds of this limiter, its clones and the layers built with them,
    /// but not the ones of another limiter on the same store: build all layers with clones of one limiter.
    /// Leases are returned for the whole store.
    ///
    /// # Errors
    ///
    /// [`StoreTimeout`](crate::ErrorKind::StoreTimeout) if the deadline passes first,
    /// [`MissingSetup`](crate::ErrorKind::MissingSetup) outside a Tokio runtime, and any error of the store
    /// while leases are returned. What was not sent by then is lost with the process. You can call this
    /// again.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{ErrorKind, Key, Limiter, MemoryStore, Policy, Quota, Reservation};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    /// let decision = limiter.check(&tokens, &Key::new("alice"), 400).await?;
    /// let reservation = Reservation::new(&limiter, &decision);
    ///
    /// let deadline = Duration::from_millis(50);
    /// assert_eq!(limiter.drain(deadline).await.unwrap_err().kind(), ErrorKind::StoreTimeout);
    /// drop(reservation.settle(150));
    /// limiter.drain(deadline).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// After a graceful shutdown:
    ///
    /// ```no_run
    /// # #[cfg(feature = "axum")]
    /// # async fn example(limiter: tower_ratelimit::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, app) = (tokio::net::TcpListener::bind("0.0.0.0:3000").await?, axum::Router::new());
    /// axum::serve(listener, app).with_graceful_shutdown(async { /* the signal to stop */ }).await?;
    /// limiter.drain(std::time::Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self, deadline: Duration) -> Result<(), Error> {
        drain(&self.decider, deadline).await
    }

    /// Checks whether the store supports the algorithm of `policy`. A layer does so when it is built.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if it does not.
    pub fn supports(&self, policy: &Policy) -> Result<(), Error> {
        self.decider.store.backend().map_or(Ok(()), |backend| backend.0.supports(policy))
    }

    /// What identifies the store. `None` of a custom one.
    pub(crate) fn store_identity(&self) -> Option<&StoreIdentity> {
        Some(self.decider.store.backend()?.0.identity())
    }

    /// The clock that a test has set in place of the store's.
    pub(crate) fn manual_clock(&self) -> Option<ManualClock> {
        self.decider.store.backend()?.0.manual_clock()
    }

    /// Shows the counters of `policies`, failures and rejections at 0.
    #[cfg(feature = "metrics")]
    pub(crate) fn count_from_zero(&self, policies: impl Iterator<Item = Policy>) {
        crate::metrics::record::count_from_zero();
        policies.for_each(|policy| {
            crate::decision::metrics::count_policy_from_zero(&policy, self.decider.decide_one.is_none())
        });
    }

    /// [`check_all`](Self::check_all), again until the request is admitted or cannot be in time. Calls
    /// `waits` before each wait.
    pub(crate) async fn check_until(
        &self,
        charges: &[Charge],
        waited: &mut WaitState,
        waits: impl FnMut(),
    ) -> Result<Decision, Error> {
        match self.enforcement {
            Enforcement::On => waited.check(&self.decider, charges, waits).await,
            _ => self.check_all(charges).await,
        }
    }
}

impl<S: Store> From<S> for Limiter {
    fn from(store: S) -> Self {
        Self::new(store)
    }
}

opaque_debug!(Limiter);
