//! What a layer would charge for a request.

use http::request::Parts;

use super::{identify::Identity, layer::RateLimitLayer, rule::Rule};
use crate::{base::Answer, decision::Charge, key::Key, limiter::Limiter, response::Rejection};

impl RateLimitLayer {
    /// The charges that this layer would make for `request` now: one for each rule that applies to it, with the key as the
    /// rule's extractor finds it, which the policy may replace in the [`Charge`]. It decides and charges nothing. For operators, and for tests of a table of
    /// [routes](super::Rules).
    ///
    /// Empty if the layer does not limit the request: it is [off](Self::enforcement), the request is [exempt](Self::exempt), or
    /// no rule has a policy for it.
    ///
    /// # Errors
    ///
    /// The rejection of a request whose client is [blocked](Self::block) or cannot be identified.
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
    /// let charges = layer.charges(&request).await?;
    /// let policies: Vec<_> = charges.iter().map(|(charge, _)| charge.policy().name()).collect();
    /// assert_eq!(policies, ["all", "login"]);
    ///
    /// let (request, ()) = Request::post("/login").body(())?.into_parts();
    /// assert_eq!(layer.charges(&request).await.unwrap_err().status(), 400);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(hidden)]
    pub async fn charges(&self, request: &Parts) -> Result<Vec<(Charge, Key)>, Rejection> {
        let config = &self.config;
        let identity = config
            .identify(request, config.gate.enforcement.get(), false)
            .await
            .map_err(Rejection::Unidentified)?;
        let found: Vec<(&Rule, Key)> = match identity {
            Identity::Ignored | Identity::Exempt => return Ok(Vec::new()),
            Identity::Rejected(rejection) => return Err(*rejection),
            Identity::Known(key) => config.rules.as_slice().iter().zip([key]).collect(),
            Identity::Partly(_, error) => return Err(Rejection::Unidentified(*error)),
            Identity::Denied(decision) => return Err(Rejection::Denied(*decision)),
            Identity::Applicable(keys) => {
                keys.into_iter().filter_map(|(at, key)| Some((config.rules.get(at)?, key))).collect()
            }
        };
        let charges = Answer::all(found.into_iter().map(|(rule, key)| {
            let charge = rule.charge(key.clone(), request);
            charge.map(|charge| charge.map(|charge| (charge, key)))
        }));
        charges.await.map_err(Rejection::Unidentified)
    }

    /// The limiter that decides for this layer, on the same counts.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.config.limiter
    }
}
