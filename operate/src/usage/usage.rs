//! [`UsageRoute`]: which limits are shown, and the route.

use std::{convert::Infallible, fmt};

use axum::{
    body::Body,
    extract::{MatchedPath, OriginalUri, Request},
    response::Response,
    routing::{MethodRouter, get},
};
use http::{Method, Uri, request::Parts};
use tower_ratelimit::{
    Charge, Decision, Error, Limiter, Policy, RateLimitLayer, Rejection, decision::Outcome,
    policy::Enforcement,
};

use super::report::report;
use crate::reply::json;

/// A route on which a client sees its own limits.
///
/// The client is identified by the rules of the layer, as for any other request: the charges of its request
/// are found and not made. So it sees the same counts as in the rate limit headers, and no others. No
/// response contains a key.
///
/// ```json
/// {
///   "limits": [{
///     "policy": "search", "quota": "100/min", "unit": "requests",
///     "capacity": 100, "used": 40, "remaining": 60, "owed": 0, "reset_after": 24.0, "banned_for": null
///   }]
/// }
/// ```
///
/// `unit` is what the policy [counts](tower_ratelimit::Charge::unit), such as `tokens`, and `owed` the client's
/// [debt](tower_ratelimit::Policy::max_debt), which is used in addition to `capacity`. Times are in seconds
/// from now. After `reset_after`, nothing is used any more if the client sends nothing. `banned_for` is the
/// remaining time of a [ban](tower_ratelimit::Policy::penalty). For a
/// [concurrency](tower_ratelimit::Policy::concurrency) policy, `quota` is such as `3 at a time`, and `used` are
/// the requests in flight.
///
/// A client that the layer would reject, because it is blocked or cannot be identified, gets that rejection.
/// If the store cannot answer, the response is 503. An exempt client has no limits. Shadow policies are not
/// shown.
///
/// # Where to mount it
///
/// One request reads the store once for each layer, and once more for each policy with debt of which
/// nothing remains, so put a limit by address in front. Inside the layer
/// whose limits it shows, a request to it is charged too, and a denied client cannot read it.
///
/// Mount it only where it gets the requests that the layer would get: behind the same authentication, and the
/// same proxies.
///
/// # Example
///
/// ```
/// use axum::{Router, body::Body, routing::get};
/// use http::{Method, Request, Uri};
/// use http_body_util::BodyExt;
/// use tower::ServiceExt;
/// use tower_ratelimit::{
///     Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule, layer::Rules, store::ManualClock,
/// };
/// use tower_ratelimit_operate::usage::UsageRoute;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rule = |name, limit| Rule::new(Policy::new(name, Quota::per_minute(limit)), Header::new("x-api-key"));
/// let rules = Rules::new().always(rule("all", 60)).route("/search", rule("search", 10));
/// let layer = RateLimitLayer::with_rules(MemoryStore::with_clock(ManualClock::new()), rules);
/// let usage = UsageRoute::new(&layer).of(Method::GET, Uri::from_static("/search"));
/// let app = Router::new()
///     .route("/search", get(async || "found"))
///     .layer(layer)
///     .route("/usage", usage.into_route());
///
/// let get = |path: &str| Request::get(path).header("x-api-key", "k1").body(Body::empty());
/// assert_eq!(app.clone().oneshot(get("/search")?).await?.status(), 200);
/// let body = app.oneshot(get("/usage")?).await?.into_body().collect().await?.to_bytes();
/// assert_eq!(
///     serde_json::from_slice::<serde_json::Value>(&body)?,
///     serde_json::json!({ "limits": [
///         { "policy": "all", "quota": "60/min", "unit": "requests", "capacity": 60, "used": 1, "remaining": 59,
///           "owed": 0, "reset_after": 1.0, "banned_for": null },
///         { "policy": "search", "quota": "10/min", "unit": "requests", "capacity": 10, "used": 1, "remaining": 9,
///           "owed": 0, "reset_after": 6.0, "banned_for": null },
///     ] })
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until `into_route` is called"]
pub struct UsageRoute {
    layers: Vec<RateLimitLayer>,
    requests: Vec<(Method, Uri)>,
    hidden: Vec<String>,
}

impl UsageRoute {
    /// Shows the limits of `layer`.
    pub fn new(layer: &RateLimitLayer) -> Self {
        Self { layers: vec![layer.clone()], requests: Vec::new(), hidden: Vec::new() }
    }

    /// Shows the limits of another layer too. Call it for each layer in front of the service, the outermost
    /// first.
    pub fn and(mut self, layer: &RateLimitLayer) -> Self {
        self.layers.push(layer.clone());
        self
    }

    /// Shows the limits that a request with this method and path would have, if the same client sent it. Can be
    /// called several times: each limit is shown once. Defaults to the request for the usage itself.
    ///
    /// Use it for a layer with a [table of routes](tower_ratelimit::layer::Rules), with a path of each route.
    /// Keys that depend on the [matched route](tower_ratelimit::key::MatchedRoute) of axum are not found: it
    /// is unknown for a request that no router gets. `MatchedRoute` then has an empty key.
    pub fn of(mut self, method: Method, path: Uri) -> Self {
        self.requests.push((method, path));
        self
    }

    /// Leaves the policy `name` out, and does not extract its key. Use it for a policy that all clients share,
    /// whose count reveals what others use, and for one whose key is in the body of requests. Defaults to
    /// showing the policies of all rules that apply.
    pub fn without(mut self, name: impl Into<String>) -> Self {
        self.hidden.push(name.into());
        self
    }

    /// The route, for GET.
    pub fn into_route<S: Clone + Send + Sync + 'static>(self) -> MethodRouter<S, Infallible> {
        get(async move |request: Request| self.response(request).await)
    }

    async fn response(&self, request: Request) -> Response {
        let (request, _) = request.into_parts();
        let mut limits = Vec::new();
        for layer in &self.layers {
            match self.limits(layer, &request).await {
                Ok(found) => limits.extend(found),
                Err(rejection) => return rejection.into_http().map(Body::new),
            }
        }
        json(&report(&limits))
    }

    /// The state of the client's keys under the policies of `layer`.
    async fn limits(
        &self,
        layer: &RateLimitLayer,
        request: &Parts,
    ) -> Result<Vec<(Outcome, u64)>, Rejection> {
        let mut charges: Vec<Charge> = Vec::new();
        for request in self.asked(request) {
            let is_shown = |policy: &Policy| !self.hidden.iter().any(|hidden| hidden == policy.name());
            for (charge, _) in layer.charges_of_one(&request, is_shown).await? {
                let name = charge.policy().name();
                let is_known = |other: &Charge| other.policy().name() == name && other.key() == charge.key();
                if !charges.iter().any(is_known) {
                    // A ban shows only in a decision of a cost. A peek charges none.
                    charges.push(charge.with_cost(1));
                }
            }
        }
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        // As it is counted, even if the layer only reports.
        let limiter = layer.limiter().under(Enforcement::On);
        let decision = limiter.peek_all(&charges).await.map_err(Rejection::Unavailable)?;
        match decision.failure() {
            Some(failure) => Err(Rejection::Unavailable(failure.clone())),
            None => owed(&limiter, &decision).await.map_err(Rejection::Unavailable),
        }
    }

    /// The heads of the requests whose limits are shown, as if the client of `request` sent them.
    fn asked(&self, request: &Parts) -> Vec<Parts> {
        if self.requests.is_empty() {
            return vec![request.clone()];
        }
        let asked = self.requests.iter().map(|(method, path)| {
            let mut asked = request.clone();
            asked.method = method.clone();
            asked.uri = path.clone();
            asked.extensions.remove::<MatchedPath>();
            // What a layer reads instead of the path, because a nested router shortens it.
            asked.extensions.insert(OriginalUri(path.clone()));
            asked
        });
        asked.collect()
    }
}

/// The outcomes, each with the units that the client owes.
async fn owed(limiter: &Limiter, decision: &Decision) -> Result<Vec<(Outcome, u64)>, Error> {
    // Clients see no shadows.
    let others = decision.shadows().iter().filter(|outcome| !outcome.is_shadow());
    let mut all = Vec::new();
    for outcome in decision.outcomes().iter().chain(others) {
        // A client that owes units has none left. A new guarantee starts with its debt.
        let owed = if outcome.remaining() == 0 && !outcome.charge().is_guarantee() {
            limiter.operator().owed(outcome.policy(), outcome.charge().key()).await?
        } else {
            0
        };
        all.push((outcome.clone(), owed));
    }
    Ok(all)
}

impl fmt::Debug for UsageRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsageRoute")
            .field("layers", &self.layers)
            .field("requests", &self.requests)
            .field("hidden", &self.hidden)
            .finish()
    }
}
