//! How a request becomes a charge: key, policy and cost.

use std::{fmt, sync::Arc};

use http::{request::Parts, response};

use super::cost::{Cost, IntoCost, cost};
use crate::{
    base::{Answer, Error, ErrorKind, Now, valid},
    decision::{Charge, RuleUnit},
    key::{Key, KeyExtractor, Matcher, guarantee_key, matcher, preflight_key, required},
    policy::{Criticality, Policy, PolicySource},
};

/// A rule turns a request into a charge: a policy, the key that it limits, and the cost of the request.
///
/// [`RateLimitLayer::new`](crate::RateLimitLayer::new) makes a layer with one rule from a policy and a key.
/// [`RateLimitLayer::with_rules`](crate::RateLimitLayer::with_rules) takes a `Rule` or a table of them. Add
/// more with [`rule`](crate::RateLimitLayer::rule). All rules are decided in one atomic step; in a Redis
/// Cluster, rules with different keys are decided [one after the other](crate::guide::redis#cluster), except a
/// [guarantee](Self::guarantee) and its pool.
///
/// # Example
///
/// ```
/// use http::{Request, Response, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Header, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Ten requests an hour for each API key, and two uploads an hour for all of them together.
/// let upload = |parts: &Parts| if parts.uri.path() == "/upload" { 1 } else { 0 };
/// let uploads = Rule::new(Policy::new("uploads", Quota::per_hour(2)), Key::new("all")).cost(upload);
/// let per_key = Policy::new("per-key", Quota::per_hour(10));
/// let layer = RateLimitLayer::new(MemoryStore::new(), per_key, Header::new("x-api-key")).rule(uploads);
///
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
/// let status = async |path: &str, key: &str| {
///     let request = Request::get(path).header("x-api-key", key).body(String::new()).unwrap();
///     service.clone().oneshot(request).await.unwrap().status().as_u16()
/// };
/// assert_eq!([status("/upload", "k1").await, status("/upload", "k2").await], [200, 200]);
/// assert_eq!([status("/upload", "k3").await, status("/", "k3").await], [429, 200]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a rule does nothing until it is added to a layer"]
pub struct Rule {
    pub(super) key: Arc<dyn KeyExtractor>,
    pub(super) policy: PolicySource,
    pub(super) cost: Option<Cost>,
    criticality: Option<CriticalityOf>,
    degrades: bool,
    /// The key and the policies of guarantees in its pool.
    guarantee: Option<(Arc<dyn KeyExtractor>, PolicySource)>,
    pub(super) skipped: Vec<Matcher>,
    pub(super) counts: Option<CountIf>,
    pub(super) settles: Option<Settles>,
    /// The unit of what it counts.
    pub(super) unit: Option<&'static str>,
    /// The same, for charges.
    pub(super) shown_unit: RuleUnit,
}

/// How critical a request is.
type CriticalityOf = Arc<dyn Fn(&Parts) -> Criticality + Send + Sync>;

/// Whether a request with this response counts.
pub(super) type CountIf = Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>;

/// What settles the charge of a rule, which is an estimate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Settles {
    /// The handler. If it does not, the estimate stays charged.
    Handler,
    /// The handler. If it does not, the estimate is refunded.
    HandlerOrRefund,
    /// The bytes of the response's body.
    Bytes,
}

impl Rule {
    /// Limits each `key` to `policy`, at a cost of one unit per request.
    pub fn new(policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Self {
        let (key, policy) = (Arc::new(key), policy.into());
        let shown_unit = RuleUnit::default();
        Self {
            key,
            policy,
            cost: None,
            criticality: None,
            degrades: false,
            guarantee: None,
            skipped: Vec::new(),
            counts: None,
            settles: None,
            unit: None,
            shown_unit,
        }
    }

    /// Sets the cost of a request in units. Defaults to 1. A cost of 0 charges nothing and is admitted,
    /// unless the store is unavailable and the policy is [`Closed`](crate::FailureMode::Closed): use
    /// [`skip_if`](Self::skip_if) to leave requests out. A cost above the policy's capacity is denied, unless
    /// the store is unavailable and the policy is [`Open`](crate::FailureMode::Open).
    ///
    /// `units` returns a number, or a `Result` with an [`Error`]. An error rejects the request, as one of a
    /// [key extractor](KeyExtractor::extract) does: with 400 if the client sent something whose cost is
    /// unknown, with 500 if the server lacks something, and then the message is logged. Do not return a high
    /// cost instead: the client would read that it asked for too much.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response, request::Parts};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Error, ErrorKind, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
    ///
    /// /// The pages that a request asks for.
    /// fn pages(request: &Parts) -> Result<u64, Error> {
    ///     let Some(query) = request.uri.query() else { return Ok(1) };
    ///     let pages = query.strip_prefix("pages=").and_then(|pages| pages.parse().ok());
    ///     pages.ok_or_else(|| Error::new(ErrorKind::InvalidIdentity, "the number of pages is invalid"))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = Rule::new(Policy::new("pages", Quota::per_hour(10)), Key::new("all")).cost(pages);
    /// let service = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    /// let service = service.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// for (uri, status) in [("/", 200), ("/?pages=9", 200), ("/?pages=1", 429), ("/?pages=-9", 400)] {
    ///     let request = Request::get(uri).body(String::new())?;
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cost<C: IntoCost>(mut self, units: impl Fn(&Parts) -> C + Send + Sync + 'static) -> Self {
        self.cost = Some(cost(units));
        self
    }

    /// Sets the [cost](Self::cost) of a request to the units that `units` returns for a value in its
    /// extensions, such as what another layer has read of the body.
    ///
    /// A request without the value means that the layers are in the wrong order. It is rejected with 500, and
    /// the name of the type is logged, as [`from_extension`](crate::key::from_extension) does for keys.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
    ///
    /// #[derive(Clone)]
    /// struct Orders(Vec<String>);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = Rule::new(Policy::new("orders", Quota::per_hour(3)), Key::new("all"))
    ///     .cost_from_extension(|orders: &Orders| orders.0.len() as u64);
    /// let service = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    /// let service = service.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// let orders = || Orders(vec!["tea".into(), "milk".into()]);
    /// for (request, status) in [
    ///     (Request::get("/").extension(orders()), 200),
    ///     (Request::get("/").extension(orders()), 429),
    ///     (Request::get("/"), 500),
    /// ] {
    ///     assert_eq!(service.clone().oneshot(request.body(String::new())?).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cost_from_extension<T: Send + Sync + 'static>(
        self,
        units: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.cost(move |request| required(request).map(&units))
    }

    /// Sets how critical a request is, which decides how much of the policy it leaves [to more critical
    /// ones](crate::Policy::headroom), if the policy has headroom. Defaults to [`CriticalPlus`](Criticality::CriticalPlus), for which
    /// all units are. `of` may run more than once for a request. The last call of this method counts.
    ///
    /// Take it from the route, or from an identity that another layer has authenticated and put into the request's extensions. A
    /// header of the client says what the client wants: read one only behind [proxies](crate::ClientIp) that replace it.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response, request::Parts};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{
    ///     Criticality, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule, policy::Headroom,
    /// };
    ///
    /// /// What the layer that authenticates knows of a client.
    /// #[derive(Clone)]
    /// struct Crawler;
    ///
    /// fn criticality(request: &Parts) -> Criticality {
    ///     match request.extensions.get::<Crawler>() {
    ///         Some(_) => Criticality::Sheddable,
    ///         None => Criticality::CriticalPlus,
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let site = Policy::new("site", Quota::per_hour(2)).headroom(Criticality::Sheddable, Headroom::Units(1));
    /// let rule = Rule::new(site, Key::new("all")).criticality(criticality);
    /// let service = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    /// let service = service.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// let crawl = || Request::get("/").extension(Crawler);
    /// for (request, status) in [(crawl(), 200), (crawl(), 429), (Request::get("/"), 200), (Request::get("/"), 429)] {
    ///     // A client cannot make itself critical.
    ///     let request = request.header("x-criticality", "critical-plus").body(String::new())?;
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn criticality(mut self, of: impl Fn(&Parts) -> Criticality + Send + Sync + 'static) -> Self {
        self.criticality = Some(Arc::new(of));
        self
    }

    /// Guarantees each client a part of this rule's policy, the *pool*. `key` identifies the client, and `policy` is its part.
    ///
    /// A request within its guarantee may use the pool to its last unit. Any other one *borrows* what is left, down to the pool's
    /// [headroom](crate::Policy::headroom). So no client can take what is guaranteed to the others, and what they do not use is not
    /// lost. [`Decision::borrowed`](crate::Decision::borrowed) tells the handler.
    ///
    /// Both are decided in one atomic step, also in a Redis Cluster, where a guarantee is in the shard of its pool (if the pool's key
    /// has at most 56 bytes). A request within its guarantee is charged its [cost](Self::cost) on both, and one that borrows on the pool
    /// only. Settlements and refunds are for both. A denied request has the shorter of the waits for its guarantee and for the pool.
    ///
    /// Policies of guarantees in different pools have different names. Requests are [`Sheddable`](Criticality::Sheddable) by default. If
    /// you set a [criticality](Self::criticality), set headroom for that level too: without it, borrowers leave nothing.
    ///
    /// # What is guaranteed
    ///
    /// No request within its guarantee is denied by the pool, if
    ///
    /// * the quotas of all guarantees are together at most the pool's quota;
    /// * the headroom is at least the sum of the bursts of all guarantees, of their [debts](crate::Policy::max_debt), and of what
    ///   borrowers are [settled](Self::reserve) at above their reservations;
    /// * the pool's burst is at least the headroom plus the largest cost, and each guarantee's burst at least the largest cost of its
    ///   client.
    ///
    /// With 20 tenants whose calls cost up to 8,000 tokens, the bursts are 8,000, the headroom is 160,000, and the pool's burst at
    /// least 168,000. The headroom is stock: borrowers can still use the full rate. Nothing adds the numbers of all clients up.
    ///
    /// A guarantee starts empty, also after a day without requests, if Redis has lost its key, and after a reset. It counts from the
    /// first request on, even a denied one, and until it has the units the client borrows. So the store has a key of each client until
    /// two days after its last request, even of one that was only denied.
    ///
    /// After an outage, the pool is charged what was admitted in it, without regard to the headroom: guarantees may lack units until the
    /// pool has caught up.
    ///
    /// Each time the clock of Redis steps back, guarantees may lack as many units as the pool gets in one period of its quota in lowest
    /// terms, until the pool is full again: 1 for 100 a second, 7 for 168,000 a minute. Add them to the headroom.
    ///
    /// # Panics
    ///
    /// If `policy` and the pool are constant, and either is not counted by a bucket that drains continuously, since other algorithms
    /// lose what is left unused; if the burst of `policy` and its debt are above the headroom for `Sheddable`, or the headroom is the
    /// whole pool; if the quota of `policy` is above the pool's; if `policy` has a penalty or is a shadow; and if the pool is chosen per
    /// request. [`try_guarantee`](Self::try_guarantee) gives an error instead.
    ///
    /// If `policy` is chosen per request, or changes, only the algorithm is checked then, and a request without a policy borrows. A
    /// request without a client is rejected, and the pool is not charged.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Criticality, Header, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule, policy::Headroom};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let vendor = Policy::new("vendor", Quota::per_hour(10)).headroom(Criticality::Sheddable, Headroom::Units(8));
    /// let tenant = Policy::new("tenant", Quota::per_hour(5).burst(4));
    /// // Clients choose their headers: in a service, take the tenant from what was authenticated.
    /// let rule = Rule::new(vendor, Key::new("all")).guarantee(tenant, Header::new("x-tenant"));
    /// let service = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    /// let service = service.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// // New clients borrow: two units, because eight are kept.
    /// for (tenant, status) in [("acme", 200), ("acme", 200), ("acme", 429), ("globex", 429)] {
    ///     let request = Request::get("/").header("x-tenant", tenant).body(String::new())?;
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn guarantee(self, policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Self {
        valid(self.try_guarantee(policy, key))
    }

    /// The fallible form of [`guarantee`](Self::guarantee), for quotas read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where [`guarantee`](Self::guarantee) panics.
    pub fn try_guarantee(
        mut self,
        policy: impl Into<PolicySource>,
        key: impl KeyExtractor,
    ) -> Result<Self, Error> {
        let policy = policy.into().guarantee_in(&self.policy)?;
        self.guarantee = Some((Arc::new(guarantee_key(self.key.clone(), key)), policy));
        self.criticality = self.criticality.or_else(|| Some(Arc::new(|_| Criticality::Sheddable)));
        Ok(self)
    }

    /// The rule that charges the guarantee, as this one charges the pool.
    pub(super) fn of_guarantee(&self) -> Option<Self> {
        let (key, policy) = self.guarantee.clone()?;
        Some(Self { key, policy, criticality: None, degrades: false, guarantee: None, ..self.clone() })
    }

    pub(super) const fn has_guarantee(&self) -> bool {
        self.guarantee.is_some()
    }

    /// The key of the guarantee.
    fn guaranteed(&self) -> Option<Arc<dyn KeyExtractor>> {
        self.guarantee.as_ref().map(|(key, _)| key.clone())
    }

    /// Lets a request go on that this rule denies: it is charged by the other rules and not by this one, and its handler extracts
    /// [`Degraded`](crate::layer::Degraded), to answer with less: from a cache, with a smaller model, without recommendations.
    ///
    /// The response has the header `x-ratelimit-degraded` with the names of such policies. Its `RateLimit` fields leave out a rule that
    /// degrades, and [`Decision::shadows`](crate::Decision::shadows) has its outcome, admitted or not. Metrics count a denial with
    /// the verdict `degraded`.
    ///
    /// Bans of the policy, by its [penalty](crate::Policy::penalty) or by an operator, do not apply to this rule, and a queue does
    /// not delay it. While the store fails, the rule degrades by this instance's share, with
    /// [`Closed`](crate::FailureMode::Closed) always, and with [`Open`](crate::FailureMode::Open) never.
    ///
    /// # Example
    ///
    /// A page without recommendations, once these have used their part of a backend:
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule, layer::Degraded};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pages = Rule::new(Policy::new("pages", Quota::per_hour(3)), Key::new("all"));
    /// let recommended = Rule::new(Policy::new("recommendations", Quota::per_hour(1)), Key::new("all")).or_degrade();
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), pages).rule(recommended);
    /// let service = layer.layer(tower::service_fn(|request: Request<String>| async move {
    ///     let page = match Degraded::from_extensions(request.extensions()) {
    ///         Some(_) => "page",
    ///         None => "page with recommendations",
    ///     };
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::from(page)))
    /// }));
    /// for (status, degraded) in [(200, None), (200, Some(r#""recommendations""#)), (200, Some(r#""recommendations""#)), (429, None)] {
    ///     let response = service.clone().oneshot(Request::new(String::new())).await?;
    ///     let header = response.headers().get("x-ratelimit-degraded").map(|header| header.to_str()).transpose()?;
    ///     assert_eq!((response.status().as_u16(), header), (status, degraded));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn or_degrade(mut self) -> Self {
        self.degrades = true;
        self
    }

    /// Skips the requests that `skipped` matches: this rule does not limit them, and their key is not
    /// extracted. Other rules of the layer still apply. Can be called several times. Defaults to none.
    ///
    /// `skipped` is a closure like that of [`exempt_if`](crate::RateLimitLayer::exempt_if). If it fails, for
    /// example because the identity is missing or its lookup failed, the request is not skipped. A request
    /// that all rules skip goes straight to the service, like an exempt one.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Two requests an hour, only one of which may be something other than a download.
    /// let all = Policy::new("all", Quota::per_hour(2));
    /// let dynamic = Rule::new(Policy::new("dynamic", Quota::per_hour(1)), Key::new("all"))
    ///     .skip_if(|parts| parts.uri.path().starts_with("/downloads/"));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), all, Key::new("all")).rule(dynamic);
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    ///
    /// for (path, status) in [("/", 200), ("/", 429), ("/downloads/a", 200), ("/downloads/a", 429)] {
    ///     let request = Request::get(path).body(String::new())?;
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn skip_if<M: Into<Answer<bool>>>(
        mut self,
        skipped: impl Fn(&Parts) -> M + Send + Sync + 'static,
    ) -> Self {
        self.skipped.push(matcher(skipped));
        self
    }

    /// Counts a request only if `counts` returns true for its response. Otherwise this rule's charge is
    /// refunded. Defaults to counting every request.
    ///
    /// The request is charged first, so concurrent requests stay within the limit. If its response does not
    /// count, the charge is refunded before the response is sent: all of it under a window or a log, and
    /// under a bucket [a part](crate::Limiter::refund) if concurrent requests end in another order. It is
    /// also refunded if the service fails with an error. Units that the handler charged itself are not
    /// refunded, unless its reservation [ends](crate::Reservation#when-it-ends) with fewer. After a refund,
    /// no further call charges units under this policy: neither for what the handler
    /// [reserved](Self::reserve), nor for the [bytes](Self::response_bytes) of the body.
    ///
    /// `counts` sees the status and the headers. A gRPC error without a response message has its status in
    /// the header `grpc-status`. This layer's own rejections are not passed to `counts`, and keep [what they
    /// charge](crate::RateLimitLayer#guesses-are-charged). A request whose handler returns a
    /// [`Rejection`](crate::Rejection) counts, too, unless a layer further in has answered it: then `counts`
    /// sees that response.
    ///
    /// # Example
    ///
    /// Failed logins as one route of a table:
    ///
    /// ```
    /// use http::{Request, Response, StatusCode};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{
    ///     Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule, algorithm::SlidingLog, layer::Rules,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("failed-logins", Quota::per_hour(1)).algorithm(SlidingLog::new());
    /// let failed = Rule::new(policy, Key::new("all"))
    ///     .count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    /// let all = Rule::new(Policy::new("all", Quota::per_hour(4)), Key::new("all"));
    /// let rules = Rules::new().route("POST /login", failed).always(all);
    /// let service = RateLimitLayer::with_rules(MemoryStore::new(), rules);
    /// let login = service.layer(tower::service_fn(|password: Request<String>| async move {
    ///     let status = if password.body() == "secret" { 200 } else { 401 };
    ///     Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(String::new()).unwrap())
    /// }));
    /// for (password, status) in [("secret", 200), ("guess", 401), ("secret", 429)] {
    ///     let request = Request::post("/login").body(password.into())?;
    ///     assert_eq!(login.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn count_if(mut self, counts: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Some(Arc::new(counts));
        self
    }

    /// Reserves the [cost](Self::cost) of each request. Its handler extracts a
    /// [`Reservation`](crate::Reservation), or finds it with
    /// [`from_extensions`](crate::Reservation::from_extensions), and [settles](crate::Reservation::settle)
    /// the actual cost, [records](crate::Reservation::record) what it has used so far, or [charges
    /// more](crate::Reservation::charge_more) before it begins. Other rules of the layer are not changed by
    /// that.
    ///
    /// The layer keeps a handle on the reservation until the response's body has ended or been dropped. If
    /// the handler has not settled it when the last handle is dropped, the request is charged what was
    /// recorded; if nothing was, the estimate stays charged.
    ///
    /// If several rules reserve, in one layer or in several, the handler gets one reservation for all of
    /// them. If they count different things, such as tokens and cents, give each a [`unit`](Self::unit) and
    /// give [`settle`](crate::Reservation::settle) a number for each. If a layer does not charge a
    /// request, its part of the reservation covers nothing: for an exempt request, for one over a limit that
    /// is only reported, and for all while the layer is off.
    ///
    /// # Example
    ///
    /// ```
    /// # #[cfg(feature = "axum")] mod example {
    /// use axum::{Router, body::Body, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Reservation, Rule};
    ///
    /// async fn complete(reservation: Reservation, prompt: String) -> Result<String, Rejection> {
    ///     let answer = prompt.to_uppercase();
    ///     reservation.settle(answer.len() as u64).await?;
    ///     Ok(answer)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # pub async fn main() {
    /// let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    /// let tokens = Rule::new(tokens, Key::new("all")).cost(|_| 400).reserve();
    /// let requests = Policy::new("requests", Quota::per_hour(10));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), requests, Key::new("all")).rule(tokens);
    /// let app = Router::new().route("/", post(complete)).layer(layer);
    /// for remaining in [r#""tokens";r=600"#, r#""tokens";r=595"#] {
    ///     let response = app.clone().oneshot(Request::post("/").body(Body::from("hello")).unwrap()).await.unwrap();
    ///     // The headers show the estimate.
    ///     let header = response.headers()["ratelimit"].to_str().unwrap();
    ///     assert!(header.contains(remaining), "{header}");
    /// }
    /// # }
    /// # }
    /// # #[cfg(feature = "axum")] example::main();
    /// ```
    pub const fn reserve(mut self) -> Self {
        self.settles = Some(Settles::Handler);
        self
    }

    /// What the rule counts, such as `"tokens"`. Defaults to the policy's
    /// [quota unit](crate::Policy::quota_unit) in what clients read, and to no name for a reservation.
    ///
    /// Clients read it in the parameter `qu` of `RateLimit-Policy`, if it is printable ASCII. The standard
    /// registers `requests`, `content-bytes` and `concurrent-requests`; agree with your clients on any other
    /// name. A [`ResponseMapper`](crate::response::ResponseMapper) finds it with [`Charge::unit`].
    ///
    /// If the rule [reserves](Self::reserve), it is the name by which [`Units`](crate::Units) address it. Rules may
    /// share a unit.
    /// The names of policies do not serve for that, because plans from a database have different ones.
    pub fn unit(self, unit: &'static str) -> Self {
        Self { unit: Some(unit), shown_unit: RuleUnit::named(unit), ..self }
    }

    /// Like [`reserve`](Self::reserve), but refunds the estimate if nothing was settled or recorded when the
    /// reservation ends, even if the handler has panicked, or the client has closed its connection, before
    /// the decision or after it.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Reservation, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    /// let rule = Rule::new(tokens.clone(), Key::new("all")).cost(|_| 400).reserve_or_refund();
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    /// let service = layer.layer(tower::service_fn(|request: Request<String>| async move {
    ///     let reservation = Reservation::from_extensions(request.extensions()).expect("a rule reserves");
    ///     if request.uri().path() == "/complete" {
    ///         reservation.record(30);
    ///     }
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    ///
    /// // The second request fails before it uses a token.
    /// for (path, remaining) in [("/complete", 970), ("/fail", 970)] {
    ///     drop(service.clone().oneshot(Request::get(path).body(String::new())?).await?);
    ///     layer.limiter().drain(Duration::from_secs(1)).await?;
    ///     assert_eq!(layer.limiter().peek(&tokens, &Key::new("all"), 0).await?.remaining(), Some(remaining));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn reserve_or_refund(mut self) -> Self {
        self.settles = Some(Settles::HandlerOrRefund);
        self
    }

    /// Charges the bytes of each response's body, as they are sent. Give the policy
    /// [`quota_unit`](crate::Policy::quota_unit), so its headers report bytes.
    ///
    /// A request is admitted if its [cost](Self::cost), by default one unit, remains. It is charged its cost,
    /// or the bytes of the body if they are more. The body is charged every 256 KiB and at its end, and
    /// always sent completely.
    ///
    /// Bytes beyond the quota become the policy's [debt](crate::Policy::max_debt): the client's next request
    /// is denied until it is paid off. A policy has no debt unless you set its bound; without one, bytes
    /// beyond the quota are not charged, and the layer [warns](crate::RateLimitLayer::warnings) of that.
    ///
    /// The layer counts the bytes that the service sends, before an outer layer compresses them. If the
    /// client leaves, the bytes sent until then are charged: those that the connection has taken, which are more
    /// than the client has received by what the sockets, and [proxies that
    /// buffer](crate::guide::deployment#buffers-of-proxies), held.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use http_body_util::{BodyExt, Full};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule, policy::QuotaUnit};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Policy::new("bytes", Quota::per_minute(100_000)).quota_unit(QuotaUnit::ContentBytes);
    /// let bytes = bytes.max_debt(1_000_000);
    /// let rule = Rule::new(bytes, Key::new("all")).response_bytes();
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    /// let download = layer.layer(tower::service_fn(|_: Request<()>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(Full::<bytes::Bytes>::from(vec![0; 301_000])))
    /// }));
    ///
    /// let response = download.clone().oneshot(Request::new(())).await?;
    /// assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 301_000);
    /// // 201,000 bytes of debt take two minutes.
    /// let denied = download.oneshot(Request::new(())).await?;
    /// assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"121".parse()?));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn response_bytes(mut self) -> Self {
        self.settles = Some(Settles::Bytes);
        self
    }

    /// Whether the key or the policy is looked up, so that a client can cause lookups.
    pub(super) fn looks_up(&self) -> bool {
        self.key.looks_up() || self.policy.looks_up()
    }

    /// Whether its handler settles the cost.
    pub(super) fn reserves(&self) -> bool {
        self.settles.is_some_and(|settles| settles != Settles::Bytes)
    }

    /// Whether a charge may be settled after the decision.
    pub(super) const fn settles_some(&self) -> bool {
        self.counts.is_some() || self.settles.is_some()
    }

    /// Whether `other` is a clone of this rule.
    pub(super) fn is(&self, other: &Self) -> bool {
        // `new` sets key and policy together, so equal keys mean equal policies.
        Arc::ptr_eq(&self.key, &other.key)
            && is_same(&self.cost, &other.cost)
            && is_same(&self.criticality, &other.criticality)
            && self.degrades == other.degrades
            && is_same(&self.guaranteed(), &other.guaranteed())
            && is_same(&self.counts, &other.counts)
            && self.settles == other.settles
            && self.unit == other.unit
            && self.skipped.len() == other.skipped.len()
            && self.skipped.iter().zip(&other.skipped).all(|(own, skipped)| Arc::ptr_eq(own, skipped))
    }

    /// The key of `request`, in the separate budget of preflights if `preflight`.
    #[inline]
    pub(super) fn key(&self, request: &Parts, preflight: bool) -> Answer<Key> {
        // Calls the extractor, not the implementation for the pointer to it, which calls the extractor.
        let key = (*self.key).extract(request);
        if preflight { preflight_key(key, request) } else { key }
    }

    /// [`key`](Self::key), or `None` if the rule skips the request.
    pub(super) fn key_unless_skipped(&self, request: &Parts, preflight: bool) -> Answer<Option<Key>> {
        match matches_any(&self.skipped, request).now() {
            Now::Ready(Ok(true)) => Answer::ready(Ok(None)),
            Now::Ready(_) => self.key(request, preflight).map(Some),
            Now::Later(skipped) => {
                // The extractor reads the request, so it is called immediately. Its answer is awaited only if
                // needed.
                let key = self.key(request, preflight);
                Answer::pending(async move {
                    let is_skipped = matches!(skipped.await, Ok(true));
                    if is_skipped { Ok(None) } else { key.await.map(Some) }
                })
            }
        }
    }

    /// The charge of `cost` units for `request`, whose key is `key`, by the rule at `at`. `None` if the rule
    /// has no policy for it: a source that expects an identity has none for a preflight without one.
    pub(super) fn charge(&self, at: usize, key: Key, cost: u64, request: &Parts) -> Answer<Option<Charge>> {
        if let Some(policy) = self.policy.constant() {
            return Answer::ready(Ok(Some(self.charge_under(policy.clone(), at, key, cost, request))));
        }
        let (policy, terms) = (self.policy.policy(request, &key), self.terms(request));
        let lacks = |error: &Error| error.kind().is_clients() || error.kind() == ErrorKind::MissingSetup;
        policy.then(move |policy| match policy {
            Err(error) if key.lacks_identity() && lacks(&error) => Ok(None),
            policy => {
                let policy = policy.map_err(|error| error.of_rule(at))?;
                Ok(policy.map(|policy| terms.charge(policy, at, key, cost)))
            }
        })
    }

    /// The same under a policy that is known.
    #[inline(always)]
    pub(super) fn charge_under(
        &self,
        policy: Policy,
        at: usize,
        key: Key,
        cost: u64,
        request: &Parts,
    ) -> Charge {
        self.terms(request).charge(policy, at, key, cost)
    }

    /// What a charge for `request` is, apart from its policy and its key.
    #[inline(always)]
    fn terms(&self, request: &Parts) -> Terms {
        let criticality = self.criticality.as_ref().map_or(Criticality::CriticalPlus, |of| of(request));
        Terms { unit: self.shown_unit, criticality, degrades: self.degrades }
    }

    /// A warning if criticality and headroom, each of which does nothing without the other, are not set together, or if bans do not
    /// apply. A policy that may change is not compared.
    pub(super) fn terms_warning(&self) -> Option<String> {
        let policy = self.policy.constant()?;
        let says = match (self.criticality.is_some(), !policy.settings().headroom.is_empty()) {
            _ if self.degrades && policy.bans().is_some() => {
                "has a penalty, and its rule degrades, so a banned key goes on without it: leave out one of them"
            }
            (true, false) => {
                "has no headroom, so the criticality of its rule does nothing: add Policy::headroom"
            }
            (false, true) => {
                "has headroom, and its rule has no criticality, so nothing is left unused: add Rule::criticality"
            }
            _ => return None,
        };
        Some(format!("the policy {:?} {says}", policy.name()))
    }

    /// What the cost function returns for `request`.
    #[inline]
    pub(super) fn cost_of(&self, request: &Parts) -> Result<u64, Box<Error>> {
        self.cost.as_ref().map_or(Ok(1), |cost| cost(request))
    }
}

/// What the charges of a rule are, apart from their policies and keys.
#[derive(Clone, Copy)]
struct Terms {
    unit: RuleUnit,
    criticality: Criticality,
    degrades: bool,
}

impl Terms {
    #[inline(always)]
    fn charge(self, policy: Policy, at: usize, key: Key, cost: u64) -> Charge {
        let charge = Charge::of(policy, key, cost).by_rule(at, self.unit).with_criticality(self.criticality);
        if self.degrades { charge.or_degrade() } else { charge }
    }
}

/// Whether one of `matchers` matches the request. If none does and one fails, its error, unless the request
/// lacks what it reads.
pub(super) fn matches_any(matchers: &[Matcher], request: &Parts) -> Answer<bool> {
    let (mut matched, mut pending) = (Ok(false), Vec::new());
    for matcher in matchers {
        match matcher(request).now() {
            Now::Ready(Ok(true)) => return Answer::ready(Ok(true)),
            Now::Ready(result) => matched = or_failed(matched, result),
            // The matchers after it start too, while the request can be read.
            Now::Later(answer) => pending.push(answer),
        }
    }
    if pending.is_empty() {
        return Answer::ready(matched);
    }
    Answer::pending(async move {
        for answer in pending {
            match answer.await {
                Ok(true) => return Ok(true),
                result => matched = or_failed(matched, result),
            }
        }
        matched
    })
}

/// The first failure of two matchers that do not match.
fn or_failed(one: Result<bool, Error>, other: Result<bool, Error>) -> Result<bool, Error> {
    match other {
        Err(error) if matches!(error.kind(), ErrorKind::MissingIdentity | ErrorKind::NotApplicable) => one,
        other => one.and(other),
    }
}

fn is_same<T: ?Sized>(one: &Option<Arc<T>>, other: &Option<Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("policy", &self.policy).finish_non_exhaustive()
    }
}
