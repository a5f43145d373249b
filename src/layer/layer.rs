use std::sync::Arc;

use http::request::Parts;
use tower_layer::Layer;

use super::{
    config::{Config, Preflight},
    rule::Rule,
    service::RateLimit,
};
use crate::{
    key::{KeyExtractor, RequestMatcher},
    limiter::Limiter,
    policy::PolicySource,
    response::{HeaderWriter, Headers, ResponseMapper},
    util::per_thread::PerThread,
};

/// Puts a rate limit in front of a service. Give it a store, a policy and a key.
///
/// It has no type parameter: a function can return one, a struct can hold one. Cloning is cheap, and
/// all services a layer makes, and all layers on one store, share its counts.
///
/// See the [crate docs](crate) for an example with axum.
///
/// # What happens to a request
///
/// 1. A request that is [banned](Self::ban), or might be, is rejected. One that is [exempt](Self::exempt) goes
///    straight to the service.
/// 2. Each rule finds the request's key, policy and cost. Where one finds no key, the answer is 400, or
///    500 where the server's set-up is at fault. A CORS preflight has
///    [a budget of its own](Self#cors-preflights).
/// 3. All charges are decided together, all or nothing, before the service is called.
/// 4. Admitted, the request goes to the service with the [`Decision`](crate::Decision) in its extensions;
///    the response gets the [`Headers`] and the decision too.
/// 5. Refused, the client gets the [`response`](Self::response): 429, or over gRPC `RESOURCE_EXHAUSTED`. The service is not called, the
///    body is not read, and nothing is charged.
///
/// A failure of the store never becomes the service's error: its error type stays its own.
///
/// # Where to put it
///
/// Inside a CORS layer, or browsers cannot read the rejections; and list the headers in
/// `Access-Control-Expose-Headers`. Outside everything that is expensive.
///
/// # CORS preflights
///
/// A browser sends a preflight (`OPTIONS` with `Origin` and `Access-Control-Request-Method`) unasked, and a client
/// can send any number of them. A CORS layer outside of this one answers them, and they do not get here. Those
/// that do count against the same policies, each on a budget of its own of the same size: they take nothing from
/// the quota of the client, are limited themselves, and their responses show that budget. They can be exempt or
/// banned like other requests.
///
/// A preflight carries no credentials. A rule whose key is one ([`MissingIdentity`](crate::ErrorKind::MissingIdentity)
/// for the preflight) counts it by the peer's address as [`PeerIp`](crate::PeerIp) does, or, where the server does
/// not know that, together with all others of this kind. Behind a proxy this is one budget for all its clients:
/// there, put the layer inside a CORS layer. See [`exempt_preflight`](Self::exempt_preflight) and
/// [`limit_preflight`](Self::limit_preflight) for other ways.
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
    config: Arc<PerThread<Config>>,
}

impl RateLimitLayer {
    /// Limits each `key` to `policy`, with the counts in `store`.
    ///
    /// `store` is a [`MemoryStore`](crate::MemoryStore), a [`RedisStore`](crate::RedisStore), a
    /// [`Limiter`], or a store of your own; `policy` a [`Policy`](crate::Policy) or a [`PolicySource`].
    ///
    /// # Panics
    ///
    /// If the store cannot count as the policy wants it to: a `MemoryStore` by an algorithm of your own.
    #[track_caller]
    pub fn new(store: impl Into<Limiter>, policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Self {
        let (config, rule) = (Config::new(store.into()), Rule::new(policy, key));
        accept(&config.limiter, &rule.policy, &[]);
        Self::of(Config { rules: vec![rule], ..config })
    }

    pub(super) fn of(config: Config) -> Self {
        Self { config: Arc::new(PerThread::new(config)) }
    }

    /// Limits requests by `rule` as well. All rules are decided in one atomic step: a request that one of their
    /// policies denies is charged to none.
    ///
    /// # Panics
    ///
    /// If the layer has a policy of that name already, because a client could not tell the two apart; and
    /// where [`new`](Self::new) panics.
    #[track_caller]
    pub fn and(self, rule: Rule) -> Self {
        let config = self.config.original();
        accept(&config.limiter, &rule.policy, &config.rules);
        self.with(|config| config.rules.push(rule))
    }

    /// What a request costs, in units, under the policy that [`new`](Self::new) was given. Defaults to 1. A cost of
    /// 0 is always admitted and charges nothing; one above the policy's capacity is always denied. For the policies
    /// of other rules, see [`Rule::cost`].
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|config| {
            if let Some(first) = config.rules.first_mut() {
                first.cost = Some(Arc::new(cost));
            }
        })
    }

    /// Lets the requests that `exempt` matches through uncounted, and those that an earlier `exempt` named:
    /// a closure over the request's head, or an extractor's keys or networks. Defaults to none.
    ///
    /// They carry no [`Decision`](crate::Decision): a handler that takes one takes an `Option`. A request for which
    /// `exempt` is undecided, because its identity is missing or cannot be used, is not exempt.
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

    /// Rejects the requests that `banned` matches, exempt or not, CORS preflights too, and those that an
    /// earlier `ban` named: 429 with the problem type `abnormal-usage-detected` and no `Retry-After`. The store is
    /// not used. Defaults to none.
    ///
    /// A request for which `banned` is undecided is rejected too, exempt or not, in [soft](Self::soft) mode as well:
    /// otherwise a client would evade the ban with a header that it sends twice, empty, or unreadable. The answer
    /// is 400 for [`InvalidIdentity`](crate::ErrorKind::InvalidIdentity), which is the client's fault, and 500 for
    /// every other error. A request that *lacks* the identity
    /// ([`MissingIdentity`](crate::ErrorKind::MissingIdentity)) is not banned.
    pub fn ban(self, banned: impl RequestMatcher) -> Self {
        self.with(|config| config.banned.push(Arc::new(banned)))
    }

    /// Admits every request except those that are [banned](Self::ban) or might be, and marks those over the
    /// limit: the [`Decision`](crate::Decision) in the extensions is a denial, and the header
    /// `X-RateLimit-Exceeded`, on the request and on the response, lists the policies that denied. Nothing is
    /// charged for them. Defaults to rejecting them.
    ///
    /// For trying a limit out, or for serving less to those over it. A request that shows no identity, and
    /// one that the store could not decide, goes through unmarked. Where only one policy of several is to be
    /// soft, give it a layer of its own.
    pub fn soft(self) -> Self {
        self.with(|config| config.soft = true)
    }

    /// Exempts CORS preflights: they go to the service uncounted. Defaults to [a budget of their own](Self#cors-preflights).
    ///
    /// Every client can then send any number of them, and the service is called for each: do this only where the
    /// service answers preflights at no cost.
    pub fn exempt_preflight(self) -> Self {
        self.with(|config| config.preflight = Preflight::Exempt)
    }

    /// Counts CORS preflights like any other request, against the quota of the client; one that lacks the identity
    /// is rejected with 400. Defaults to [a budget of their own](Self#cors-preflights).
    pub fn limit_preflight(self) -> Self {
        self.with(|config| config.preflight = Preflight::Limited)
    }

    /// Whether the layer does anything. Defaults to `true`; with `false` every request reaches the service, as if it
    /// were [exempt](Self::exempt), banned ones too.
    ///
    /// For a switch in the configuration. `tower::util::option_layer` does not fit, because it wants the same response
    /// type with and without the layer, and this one wraps the body.
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

    /// The rate limit headers of responses. Defaults to [`Headers::ietf`].
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|config| config.headers = HeaderWriter::new(headers))
    }

    /// Makes the responses to rejected requests: a closure
    /// `|rejection: &Rejection, request: &Parts| -> http::Response<_>`, a function, or a type. A
    /// [`Rejection`](crate::Rejection) that the handler returns is answered by it too. Defaults to
    /// [`ProblemDetails`](crate::response::ProblemDetails). To set it for several layers at once, see [`RateLimits`](super::RateLimits).
    pub fn response(self, mapper: impl ResponseMapper) -> Self {
        self.with(|config| config.mapper = Arc::new(mapper))
    }

    /// Makes the responses to rejected gRPC calls. Defaults to [`GrpcStatus`](crate::response::GrpcStatus). gRPC clients
    /// read nothing else, so [`response`](Self::response) is not used for them.
    pub fn grpc_response(self, mapper: impl ResponseMapper) -> Self {
        self.with(|config| config.grpc = Arc::new(mapper))
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(PerThread::change(&mut self.config));
        self
    }
}

#[track_caller]
pub(super) fn accept(limiter: &Limiter, policy: &PolicySource, rules: &[Rule]) {
    let others = rules.iter().filter_map(|rule| rule.policy.constant());
    if let Some(Err(error)) = policy.constant().map(|policy| limiter.accept(policy, others)) {
        panic!("{error}");
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.config.clone())
    }
}
