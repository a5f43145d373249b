//! What a layer would do with a request.

use http::request::Parts;

use super::{identify::Identity, layer::RateLimitLayer, rule::Rule};
use crate::{base::Answer, key::Key, limiter::Explanation, response::Rejection};

impl RateLimitLayer {
    /// What this layer would decide about `request` now, and why: the rules that apply to it, their keys, and the state of
    /// each. It charges nothing. For administrators, and for tests of a table of [routes](super::Rules).
    ///
    /// `None` if the layer does not limit the request: it is [off](Self::enabled), the request is [exempt](Self::exempt), or
    /// no rule has a policy for it. A [soft](Self::soft) layer admits what is denied here.
    ///
    /// # Errors
    ///
    /// The rejection of a request whose client is [banned](Self::ban) or cannot be identified, or that the store cannot
    /// decide.
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
    /// let rules = Rules::new().every(rule("all")).route("POST /login", rule("login"));
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules);
    ///
    /// let (request, ()) = Request::post("/login").header("x-api-key", "k-ann").body(())?.into_parts();
    /// let explanation = layer.explain(&request).await?.unwrap();
    /// let policies: Vec<_> = explanation.charges().iter().map(|charge| charge.policy().name()).collect();
    /// assert_eq!(policies, ["all", "login"]);
    ///
    /// let (request, ()) = Request::post("/login").body(())?.into_parts();
    /// assert_eq!(layer.explain(&request).await.unwrap_err().status(), 400);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn explain(&self, request: &Parts) -> Result<Option<Explanation>, Rejection> {
        let config = &self.config;
        let identity =
            config.identify(request, config.enforcement(), false).await.map_err(Rejection::Unidentified)?;
        let found: Vec<(&Rule, Key)> = match identity {
            Identity::Ignored | Identity::Exempt => return Ok(None),
            Identity::Rejected(rejection) => return Err(*rejection),
            Identity::Known(key) => config.rules.iter().zip([key]).collect(),
            Identity::Partly(_, error) => return Err(Rejection::Unidentified(*error)),
            Identity::Denied(decision) => return Err(Rejection::Denied(*decision)),
            Identity::Applicable(keys) => {
                keys.into_iter().filter_map(|(at, key)| Some((config.rules.get(at)?, key))).collect()
            }
        };
        let charges = Answer::all(found.into_iter().map(|(rule, key)| {
            let identity = key.identity().map(String::from);
            rule.charge(key, request).map(|charge| charge.map(|charge| (charge, identity)))
        }));
        let charges = charges.await.map_err(Rejection::Unidentified)?;
        if charges.is_empty() {
            return Ok(None);
        }
        config.limiter.explain_each(charges).await.map(Some).map_err(Rejection::Unavailable)
    }
}
