use std::sync::Arc;

use http::{request::Parts, response};
use tower_layer::Layer;

use super::{
    config::{Config, Preflight},
    event::DecisionEvent,
    rule::Rule,
    rules::Rules,
    service::RateLimit,
    settle::Reserved,
};
use crate::{
    key::{KeyExtractor, RequestMatcher},
    limiter::Limiter,
    policy::{EnforcementSwitch, PolicySource},
    response::{HeaderWriter, Headers, ResponseMapper},
};

/// Puts a rate limit in front of a service. It needs a store, a policy and a key.
///
/// The layer has no type parameter: a function can return it, and a struct can hold it. Cloning is cheap. All services
/// of a layer, and all layers on one store, share its counts.
///
/// See the [crate docs](crate) for an example with axum.
///
/// # What happens to a request
///
/// 1. A request that is [banned](Self::ban), or might be, is rejected. A request that is [exempt](Self::exempt) goes
///    straight to the service.
/// 2. Each rule determines the request's key, policy and cost. If a key is missing, the request is rejected with 400,
///    with 401 if the identity is unknown, or with 500 if the server is not set up for it. If no rule limits the request, it
///    goes straight to the service. A CORS preflight has [its own budget](Self#cors-preflights).
/// 3. All charges are decided together, all or nothing, before the service is called.
/// 4. If the request is admitted, the service is called with the [`Decision`](crate::Decision) in the request's
///    extensions. The response gets the [`Headers`], and the decision in its extensions.
/// 5. If the request is denied, the client gets the [`response`](Self::response): 429, or `RESOURCE_EXHAUSTED` over
///    gRPC. The service is not called, the body is not read, and nothing is charged.
///
/// # Guesses are charged
///
/// A rejected request charges nothing, with one exception. If one rule cannot identify the client, and that is the client's
/// fault (400 or 401), the request is charged under the rules that can. If one of these denies it, the answer is 429. So a
/// limit on addresses, in the same layer as a limit on API keys, limits guesses of API keys:
///
/// * The response carries the headers of what was charged. [`count_if`](Self::count_if) does not see it.
/// * If the process knows that a rule denies the request, it is denied before any key or policy is looked up: from a
///   `MemoryStore`, or from the deny cache of a `RedisStore`. No request to Redis is made to find out. Before keys are
///   looked up, this holds for rules without a [cost function](Rule::cost).
/// * A failure of the server (500) charges nothing.
///
/// If the store fails, the policy's [`FailureMode`](crate::FailureMode) admits or rejects the request. The service's
/// error type does not change.
///
/// # Where to put it
///
/// Put the layer inside a CORS layer, or browsers cannot read the rejections. List the rate limit headers in
/// `Access-Control-Expose-Headers`. Put it outside everything that is expensive.
///
/// # CORS preflights
///
/// A browser sends a preflight (`OPTIONS` with `Origin` and `Access-Control-Request-Method`) on its own, and a client
/// can send any number of them. An outer CORS layer answers preflights, so they do not reach this layer. Those that do
/// are limited by the same policies, each with a separate budget of the same size. They charge nothing to the client's
/// quota, and their responses show the separate budget. They can be exempt or banned like other requests. A
/// [ban by a policy](crate::Policy::penalty) holds for the preflights of its key, and their denials count for it.
///
/// A preflight carries no credentials. If a rule's key is missing for that reason
/// ([`MissingIdentity`](crate::ErrorKind::MissingIdentity)), the rule counts the preflight by the address of the peer,
/// as [`PeerIp`](crate::PeerIp) does. If the server does not know the address, all such preflights share one budget.
/// Behind a proxy all clients share one budget: put the layer inside a CORS layer there. See also
/// [`exempt_preflight`](Self::exempt_preflight) and [`limit_preflight`](Self::limit_preflight).
///
/// # Example
///
/// A layer with two policies that are decided in one step, on any Tower service:
///
/// ```
/// use http::{Request, Response, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{algorithm::FixedWindow, Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
///
/// fn limits(store: MemoryStore) -> RateLimitLayer {
///     RateLimitLayer::new(store, Policy::new("burst", Quota::per_second(10)), Header::new("x-api-key"))
///         .and(
///             Rule::new(
///                 Policy::new("daily", Quota::per_day(3)).algorithm(FixedWindow::anchored()),
///                 Header::new("x-api-key"),
///             )
///             .cost(|parts: &Parts| if parts.method == http::Method::POST { 2 } else { 1 }),
///         )
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = limits(MemoryStore::new()).layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
/// }));
///
/// let post = || Request::post("/").header("x-api-key", "k1").body(String::new());
/// assert_eq!(service.clone().oneshot(post()?).await?.status(), 200);
/// assert_eq!(service.clone().oneshot(post()?).await?.status(), 429);
/// let get = Request::get("/").header("x-api-key", "k1").body(String::new())?;
/// assert_eq!(service.clone().oneshot(get).await?.status(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RateLimitLayer {
    pub(super) config: Arc<Config>,
}

impl RateLimitLayer {
    /// Limits each `key` to `policy`, with the counts in `store`.
    ///
    /// `store` is a [`MemoryStore`](crate::MemoryStore), a [`RedisStore`](crate::RedisStore), a [`Limiter`] or your own
    /// store. `policy` is a [`Policy`](crate::Policy) or a [`PolicySource`].
    ///
    /// # Panics
    ///
    /// If the store does not support the policy's algorithm: a `MemoryStore` with your own algorithm.
    #[track_caller]
    pub fn new(store: impl Into<Limiter>, policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Self {
        Self::with_rules(store, Rule::new(policy, key))
    }

    /// Limits requests by a table of routes and their rules, or by one [`Rule`], with the counts in `store`.
    ///
    /// See [`Rules`] for an example.
    ///
    /// # Panics
    ///
    /// If the table has no rule; if two policies that one request falls under have the same name, or policies of one
    /// name differ; or if the store does not support a policy's algorithm.
    #[track_caller]
    pub fn with_rules(store: impl Into<Limiter>, rules: impl Into<Rules>) -> Self {
        Self::of(&Config::new(store.into()), rules)
    }

    #[track_caller]
    pub(super) fn of(settings: &Config, rules: impl Into<Rules>) -> Self {
        match settings.with_rules(rules.into()) {
            Ok(config) => Self { config: Arc::new(config) },
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a rule for all requests. All rules are decided in one atomic step: if one policy denies a request, none is
    /// charged.
    ///
    /// # Panics
    ///
    /// If the layer already has a policy of that name (a client could not tell them apart), or the store does not
    /// support the policy's algorithm.
    #[track_caller]
    pub fn and(self, rule: Rule) -> Self {
        let config = &self.config;
        let others: Vec<_> = config.rules.iter().filter_map(|rule| rule.policy.known()).collect();
        let accept = |policy| config.limiter.accept_beside(&policy, others.iter());
        if let Some(Err(error)) = rule.policy.known().map(accept) {
            panic!("{error}");
        }
        self.with(|config| {
            config.rules.push(rule);
            let number = config.rules.len() - 1;
            config.routes = config.routes.take().map(|routes| Arc::new(routes.with_every(number)));
        })
    }

    /// Sets the cost of a request in units, under the policy given to [`new`](Self::new), or under the first rule given to
    /// [`with_rules`](Self::with_rules). Defaults to 1. A cost of 0 is always admitted and charges nothing. A cost above the
    /// policy's capacity is always denied. For other rules, see [`Rule::cost`].
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|config| {
            if let Some(first) = config.rules.first_mut() {
                first.cost = Some(Arc::new(cost));
            }
        })
    }

    /// Exempts the requests that `exempt` matches, besides those of earlier calls. `exempt` is a closure over the
    /// request's head, or an extractor's keys or networks. Defaults to none.
    ///
    /// An exempt request is not counted and carries no [`Decision`](crate::Decision), so its handler extracts an
    /// `Option<Decision>`. A request is not exempt if `exempt` fails because the identity is missing or unusable.
    ///
    /// # Example
    ///
    /// ```
    /// use http::request::Parts;
    /// use tower_ratelimit::{Header, KeyExtractor, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
    ///
    /// # fn main() -> Result<(), tower_ratelimit::Error> {
    /// let policy = Policy::new("per-ip", Quota::per_second(10));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, PeerIp::new())
    ///     .exempt(|parts: &Parts| parts.uri.path() == "/health")
    ///     .exempt(PeerIp::new().within(["192.0.2.0/24", "2001:db8::/32"])?)
    ///     .exempt(Header::new("x-api-key").any_of(["partner-1", "partner-2"]))
    ///     .ban(PeerIp::new().within(["203.0.113.66"])?);
    /// # drop(layer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exempt(self, exempt: impl RequestMatcher) -> Self {
        self.with(|config| config.exempt.push(Arc::new(exempt)))
    }

    /// Rejects the requests that `banned` matches, besides those of earlier calls: with 429, the problem type
    /// `abnormal-usage-detected`, and no `Retry-After`. Exempt requests and CORS preflights are banned too. The store
    /// is not used. Defaults to none.
    ///
    /// A request for which `banned` fails is also rejected, even if it is exempt or the layer is [soft](Self::soft).
    /// Otherwise a client could evade the ban with a header that is duplicated, empty or unreadable. The status is 400
    /// for [`InvalidIdentity`](crate::ErrorKind::InvalidIdentity), 401 for
    /// [`UnknownIdentity`](crate::ErrorKind::UnknownIdentity), and 500 for every other error. A request that
    /// *lacks* the identity ([`MissingIdentity`](crate::ErrorKind::MissingIdentity)) is not banned.
    ///
    /// To ban clients for a time after too many denials, or while the service runs, see
    /// [`Policy::penalty`](crate::Policy::penalty).
    pub fn ban(self, banned: impl RequestMatcher) -> Self {
        self.with(|config| config.banned.push(Arc::new(banned)))
    }

    /// Admits every request except those that are [banned](Self::ban) or might be, and marks those over the limit.
    /// Defaults to rejecting them.
    ///
    /// A marked request carries a denial as the [`Decision`](crate::Decision) in its extensions. The header
    /// `X-RateLimit-Exceeded`, on the request and on the response, lists the policies that denied. Nothing is charged
    /// for it.
    ///
    /// Use it to try out a limit, or to serve reduced responses over the limit. Requests without an identity, and
    /// requests that the store could not decide, are admitted unmarked. To make one of several policies soft, give it
    /// its own layer.
    pub fn soft(self) -> Self {
        self.with(|config| config.soft = true)
    }

    /// Exempts CORS preflights: they reach the service uncounted. Defaults to
    /// [a separate budget](Self#cors-preflights).
    ///
    /// Every client can then send any number of preflights, and each calls the service. Use it only if the service
    /// answers preflights at no cost.
    pub fn exempt_preflight(self) -> Self {
        self.with(|config| config.preflight = Preflight::Exempt)
    }

    /// Counts CORS preflights like any other request, against the client's quota. A preflight that lacks the identity
    /// is rejected with 400. Defaults to [a separate budget](Self#cors-preflights).
    pub fn limit_preflight(self) -> Self {
        self.with(|config| config.preflight = Preflight::Limited)
    }

    /// Turns the layer on or off. Defaults to `true`. With `false`, every request reaches the service uncounted, banned
    /// ones too.
    ///
    /// Use it for a switch in the configuration. `tower::util::option_layer` does not work here: it needs the same
    /// response type with and without the layer, and this layer wraps the body.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{key::Constant, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// fn limit(enabled: bool) -> RateLimitLayer {
    ///     let policy = Policy::new("all", Quota::per_hour(1));
    ///     RateLimitLayer::new(MemoryStore::new(), policy, Constant::new("all")).enabled(enabled)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// for (enabled, second) in [(true, 429), (false, 200)] {
    ///     let service = limit(enabled).layer(tower::service_fn(|_: Request<String>| async {
    ///         Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    ///     }));
    ///     assert_eq!(service.clone().oneshot(Request::new(String::new())).await?.status(), 200);
    ///     assert_eq!(service.clone().oneshot(Request::new(String::new())).await?.status(), second);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn enabled(self, enabled: bool) -> Self {
        self.with(|config| config.enabled = enabled)
    }

    /// Follows `switch`, which can turn enforcement off and on while the service runs. Give the same switch to all layers
    /// that you want to turn off together. Defaults to no switch.
    ///
    /// | switch | the layer |
    /// |---|---|
    /// | [`On`](crate::policy::Enforcement::On) | as it is built |
    /// | [`Soft`](crate::policy::Enforcement::Soft) | as if it were [soft](Self::soft) |
    /// | [`Off`](crate::policy::Enforcement::Off) | as if it were not [enabled](Self::enabled) |
    ///
    /// The switch never enforces more than the layer is built to: a soft layer stays soft. See
    /// [`EnforcementSwitch`] for an example.
    pub fn enforcement(self, switch: &EnforcementSwitch) -> Self {
        self.with(|config| config.switch = Some(switch.clone()))
    }

    /// Counts only requests whose response `counts`, and refunds the others. Defaults to counting every request.
    ///
    /// The request is charged first, so that many at once stay within the limit. If its response does not count, the
    /// charge is refunded before the response is sent, under all policies of the layer. So is that of a request whose
    /// service fails with an error. Units that the handler charged itself are not refunded.
    ///
    /// `counts` sees the status and the headers. A gRPC error without a message has its status in the header
    /// `grpc-status`. It does not see rejections by this layer, which keep [what they charge](Self#guesses-are-charged). One
    /// that the handler returns counts.
    ///
    /// # Example
    ///
    /// Only failed logins count:
    ///
    /// ```
    /// use http::{Request, Response, StatusCode, response::Parts};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{key::Constant, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let failures = Policy::new("failed-logins", Quota::per_hour(2));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), failures, Constant::new("all"))
    ///     .count_if(|response: &Parts| response.status == StatusCode::UNAUTHORIZED);
    /// let login = layer.layer(tower::service_fn(|password: Request<String>| async move {
    ///     let status = if password.body() == "secret" { 200 } else { 401 };
    ///     Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(String::new()).unwrap())
    /// }));
    /// for (password, status) in
    ///     [("secret", 200), ("guess", 401), ("secret", 200), ("guess", 401), ("secret", 429), ("guess", 429)]
    /// {
    ///     assert_eq!(login.clone().oneshot(Request::new(password.into())).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn count_if(self, counts: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.settlements.counts = Some(Arc::new(counts)))
    }

    /// Refunds requests that are cancelled before the service responds: the client closed its connection, or an outer
    /// layer's timeout is over. Defaults to charging them. A request whose handler panics stays charged.
    ///
    /// A client can then start any amount of work without a charge, by cancelling it. Use it only if the service stops
    /// its work too. The refund covers what the request was charged at first under all policies of the layer, even
    /// [reserved](Self::reserve) ones of which units were recorded.
    pub fn refund_cancelled(self) -> Self {
        self.with(|config| config.settlements.refunds_cancelled = true)
    }

    /// Reserves the cost of each request under `policy`: its handler finds a [`Reservation`](crate::Reservation) in the
    /// request's extensions and [settles](crate::Reservation::settle) the actual cost, or
    /// [records](crate::Reservation::record) what it has used so far. If the response's body ends or is dropped before
    /// anything is settled, the request is charged what was recorded; if nothing was, the estimate stays charged.
    ///
    /// The estimate is the [cost](Rule::cost) of the rule. Other policies of the layer are not touched. With several
    /// calls, one reservation covers all the policies that are named. A request that the layer does not charge has a
    /// reservation that covers nothing: an exempt one, with the layer off, or over a [soft](Self::soft) limit.
    ///
    /// # Example
    ///
    /// ```
    /// # #[cfg(feature = "axum")] mod example {
    /// use axum::{Router, body::Body, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{key::Constant, MemoryStore, Policy, Quota, RateLimitLayer, Reservation, Rule};
    ///
    /// async fn complete(reservation: Reservation, prompt: String) -> Result<String, tower_ratelimit::Rejection> {
    ///     let answer = prompt.to_uppercase();
    ///     reservation.settle(answer.len() as u64).await?;
    ///     Ok(answer)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # pub async fn main() {
    /// let tokens = Rule::new(Policy::new("tokens", Quota::per_hour(1_000)), Constant::new("all")).cost(|_| 400);
    /// let requests = Policy::new("requests", Quota::per_hour(10));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), requests, Constant::new("all")).and(tokens).reserve("tokens");
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
    pub fn reserve(self, policy: &str) -> Self {
        self.reserving(policy, false, false)
    }

    /// [`reserve`](Self::reserve), and refunds the estimate if nothing was settled or recorded when the response's body
    /// ends, even if the client has closed its connection or the handler has panicked.
    pub fn reserve_or_refund(self, policy: &str) -> Self {
        self.reserving(policy, true, false)
    }

    /// Charges the bytes of each response's body under `policy`, as they are sent.
    ///
    /// A request is admitted if its [cost](Rule::cost), by default one unit, remains. It pays its cost, or the bytes of the
    /// body if they are more, even if it is cancelled or panics before the response, or the response has no body. The
    /// body is charged in parts of 256 KiB and at its end: what remains, and the policy's [debt](crate::Policy::debt) beyond
    /// that. So one large response is sent as a whole, and the client's next request is denied until its bytes are
    /// replenished. The bytes are those of the service's body, before an outer layer compresses it. If the client leaves,
    /// those that were sent until then are charged.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use http_body_util::{BodyExt, Full};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{key::Constant, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Policy::new("bytes", Quota::per_minute(100_000)).debt(1_000_000);
    /// let layer = RateLimitLayer::new(MemoryStore::new(), bytes, Constant::new("all")).charge_response_bytes("bytes");
    /// let download = layer.layer(tower::service_fn(|_: Request<()>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(Full::<bytes::Bytes>::from(vec![0; 301_000])))
    /// }));
    ///
    /// let response = download.clone().oneshot(Request::new(())).await?;
    /// assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 301_000);
    /// // 201 000 bytes of debt take two minutes.
    /// let denied = download.oneshot(Request::new(())).await?;
    /// assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"121".parse()?));
    /// # Ok(())
    /// # }
    /// ```
    pub fn charge_response_bytes(self, policy: &str) -> Self {
        self.reserving(policy, false, true)
    }

    fn reserving(self, policy: &str, or_refund: bool, by_bytes: bool) -> Self {
        let reserved = Reserved { policy: policy.to_owned(), or_refund, by_bytes };
        self.with(|config| config.settlements.reserved.push(reserved))
    }

    /// Sets the headers of responses. Defaults to [`Headers::ietf`].
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|config| config.headers = HeaderWriter::new(headers))
    }

    /// Sets the response to rejected requests. Defaults to [`ProblemDetails`](crate::response::ProblemDetails).
    ///
    /// `mapper` is a type, a function, or a closure `|rejection: &Rejection, request: &Parts| -> http::Response<_>`. It
    /// also answers a [`Rejection`](crate::Rejection) that a handler returns. To set it for several layers at once, see
    /// [`RateLimits`](super::RateLimits).
    pub fn response(self, mapper: impl ResponseMapper) -> Self {
        self.with(|config| config.mapper = Arc::new(mapper))
    }

    /// Sets the response to rejected gRPC calls. Defaults to [`GrpcStatus`](crate::response::GrpcStatus). The mapper of
    /// [`response`](Self::response) is not used for these, because gRPC clients need a gRPC status.
    pub fn grpc_response(self, mapper: impl ResponseMapper) -> Self {
        self.with(|config| config.grpc = Arc::new(mapper))
    }

    /// Calls `function` with the result of every request: admitted, delayed, denied, banned, exempt, unidentified, or
    /// undecidable because the store is unavailable. Defaults to no function. A second call replaces the function.
    ///
    /// The function is called once for each request, when the layer has decided and before the service is called; and
    /// once more if the service then returns a [`Rejection`](crate::Rejection) of its own that the layer answers, with the
    /// kind [`RejectedByService`](super::DecisionKind::RejectedByService). It is not called while the layer is
    /// [disabled](Self::enabled), nor for a request that is dropped before the decision.
    ///
    /// Requests wait for the function, so do not block in it. If it panics, the request panics.
    ///
    /// # Example
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{key::Constant, layer::DecisionEvent, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let log = seen.clone();
    /// let policy = Policy::new("api", Quota::per_hour(1));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Constant::new("all"))
    ///     .exempt(|parts: &http::request::Parts| parts.uri.path() == "/health")
    ///     .on_decision(move |event: &DecisionEvent<'_>| {
    ///         log.lock().unwrap().push((event.policy().map(String::from), event.kind().as_str()));
    ///     });
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    ///
    /// for path in ["/", "/", "/health"] {
    ///     service.clone().oneshot(Request::get(path).body(String::new())?).await?;
    /// }
    /// let api = || Some(String::from("api"));
    /// assert_eq!(*seen.lock().unwrap(), [(api(), "admitted"), (api(), "denied"), (None, "exempt")]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_decision(self, function: impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static) -> Self {
        self.with(|config| config.on_decision = Some(Arc::new(function)))
    }

    /// What is valid in this layer and probably not meant, each with what to write instead. The first
    /// [`layer`](Layer::layer) call logs them; a test can assert that there are none.
    ///
    /// * The [warnings](crate::Policy::warnings) of its policies, as far as they are not chosen per request.
    /// * A key that clients can vary without end, such as [`RequestPath`](crate::key::RequestPath).
    /// * A rule looks up clients, and no other rule limits requests of unknown clients: [guesses](Self#guesses-are-charged) are
    ///   free.
    /// * Units are reserved of a policy that the layer does not have, or bytes charged to one that counts requests.
    /// * A request that waits in a [queue](crate::algorithm::LeakyBucket::queue) holds permits of a
    ///   [`Concurrency`](crate::algorithm::Concurrency) policy.
    ///
    /// Two more are only known with the first requests, and logged once: a policy that never denies what another one of the
    /// same key admits, and a cost above the capacity.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{key::RequestPath, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
    ///
    /// let policy = Policy::new("api", Quota::per_minute(100));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, (PeerIp::new(), RequestPath::new()));
    /// assert!(layer.warnings()[0].contains("MatchedRoute"));
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.config.warnings()
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.config.warn_once();
        RateLimit::new(inner, self.config.clone())
    }
}
