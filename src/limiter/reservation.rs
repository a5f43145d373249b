//! `Reservation`: an estimate that is charged first, and the cost that replaces it later.

#[cfg(feature = "settlement-tokens")]
use std::time::Duration;
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{account::Account, background::Work, limiter::Limiter, units::Units};
#[cfg(feature = "settlement-tokens")]
use super::{
    account::HandedOver,
    token::{SettlementSecret, Token},
};
#[cfg(feature = "settlement-tokens")]
use crate::base::time::micros;
use crate::{
    base::{Answer, Error, sync::lock},
    decision::{Decision, OneOrMany},
};

/// Units that a request has reserved, to be settled once its cost is known.
///
/// The request is charged an estimate. [`settle`](Self::settle) then refunds what it did not need, or debits
/// what it needed in addition. Use it if the cost is known only at the end, and charging only then would
/// admit too many concurrent requests: the tokens of a language model, the rows of a query.
///
/// [`record`](Self::record) stores what was used so far, for a handler that may be cancelled at any moment: a
/// client that closes its connection during a stream is charged what was recorded.
///
/// # When it ends
///
/// Cloning gives another handle on the same reservation. If [`settle`](Self::settle) was not called when the
/// last handle is dropped, the request is charged what was [recorded](Self::record). If nothing was recorded,
/// the estimate and what [`extend_to`](Self::extend_to) added stay charged, or are refunded after
/// [`or_refund`](Self::or_refund). A layer whose rule [reserves](crate::Rule::reserve) keeps a handle until
/// the response's body has ended or been dropped.
///
/// Calls to Redis are made in the background, one after the other, so they are completed even if their
/// request is cancelled. They run on the Tokio runtime in which the reservation is settled or dropped;
/// outside a runtime, on the one in which it was made. If this runtime has ended or is not driven, another
/// one makes the calls, when its next decision is made. With no runtime at all, a returned `Answer` makes its
/// calls when awaited. [`Limiter::drain`] makes all calls that are left, and waits for them before the
/// process ends.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, Reservation};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let tokens = Policy::new("tokens", Quota::per_hour(1_000)).max_debt(500);
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
pub struct Reservation {
    /// The rules that reserve, in groups of one unit that end alike.
    parts: OneOrMany<Arc<Part>>,
    decision: Decision,
}

/// What the handles share of one group: its rules have one unit.
struct Part {
    account: Arc<Account>,
    unit: Option<&'static str>,
    end: Mutex<End>,
}

/// How the reservation ends.
struct End {
    recorded: Option<u64>,
    refunds: bool,
    /// The work that `drain` waits for. `None` once it is settled or has a token.
    work: Option<Work>,
}

impl Reservation {
    /// A reservation of the units that `decision` charged. `limiter` must be the one that made the decision,
    /// or a clone.
    ///
    /// It covers every policy of the decision; [`Decision::for_policy`] selects one. For a denied decision,
    /// it covers nothing.
    pub fn new(limiter: &Limiter, decision: &Decision) -> Self {
        Self::of(limiter, decision, None)
    }

    /// A [new](Self::new) reservation with a unit, by which [`Units`] address it.
    pub fn of_unit(limiter: &Limiter, decision: &Decision, unit: &'static str) -> Self {
        Self::of(limiter, decision, Some(unit))
    }

    pub(crate) fn of(limiter: &Limiter, decision: &Decision, unit: Option<&'static str>) -> Self {
        let mut decision = decision.clone();
        // The caller's decision holds the permit.
        drop(decision.take_permit());
        let work = Some(limiter.decider.background.begin_work());
        let end = Mutex::new(End { recorded: None, refunds: false, work });
        let account = Account::new(limiter, decision.clone());
        Self { parts: OneOrMany::One(Arc::new(Part { account, unit, end })), decision }
    }

    /// One reservation for the units of both, which are settled apart.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota, Reservation};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (tokens, cents) = (Policy::new("tokens", Quota::per_hour(1_000)), Policy::new("cents", Quota::per_day(500)));
    /// let alice = Key::new("alice");
    ///
    /// let decision = limiter.check_all(&[Charge::new(&tokens, &alice, 400), Charge::new(&cents, &alice, 20)]).await?;
    /// let part = |name| Reservation::of_unit(&limiter, &decision.for_policy(name).unwrap(), name);
    /// let reservation = part("tokens").and(part("cents"));
    /// reservation.settle([("tokens", 100), ("cents", 5)]).await?;
    /// assert_eq!(limiter.peek(&tokens, &alice, 0).await?.remaining(), Some(900));
    /// assert_eq!(limiter.peek(&cents, &alice, 0).await?.remaining(), Some(495));
    /// # Ok(())
    /// # }
    /// ```
    pub fn and(self, other: Self) -> Self {
        let decision = self.decision.updated(&other.decision);
        let mut parts = self.parts.into_vec();
        parts.append(&mut other.parts.into_vec());
        Self { parts: parts.into(), decision }
    }

    /// Refunds what the reservation charged if its last handle is dropped before anything is settled or
    /// [recorded](Self::record), even if the client closes its connection, or the handler panics. Without
    /// this, the charge stays.
    ///
    /// The refund is sent to Redis in the background. If it fails, the same holds as for [`Limiter::refund`].
    pub fn or_refund(self) -> Self {
        self.parts.iter().for_each(|part| lock(&part.end).refunds = true);
        self
    }

    /// The decision that charged the estimate. Behind several layers that reserve, the outcomes of all of
    /// them.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Records that `units` were used so far, in total. This makes no call to the store. If the reservation
    /// [ends](#when-it-ends) without [`settle`](Self::settle), it settles at the units recorded last.
    ///
    /// Call it after each part of a stream: it only takes a lock, so it is cheap enough for every token.
    /// Until the stream ends, other requests see only the estimate as charged; if the cost may become much
    /// higher, also use [`extend_to`](Self::extend_to).
    ///
    /// If the rules that reserve have several [units](crate::Rule::unit), give each its number; other units keep
    /// what was recorded. A number without its unit, and a unit that no rule has, is logged as an error, and the
    /// estimates stay charged.
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
    pub fn record<'a>(&self, units: impl Into<Units<'a>>) {
        static LOGGED: AtomicBool = AtomicBool::new(false);
        match self.by_part(&units.into()) {
            Ok(units) => {
                for (part, units) in self.parts.iter().zip(units) {
                    let end = &mut *lock(&part.end);
                    end.recorded = units.or(end.recorded);
                }
            }
            Err(error) => {
                // The units that were used are not known, so nothing is refunded.
                self.parts.iter().for_each(|part| lock(&part.end).refunds = false);
                if !LOGGED.swap(true, Ordering::Relaxed) {
                    log!(error, error = %error, "nothing can be recorded; the estimates stay charged");
                }
                let _ = error;
            }
        }
    }

    /// Charges `units` in total instead of the estimate: [refunds](Limiter::refund) the rest, or
    /// [debits](Limiter::debit) what is missing. The decision shows what remains afterwards.
    ///
    /// It takes effect when it is called, even if the answer is dropped. A later call replaces the total. A
    /// debit charges at most what remains and what the policy allows as [debt](crate::Policy::max_debt); a
    /// later call with a higher total tries to charge the rest. A lower total refunds only units that were
    /// charged, by the estimate or by one of the reservation's latest 16 debits. A refund and a debit are two
    /// calls to the store, as are the calls for rules of several layers or units.
    ///
    /// If the rules that reserve have several [units](crate::Rule::unit), give each its number. Units without one
    /// stay reserved.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::debit`]. After an error, you can call it again: it repeats only what was
    /// [certainly not charged](crate::ErrorKind::may_have_charged).
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), and nothing is settled, if a number has no unit and the
    /// rules have several, or no rule has one of the units.
    ///
    /// # Example
    ///
    /// ```
    /// # #[cfg(feature = "axum")] mod example {
    /// use axum::{Router, body::Body, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule};
    ///
    /// async fn complete(reservation: Reservation, prompt: String) -> Result<(), Rejection> {
    ///     let used = prompt.len() as u64;
    ///     reservation.settle([("tokens", used), ("micro-dollars", 3 * used)]).await?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # pub async fn main() {
    /// let (tokens, money) = (Policy::new("tokens", Quota::per_hour(1_000)), Policy::new("money", Quota::per_day(9_000)));
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let reserving = |policy: &Policy, estimate| Rule::new(policy.clone(), Key::new("all")).cost(move |_| estimate).reserve();
    /// let layer = RateLimitLayer::with_rules(limiter.clone(), reserving(&tokens, 400).unit("tokens"))
    ///     .rule(reserving(&money, 1_200).unit("micro-dollars"));
    /// let app = Router::new().route("/", post(complete)).layer(layer);
    /// app.oneshot(Request::post("/").body(Body::from("hello")).unwrap()).await.unwrap();
    /// assert_eq!(limiter.peek(&tokens, &Key::new("all"), 0).await.unwrap().remaining(), Some(995));
    /// assert_eq!(limiter.peek(&money, &Key::new("all"), 0).await.unwrap().remaining(), Some(8_985));
    /// # }
    /// # }
    /// # #[cfg(feature = "axum")] example::main();
    /// ```
    pub fn settle<'a>(&self, units: impl Into<Units<'a>>) -> Answer<Decision> {
        self.for_each_part(&units.into(), |part, units| {
            let work = lock(&part.end).work.take();
            let answer = part.set_total(|_| units);
            // Dropped after the charge has begun its own work, so that `drain` waits without a gap.
            drop(work);
            answer
        })
    }

    /// Charges `units` in total if that is more than the total so far, and does not settle. For a cost that
    /// grows, such as a stream's: call it after each part, and [`settle`](Self::settle) or
    /// [`record`](Self::record) the final cost.
    ///
    /// Like [`settle`](Self::settle), it takes effect when it is called. Calls made while another one is
    /// under way are combined into one call to the store.
    ///
    /// # Errors
    ///
    /// The same as [`settle`](Self::settle).
    pub fn extend_to<'a>(&self, units: impl Into<Units<'a>>) -> Answer<Decision> {
        self.for_each_part(&units.into(), |part, units| part.set_total(|wanted| wanted.max(units)))
    }

    /// Charges `units` in addition to the total so far, or denies and charges nothing: for a handler that
    /// learns before the work that it costs more than the estimate. Rules that do not
    /// [reserve](crate::Rule::reserve) are not charged.
    ///
    /// Return the decision from the handler, and the layer writes it into the response's headers. What is
    /// charged belongs to the reservation: [`settle`](Self::settle) replaces it, as it replaces the estimate.
    ///
    /// Rules of several layers or units are charged one after the other. If one denies, the others are
    /// refunded; if a refund fails, the same holds as for [`Limiter::refund`], and the decision is the
    /// denial. The charge is made while the answer is awaited. If the answer is dropped before its end, the
    /// units may be charged, and the reservation does not refund them.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::charge_more`], and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) as for
    /// [`settle`](Self::settle).
    ///
    /// # Example
    ///
    /// A limit on addresses beside one on the points of a query:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] mod example {
    /// use axum::{Router, body::Body, response::IntoResponse, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule};
    ///
    /// async fn query(reservation: Reservation, query: String) -> Result<impl IntoResponse, Rejection> {
    ///     let points = query.len() as u64;
    ///     let decision = reservation.charge_more(points).await?.into_result()?;
    ///     Ok((decision, "found"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # pub async fn main() {
    /// let points = Rule::new(Policy::new("points", Quota::per_hour(60)), Key::new("all")).reserve();
    /// let requests = Policy::new("requests", Quota::per_hour(10));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), requests, Key::new("all")).rule(points);
    /// let app = Router::new().route("/", post(query)).layer(layer);
    /// let send = |query: &'static str| app.clone().oneshot(Request::post("/").body(Body::from(query)).unwrap());
    ///
    /// let response = send("{ books { title author } }").await.unwrap();
    /// assert_eq!(response.headers()["ratelimit"], r#""requests";r=9;t=3240, "points";r=33;t=1980"#);
    /// let rejection = send("{ books { title author { name born } } }").await.unwrap();
    /// assert_eq!(rejection.status(), 429);
    /// # }
    /// # }
    /// # #[cfg(feature = "axum")] example::main();
    /// ```
    pub fn charge_more<'a>(&self, units: impl Into<Units<'a>>) -> Answer<Decision> {
        let units = match self.by_part(&units.into()) {
            Ok(units) => units,
            Err(error) => return Answer::ready(Err(error)),
        };
        let charged = self.parts.iter().zip(units).filter_map(|(part, units)| Some((part.clone(), units?)));
        let (charged, mut decision): (Vec<_>, _) = (charged.collect(), self.decision.clone());
        Answer::pending(async move {
            let mut made = Vec::new();
            for (part, units) in &charged {
                match part.account.charge_more(*units).await {
                    Ok((decided, more)) if !decided.is_denied() => {
                        // A denial that is only reported is among the outcomes.
                        decision = decision.updated(&decided).admitted();
                        made.push(more);
                    }
                    denied => {
                        for more in made {
                            let _ = more.undo().await;
                        }
                        return denied.map(|(decided, _)| decided);
                    }
                }
            }
            Ok(decision)
        })
    }

    /// Applies `charge` to each part that has a number of units.
    fn for_each_part(
        &self,
        units: &Units<'_>,
        charge: impl Fn(&Part, u64) -> Answer<Decision>,
    ) -> Answer<Decision> {
        let units = match self.by_part(units) {
            Ok(units) => units,
            Err(error) => return Answer::ready(Err(error)),
        };
        let (charged, decision) = (self.parts.iter().zip(units), self.decision.clone());
        let answers = charged.filter_map(|(part, units)| Some(charge(part, units?))).collect();
        // All charges have taken effect already: only their decisions are joined.
        Answer::all(answers).map(|decisions| {
            decisions.into_iter().reduce(|earlier, later| earlier.updated(&later)).unwrap_or(decision)
        })
    }

    fn by_part(&self, units: &Units<'_>) -> Result<Vec<Option<u64>>, Error> {
        let of_parts: Vec<_> = self.parts.iter().map(|part| part.unit).collect();
        units.of_rules(&of_parts, ["that reserve", "that reserves"])
    }

    /// Ends the reservation with a token, which another process [settles](Limiter::settle_token): a text that
    /// only the processes with `secret` can read. The estimate, and what was charged in addition, stays
    /// charged until then.
    ///
    /// The token can be settled for `lifetime`, from 1 second to 7 days, since the estimate was charged. After
    /// that, the estimate stays charged. A token takes about 200 bytes, and 150 more for each additional rule.
    /// It is in the alphabet of base64url, with a dot.
    ///
    /// For other handles on the reservation, [`settle`](Self::settle), [`extend_to`](Self::extend_to) and
    /// [`charge_more`](Self::charge_more) are errors from now on, and a layer refunds nothing of it. What was
    /// [recorded](Self::record) is ignored. A reservation that charged nothing, because the request was denied
    /// or not limited, gives a token that settles nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), after which the reservation is as if this handle was
    /// dropped, so keep a clone to settle it here: the lifetime is out of range; the reservation is settled or
    /// has a token; it has permits, or was made while the store failed; a call that changes it is under way or
    /// was not answered; it has more than 16 rules, or rules on several stores; or the store is a custom one.
    /// [`MissingSetup`](crate::ErrorKind::MissingSetup) if the system has no random numbers.
    ///
    /// # Example
    ///
    /// See the module [`settlement`](crate::settlement).
    #[cfg(feature = "settlement-tokens")]
    #[cfg_attr(docsrs, doc(cfg(feature = "settlement-tokens")))]
    pub fn into_token(self, secret: &SettlementSecret, lifetime: Duration) -> Result<String, Error> {
        ensure!(
            (Duration::from_secs(1)..=Duration::from_secs(7 * 86_400)).contains(&lifetime),
            "the lifetime of a settlement token must be from 1 second to 7 days"
        );
        ensure!(
            self.parts.iter().all(|part| lock(&part.end).work.is_some()),
            "the reservation is settled, or has a token"
        );
        let mut handed_over = Vec::new();
        let taken = self.parts.iter().try_for_each(|part| {
            handed_over.push(part.account.hand_over(part.unit)?);
            Ok(())
        });
        let sealed = taken.and_then(|()| {
            let mut stores = handed_over.iter().map(|part| &part.store);
            let store = stores.next().cloned().unwrap_or_default();
            ensure!(
                stores.all(|other| *other == store),
                "the rules of the reservation are on several stores: settle it here"
            );
            let rules = handed_over.iter().flat_map(|part| part.rules.iter().cloned()).collect();
            secret.seal(&Token { store, lifetime: micros(lifetime), rules })
        });
        match &sealed {
            Ok(_) => self.parts.iter().for_each(|part| drop(lock(&part.end).work.take())),
            Err(_) => handed_over.into_iter().for_each(HandedOver::take_back),
        }
        sealed
    }

    /// Charges no more under the policies of `refunded`, which the layer refunds.
    pub(crate) fn stop_charging(&self, refunded: &Decision) {
        self.parts.iter().for_each(|part| part.account.stop_charging(refunded));
    }
}

impl Part {
    fn set_total(&self, units: impl Fn(u64) -> u64) -> Answer<Decision> {
        self.account.enforced(|| self.account.set_total(units))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let end = self.end.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(_work) = end.work.take() else { return };
        match end.recorded {
            Some(units) => drop(self.account.set_total(|_| units)),
            None if end.refunds => drop(self.account.set_total(|_| 0)),
            None => {}
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", self.decision())
            .field("is_settled", &self.parts.iter().all(|part| lock(&part.end).work.is_none()))
            .finish_non_exhaustive()
    }
}
