//! The layer: its settings as methods.

use std::{sync::Arc, time::Duration};

use http::request::Parts;
use tower_layer::Layer;

use super::{
    admit::{Admit, FoundKey},
    config::Config,
    context::RequestContext,
    observe::{DecisionEvent, log_unidentified},
    rule::Rule,
    rules::Rules,
    service::RateLimit,
};
use crate::{
    base::{Answer, Error, valid},
    decision::Charge,
    key::{Key, KeyExtractor, matcher},
    limiter::Limiter,
    policy::{Enforcement, EnforcementSwitch, Policy, PolicySource},
    response::{HeaderWriter, RateLimitHeaders, Rejection, ResponseMapper},
};

/// Puts a rate limit in front of a service. It needs a store, a policy and a key.
///
/// The layer has no type parameter: a function can return it, and a struct can hold it. Cloning is cheap.
/// Layers on one store share the counts of policies with the same name and algorithm: the stored name of a count has
/// the policy and the identity, and nothing of the layer or the extractor. So give each
/// [kind of key](KeyExtractor::kind) a policy with its own name.
///
/// See the [crate docs](crate) for an example with axum.
///
/// # What happens to a request
///
/// 1. A [blocked](Self::block_if) request is rejected, and so is one whose blocklist check fails. An
///    [exempt](Self::exempt_if) request goes straight to the service.
/// 2. Each rule determines the request's key, policy and cost. A rule whose path parameter the route lacks does
///    not apply. If a key is missing or unusable, the request is rejected with 400, with 401 if the identity is
///    unknown, or with 500 if the server is not set up for it. If no rule limits the request, it goes straight
///    to the service. A CORS preflight has [a separate budget](Self#cors-preflights).
/// 3. All charges are decided together, all or nothing, before the service is called. In a Redis Cluster,
///    this step is [atomic for each key](crate::guide::redis#cluster).
/// 4. If the request is admitted, the service is called. It finds the decision with
///    [`Decision::from_extensions`](crate::Decision::from_extensions), or extracts it in axum. The response
///    gets the [`RateLimitHeaders`].
/// 5. If the request is denied, the client gets the [`response`](Self::response): 429, or
///    `RESOURCE_EXHAUSTED` over gRPC. The service is not called, the body is not read, and nothing is
///    charged.
///
/// If the store fails, the policy's [`FailureMode`](crate::FailureMode) admits or rejects the request. The
/// service's error type does not change.
///
/// # Guesses are charged
///
/// A request that is rejected with 429 charges nothing, and with 503 it [may
/// have](crate::ErrorKind::may_have_charged). A request that some rules cannot identify, through the client's
/// fault (400 or 401), is charged under the rules that can. If one of these denies it, the client gets 429.
/// So a limit on addresses limits guesses of API keys if it is in the same layer as the limit on API keys.
///
/// * The response carries the headers of what was charged. [`count_if`](Rule::count_if) does not apply to it.
/// * A denial already known in this process, from a `MemoryStore` or the
///   [`deny_cache`](crate::store::RedisStoreBuilder::deny_cache) of a `RedisStore`, is returned before API
///   keys or policies are looked up. If Redis must count a denial for a penalty, or compute it, as for a cost
///   above 1, it first decides about the known keys. So a denied address causes no lookups, except that the
///   first denial comes from Redis.
/// * A failure of the server (500) charges nothing.
///
/// # Where to put it
///
/// Put the layer inside a CORS layer, or browsers cannot read the rejections. List the rate limit headers in
/// `Access-Control-Expose-Headers`. Put the rate limit outside everything expensive.
///
/// # Which requests it sees
///
/// A layer limits the requests that pass it, and no others. With axum:
///
/// | the layer is added with | it limits | it does not see |
/// |---|---|---|
/// | `Router::layer`, after all routes and the fallback | known and unknown paths, also of nested routers, and methods that a route lacks | |
/// | `Router::layer`, before `route`, `fallback` or `fallback_service` | what was added before it, and unknown paths unless a fallback is added | what is added after it |
/// | `Router::route_layer` | the routes added before it | unknown paths |
/// | `Router::layer` on a router that is nested or merged | the routes of that router | unknown paths, also those under the prefix |
///
/// To limit scans of paths that do not exist, add a rule on addresses to a layer around the whole router, with
/// [`count_if`](Rule::count_if) for the status 404. A rule whose key is a path parameter
/// ([`from_extractor`](crate::key::from_extractor)) does not limit requests without the parameter.
///
/// # CORS preflights
///
/// A browser sends a preflight (`OPTIONS` with `Origin` and `Access-Control-Request-Method`) automatically,
/// and a client can send any number of them. If a CORS layer is outside this one, it answers preflights, and
/// they do not reach this layer. If they do, they are limited by the same policies, with a separate budget of
/// the same size for each key. They do not use the client's quota, and their responses show the separate
/// budget. They can be exempt or blocked like other requests. A [ban by a policy](crate::Policy::penalty)
/// also applies to the preflights of its key, and their denials count towards it.
///
/// A preflight carries no credentials. If a rule's key is missing for that reason
/// ([`MissingIdentity`](crate::ErrorKind::MissingIdentity)), the rule counts the preflight by the address of
/// the peer, as [`PeerIp`](crate::PeerIp) does. If the server does not know the address, all such preflights
/// share one budget. Behind a proxy, the peer is the proxy, so all clients share this budget: put the layer
/// inside a CORS layer. If the rule's [`PolicySource`](crate::PolicySource) has no policy for a request
/// without an identity, because it fails with a client's error or `MissingSetup`, the rule does not limit the
/// preflight.
///
/// # Example
///
/// A layer with two policies that are decided in one step, on any Tower service:
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{algorithm::FixedWindow, Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
///
/// fn limits(store: MemoryStore) -> RateLimitLayer {
///     RateLimitLayer::new(store, Policy::new("burst", Quota::per_second(10)), Header::new("x-api-key"))
///         .rule(
///             Rule::new(
///                 Policy::new("daily", Quota::per_day(3)).algorithm(FixedWindow::anchored()),
///                 Header::new("x-api-key"),
///             )
///             .cost(|parts| if parts.method == http::Method::POST { 2 } else { 1 }),
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
///
/// A layer with non-default settings:
///
/// ```
/// use std::time::Duration;
///
/// use http::{Request, Response, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{
///     Header, MemoryStore, Policy, Quota, RateLimitHeaders, RateLimitLayer, Rejection,
///     policy::EnforcementSwitch, response::{Dialect, GrpcStatus},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let switch = EnforcementSwitch::default();
/// let policy = Policy::new("api", Quota::per_hour(1));
/// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Header::new("x-api-key"))
///     .exempt_if(|parts| parts.uri.path() == "/health")
///     .enforcement(&switch)
///     .headers(RateLimitHeaders::new(Dialect::LegacyDelta))
///     .retry_after_jitter(Duration::from_secs(10))
///     .response(|rejection: &Rejection, _: &Parts| {
///         let mut response = Response::new(rejection.to_string());
///         *response.status_mut() = rejection.status();
///         response
///     })
///     .grpc_response(GrpcStatus::default().retry_pushback())
///     .refund_cancelled();
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
/// }));
///
/// let send = async |path| {
///     let request = Request::get(path).header("x-api-key", "k1").body(String::new()).unwrap();
///     service.clone().oneshot(request).await.unwrap()
/// };
/// assert_eq!(send("/").await.headers()["x-ratelimit-limit"], "1");
/// assert_eq!(send("/").await.status(), 429);
/// assert_eq!(send("/health").await.status(), 200);
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
    /// `store` is a [`MemoryStore`](crate::MemoryStore), a [`RedisStore`](crate::RedisStore), a [`Limiter`]
    /// or your own store. `policy` is a [`Policy`](crate::Policy) or a [`PolicySource`].
    ///
    /// # Panics
    ///
    /// If the store does not support the policy's algorithm: a `MemoryStore` with your own algorithm, if that
    /// has no [`Twin`](crate::algorithm::Twin).
    #[track_caller]
    pub fn new(store: impl Into<Limiter>, policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Self {
        Self::with_rules(store, Rule::new(policy, key))
    }

    /// Limits requests by one [`Rule`], such as one with a [cost](Rule::cost), or by a table of routes and
    /// their rules, with the counts in `store`.
    ///
    /// See [`Rules`] for an example of a table.
    ///
    /// # Panics
    ///
    /// * The table has no rule, or more than 65,536.
    /// * Two policies for one request have the same name.
    /// * Two policies of the table have the same name and differ.
    /// * The store does not support a policy's algorithm.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rule};
    ///
    /// let uploads = Rule::new(Policy::new("uploads", Quota::per_hour(10)), PeerIp::new())
    ///     .cost(|parts| if parts.uri.path() == "/upload" { 1 } else { 0 });
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), uploads);
    /// # drop(layer);
    /// ```
    #[track_caller]
    pub fn with_rules(store: impl Into<Limiter>, rules: impl Into<Rules>) -> Self {
        Self::of(Config::new(&store.into(), rules.into()))
    }

    /// A layer with other rules, and the store and all other settings of this one, such as enforcement,
    /// exemptions, blocklists, responses and headers. [Accepted warnings](Self::accept_warning) are not
    /// copied.
    ///
    /// # Panics
    ///
    /// Where [`with_rules`](Self::with_rules) panics.
    ///
    /// # Example
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Json, Router, body::Body, routing::get};
    /// use http::{Request, request::Parts};
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Rule};
    ///
    /// let rule = |name: &str, quota| Rule::new(Policy::new(name, quota), Key::new("all"));
    /// let search = RateLimitLayer::with_rules(MemoryStore::new(), rule("search", Quota::per_hour(1)))
    ///     .response(|rejection: &Rejection, _: &Parts| Json(rejection.to_string()));
    /// let export = search.with_same_settings(rule("export", Quota::per_day(1)));
    /// let app = Router::new()
    ///     .route("/search", get(async || "found").layer(search))
    ///     .route("/export", get(async || "exported").layer(export));
    ///
    /// for path in ["/search", "/export"] {
    ///     let request = || Request::get(path).body(Body::empty());
    ///     assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
    ///     let rejection = app.clone().oneshot(request()?).await?;
    ///     assert_eq!(rejection.status(), 429);
    ///     assert_eq!(rejection.headers()["content-type"], "application/json");
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "axum"))]
    /// # fn main() {}
    /// ```
    #[track_caller]
    pub fn with_same_settings(&self, rules: impl Into<Rules>) -> Self {
        Self::of(self.config.with_rules(rules.into()))
    }

    #[track_caller]
    fn of(config: Result<Config, Error>) -> Self {
        Self { config: Arc::new(valid(config)) }
    }

    /// Adds a rule for all requests. All rules are decided in one atomic step: if one policy denies a
    /// request, none is charged. In a Redis Cluster, rules with different keys are decided [one after the
    /// other](crate::guide::redis#cluster).
    ///
    /// # Panics
    ///
    /// Where [`with_rules`](Self::with_rules) panics, for example if the layer already has a policy of that
    /// name: a client could not tell them apart.
    #[track_caller]
    pub fn rule(self, rule: Rule) -> Self {
        let rules = self.config.rules.clone().always(rule);
        Self::of(self.config.with_rules(rules))
    }

    /// Exempts the requests that `exempt_if` matches, in addition to the matchers of earlier calls. Defaults
    /// to none.
    ///
    /// `exempt_if` is a closure over the request's head that returns a `bool`, or an [`Answer`] that resolves
    /// to one. To match identities or addresses, use [`KeyExtractor::any_of`],
    /// [`PeerIp::within`](crate::PeerIp::within) or [`ClientIp::within`](crate::ClientIp::within). In a
    /// nested router of axum, `parts.uri` is without the router's prefix, unlike the [routes](Rules#routes)
    /// of a table.
    ///
    /// An exempt request is not counted. Its handler gets a [`Decision`](crate::Decision) that admits and has
    /// no outcomes, unless an outer layer made one. If `exempt_if` fails, for example because the identity is
    /// missing or its lookup failed, the request is not exempt.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Header, KeyExtractor, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
    ///
    /// # fn main() -> Result<(), tower_ratelimit::Error> {
    /// let policy = Policy::new("per-ip", Quota::per_second(10));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, PeerIp::new())
    ///     .exempt_if(|parts| parts.uri.path() == "/health")
    ///     .exempt_if(PeerIp::new().within(["192.0.2.0/24", "2001:db8::/32"])?)
    ///     .exempt_if(Header::new("x-api-key").any_of(["partner-1", "partner-2"]))
    ///     .block_if(PeerIp::new().within(["203.0.113.66"])?);
    /// # drop(layer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exempt_if<M: Into<Answer<bool>>>(
        self,
        exempt: impl Fn(&Parts) -> M + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.exempt.push(matcher(exempt)))
    }

    /// Rejects the requests that `blocked` matches, in addition to the matchers of earlier calls: with 429,
    /// the problem type `abnormal-usage-detected`, and no `Retry-After`. `blocked` is a closure like that of
    /// [`exempt_if`](Self::exempt_if). Exempt requests and CORS preflights are blocked too. The store is not
    /// used. Defaults to none.
    ///
    /// A request for which `blocked` fails is also rejected, even if it is exempt or the layer [only
    /// reports](crate::policy::Enforcement::ReportOnly). Otherwise a client could evade the blocklist with a
    /// header that is duplicated, empty or unreadable. The status is 400 for
    /// [`InvalidIdentity`](crate::ErrorKind::InvalidIdentity), 401 for
    /// [`UnknownIdentity`](crate::ErrorKind::UnknownIdentity), and 500 for every other error. A request that
    /// *lacks* the identity ([`MissingIdentity`](crate::ErrorKind::MissingIdentity)) is not blocked.
    ///
    /// To ban clients temporarily, automatically or by hand, see
    /// [`Policy::penalty`](crate::Policy::penalty).
    pub fn block_if<M: Into<Answer<bool>>>(
        self,
        blocked: impl Fn(&Parts) -> M + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.blocked.push(matcher(blocked)))
    }

    /// Sets whether the limits are enforced: an [`Enforcement`](crate::policy::Enforcement), or a switch that
    /// changes it while the service runs. Pass one switch, as `&switch`, to all layers that you want to
    /// change together. Defaults to [`On`](crate::policy::Enforcement::On).
    ///
    /// To leave the layer out of a `Router` at startup, use `option_layer` of `axum_extra::middleware`.
    /// `tower::util::option_layer` needs the same response type with and without the layer, and this layer
    /// wraps the body.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, policy::Enforcement};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// for (enforcement, second) in
    ///     [(Enforcement::On, 429), (Enforcement::ReportOnly, 200), (Enforcement::Off, 200)]
    /// {
    ///     let policy = Policy::new("all", Quota::per_hour(1));
    ///     let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).enforcement(enforcement);
    ///     let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///         Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    ///     }));
    ///     assert_eq!(service.clone().oneshot(Request::new(String::new())).await?.status(), 200);
    ///     let response = service.oneshot(Request::new(String::new())).await?;
    ///     assert_eq!(response.status(), second);
    ///     let is_marked = response.headers().contains_key("x-ratelimit-exceeded");
    ///     assert_eq!(is_marked, enforcement == Enforcement::ReportOnly);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn enforcement(self, enforcement: impl Into<EnforcementSwitch>) -> Self {
        self.with(|config| config.enforcement = enforcement.into())
    }

    /// Refunds requests that are cancelled before the service responds: the client closed its connection, or
    /// an outer layer timed out. Defaults to charging them. A request whose handler panics stays charged.
    ///
    /// With this setting, a client can start any amount of work without a charge, by cancelling it. Use it
    /// only if the service stops its work too. The refund covers the initial charge under every policy of the
    /// layer, including [reserved](Rule::reserve) units already recorded as used. What the handler charged
    /// itself, such as with [`extend_to`](crate::Reservation::extend_to), stays charged unless its
    /// reservation ends with fewer units.
    pub fn refund_cancelled(self) -> Self {
        self.with(|config| config.refunds_cancelled = true)
    }

    /// Sets the headers of responses. Defaults to [`Dialect::Ietf`](crate::response::Dialect::Ietf).
    pub fn headers(self, headers: RateLimitHeaders) -> Self {
        self.with(|config| config.headers = HeaderWriter::new(headers, config.limiter.manual_clock()))
    }

    /// Adds a random time of up to `up_to` to the wait of each denial, so that clients denied together do not
    /// retry together. `Retry-After`, the problem's text and gRPC's RetryInfo state the same wait. Defaults
    /// to no jitter.
    pub fn retry_after_jitter(self, up_to: Duration) -> Self {
        self.with(|config| config.jitter = up_to)
    }

    /// Sets the response to rejected requests. Defaults to
    /// [`ProblemDetails`](crate::response::ProblemDetails).
    ///
    /// `mapper` is a type, a function, or a closure
    /// `|rejection: &Rejection, request: &Parts| -> http::Response<_>`. It also answers a
    /// [`Rejection`](crate::Rejection) that a handler returns. To set it for several layers, see
    /// [`with_same_settings`](Self::with_same_settings).
    pub fn response(self, mapper: impl ResponseMapper) -> Self {
        self.with(|config| config.mapper = mapper.into())
    }

    /// Sets the response to rejected gRPC calls. Defaults to [`GrpcStatus`](crate::response::GrpcStatus). The
    /// mapper of [`response`](Self::response) is not used for these, because gRPC clients need a gRPC status.
    pub fn grpc_response(self, mapper: impl ResponseMapper) -> Self {
        self.with(|config| config.grpc = mapper.into())
    }

    /// Calls `function` with the result of every request: admitted, delayed, denied, banned, blocked, exempt,
    /// unidentified, or not decided because the store is unavailable. Defaults to no function. A second call
    /// replaces the function.
    ///
    /// The function is called once for each request, when the layer has decided and before the service is
    /// called; and once more if the service then returns a [`Rejection`](crate::Rejection) that the layer
    /// answers, with the kind [`RejectedByService`](super::DecisionKind::RejectedByService). It is not called
    /// while the layer is [off](Self::enforcement), nor for a request that is dropped before the decision.
    ///
    /// Requests wait for the function, so do not block in it. If it panics, the request goes on, and the first
    /// panic of the layer is logged: see [your code in the crate](crate::guide::your_code).
    ///
    /// # Example
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let log = seen.clone();
    /// let policy = Policy::new("api", Quota::per_hour(1));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all"))
    ///     .exempt_if(|parts| parts.uri.path() == "/health")
    ///     .on_decision(move |event| {
    ///         log.lock().unwrap().push((event.policy().map(String::from), event.kind.as_str()));
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
        self.with(|config| config.observer.on_decision = Some(Arc::new(function)))
    }

    /// Likely misconfigurations of this layer, each with a suggested fix. The first [`layer`](Layer::layer)
    /// call logs them; a test can assert that the list is empty. [`accept_warning`](Self::accept_warning)
    /// removes the ones that you have decided to accept.
    ///
    /// * A policy's name suggests a login, and its algorithm admits nearly twice its limit in one period.
    /// * A policy's period is not in whole seconds, so the headers cannot show it.
    /// * A rule looks up clients, and no other rule limits requests from unknown clients, so
    ///   [guesses](Self#guesses-are-charged) are free.
    /// * A policy has keys of two [kinds](KeyExtractor::kind), in this layer or in another one that is in use on the
    ///   same store, so equal identities share a count. [`Policy::allow_mixed_keys`] accepts that.
    /// * Bytes are charged to a policy that counts requests.
    /// * A rule has a [`unit`](Rule::unit) and does not reserve, or reserves without a unit beside rules with
    ///   units, so no call of a handler can settle it.
    /// * Requests that wait in a [queue](crate::algorithm::LeakyBucket::queue) hold permits of a
    ///   [`Concurrency`](crate::algorithm::Concurrency) policy in the meantime.
    ///
    /// Policies chosen per request are not checked.
    ///
    /// Some mistakes show only in requests, and are logged once: a cost above a policy's capacity, a request
    /// that two layers charge under one policy, and a [route](Rules#routes) without the prefix of its nested
    /// router.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
    ///
    /// let bytes = Rule::new(Policy::new("bytes", Quota::per_minute(1_000_000)), Key::new("all")).response_bytes();
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), bytes);
    /// assert!(layer.warnings()[0].contains("Policy::quota_unit"));
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.config.warnings()
    }

    /// Accepts the [warnings](Self::warnings) whose text contains `text`: they are neither listed nor logged.
    /// If no warning contains it, that is a warning instead, so the list does not outlive its reasons. A
    /// [sibling](Self::with_same_settings) has other rules and accepts no warnings.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), login, Key::new("all"));
    /// // A burst is fine here: the accounts are locked after 20 failures.
    /// let layer = layer.accept_warning(r#""login" admits up to 9 units"#);
    /// assert!(layer.warnings().is_empty());
    /// ```
    pub fn accept_warning(self, text: impl Into<String>) -> Self {
        self.with(|config| config.rules.accepted.push(text.into()))
    }

    /// The charges that this layer would make for `request` now: one for each rule that applies to it, with
    /// the key that the rule's extractor finds; the policy may replace it in the [`Charge`]. Decides and
    /// charges nothing. For operators, and for tests of a table of [routes](Rules).
    ///
    /// Empty if the layer does not limit the request: it is [off](Self::enforcement), the request is
    /// [exempt](Self::exempt_if), or no rule has a policy for it.
    ///
    /// # Errors
    ///
    /// The rejection of a request whose client is [blocked](Self::block_if) or cannot be identified, or whose
    /// [cost](Rule::cost) is unknown, such as one that depends on the body.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule, layer::Rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = |name: &str| Rule::new(Policy::new(name, Quota::per_minute(5)), Header::new("x-api-key"));
    /// let rules = Rules::new().always(rule("all")).route("POST /search", rule("search"));
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules);
    ///
    /// let (request, ()) = Request::post("/search").header("x-api-key", "k-ann").body(())?.into_parts();
    /// let charges = layer.charges(&request).await?;
    /// let policies: Vec<_> = charges.iter().map(|(charge, _)| charge.policy().name()).collect();
    /// assert_eq!(policies, ["all", "search"]);
    ///
    /// let (request, ()) = Request::post("/search").body(())?.into_parts();
    /// assert_eq!(layer.charges(&request).await.unwrap_err().status(), 400);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn charges(&self, request: &Parts) -> Result<Vec<(Charge, Key)>, Rejection> {
        self.charges_under(request, |_| true).await
    }

    /// [`charges`](Self::charges) under the policies that `is_included` accepts. The key of a rule with another
    /// policy is not extracted, so a request without it is not rejected. Of a policy chosen per request, the key
    /// is extracted first.
    ///
    /// # Errors
    ///
    /// The same as [`charges`](Self::charges).
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = |name: &str| Policy::new(name, Quota::per_minute(5));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy("per-model"), Header::new("x-model"))
    ///     .rule(Rule::new(policy("all"), Key::new("all")));
    ///
    /// let (request, ()) = Request::get("/").body(())?.into_parts();
    /// assert!(layer.charges(&request).await.is_err());
    /// let charges = layer.charges_under(&request, |policy| policy.name() == "all").await?;
    /// assert_eq!(charges[0].0.policy().name(), "all");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn charges_under(
        &self,
        request: &Parts,
        is_included: impl Fn(&Policy) -> bool + Send + Sync,
    ) -> Result<Vec<(Charge, Key)>, Rejection> {
        self.charges_at(request, &is_included, Rule::cost_of).await
    }

    /// [`charges_under`](Self::charges_under) of one unit each: no cost is found, because a cost may depend on a body that
    /// this request does not have.
    ///
    /// # Errors
    ///
    /// As [`charges`](Self::charges), but no cost fails.
    pub async fn charges_of_one(
        &self,
        request: &Parts,
        is_included: impl Fn(&Policy) -> bool + Send + Sync,
    ) -> Result<Vec<(Charge, Key)>, Rejection> {
        self.charges_at(request, &is_included, |_, _| Ok(1)).await
    }

    async fn charges_at(
        &self,
        request: &Parts,
        is_included: &(impl Fn(&Policy) -> bool + Send + Sync),
        cost: fn(&Rule, &Parts) -> Result<u64, Box<Error>>,
    ) -> Result<Vec<(Charge, Key)>, Rejection> {
        let charges = self.find_charges(request, is_included, cost).await;
        charges.inspect_err(|rejection| log_unidentified(rejection, |at| self.config.policy_name(at)))
    }

    async fn find_charges(
        &self,
        request: &Parts,
        is_included: &(impl Fn(&Policy) -> bool + Send + Sync),
        cost: fn(&Rule, &Parts) -> Result<u64, Box<Error>>,
    ) -> Result<Vec<(Charge, Key)>, Rejection> {
        let context = RequestContext::new(self.config.clone(), &request.extensions);
        if context.enforcement == Enforcement::Off {
            return Ok(Vec::new());
        }
        let may_be_included = |rule: &Rule| rule.policy.known().is_none_or(|policy| is_included(&policy));
        let keys = Admit { context: &context, request }.find_keys(may_be_included);
        let keys = keys.await.map_err(Rejection::Unidentified)?.into_keys()?;
        let mut charges: Vec<(Charge, Key)> = Vec::new();
        for FoundKey { rule: place, key, .. } in keys {
            let Some(rule) = context.rule(place) else { continue };
            let unidentified = |error: Error| Rejection::Unidentified(error.of_rule(place));
            let cost = cost(rule, request).map_err(|error| unidentified(*error))?;
            let charge = rule.charge(place, key.clone(), cost, request).await.map_err(unidentified)?;
            let Some(charge) = charge.filter(|charge| is_included(charge.policy())) else { continue };
            // A request merges such charges too.
            if self.config.routes.is_none() || !charges.iter_mut().any(|(one, _)| one.merge(&charge)) {
                charges.push((charge, key));
            }
        }
        Ok(charges)
    }

    /// The limiter that decides for this layer, on the same counts.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.config.limiter
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config).alone());
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
