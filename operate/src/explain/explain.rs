//! Makes an [`Explanation`] of a key, of charges or of a request.

use http::request::Parts;
use tower_ratelimit::{Charge, Error, Key, Limiter, Policy, RateLimitLayer, Rejection, policy::Enforcement};

use super::explanation::{ExplainedCharge, Explanation};

impl Explanation {
    /// What [`Limiter::check`] would decide about `key` now, and why: the state of the key, its name in the
    /// store, and the settings of the policy. It charges nothing. For operators.
    ///
    /// The explanation does not foresee a ban: if the denial would make a [penalty](Policy::penalty) ban the
    /// key, it shows the wait without the ban. The store decides, even if this process could answer from a
    /// lease or the [deny cache](tower_ratelimit::store::RedisStoreBuilder::deny_cache). So an instance with
    /// the key in its deny cache may deny it for up to a second more, and one with units on
    /// [lease](Policy::max_lease) may still admit it.
    ///
    /// An explanation prints as text. With the feature `serde`, it can be serialized.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::check`]. If the store fails and the policy is not
    /// [`Closed`](tower_ratelimit::FailureMode::Closed), [`decision`](Self::decision) has the cause.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, store::ManualClock};
    /// use tower_ratelimit_operate::explain::Explanation;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// let alice = Key::new("alice");
    /// limiter.check(&login, &alice, 5).await?;
    ///
    /// let explanation = Explanation::of(&limiter, &login, &alice, 1).await?;
    /// assert!(!explanation.decision().is_admitted());
    /// assert_eq!(explanation.charges()[0].outcome().unwrap().remaining(), 0);
    /// assert_eq!(
    ///     explanation.to_string(),
    ///     "policy login: 5/min, gcra, failure mode local\n\
    ///      key alice\n\
    ///      0 of 5 units remain; fully replenished in 1m\n\
    ///      a request of 1 unit is denied; admitted in 12s\n"
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub async fn of(limiter: &Limiter, policy: &Policy, key: &Key, cost: u64) -> Result<Self, Error> {
        // The charge keeps no identity that the store does not hold.
        explain(limiter, vec![(Charge::new(policy, key, cost), key.identity().map(Into::into))]).await
    }

    /// What [`Limiter::check_all`] would decide about `charges` now, and why. See [`of`](Self::of).
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::check_all`].
    pub async fn of_all(limiter: &Limiter, charges: &[Charge]) -> Result<Self, Error> {
        let known = |charge: &Charge| (charge.clone(), charge.key().identity().map(Into::into));
        explain(limiter, charges.iter().map(known).collect()).await
    }

    /// What `layer` would decide about `request` now, and why: the rules that apply to it, their keys, and
    /// the state of each. It charges nothing.
    ///
    /// `None` if the layer does not limit the request: the layer is [off](RateLimitLayer::enforcement), the
    /// request is [exempt](RateLimitLayer::exempt_if), or no rule has a policy for it. If the layer [only
    /// reports](tower_ratelimit::policy::Enforcement::ReportOnly), it admits requests that are denied here.
    ///
    /// # Errors
    ///
    /// The rejection, if the client is [blocked](RateLimitLayer::block_if) or cannot be identified, or if the
    /// store cannot decide.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule, layer::Rules};
    /// use tower_ratelimit_operate::explain::Explanation;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = |name: &str| Rule::new(Policy::new(name, Quota::per_minute(5)), Header::new("x-api-key"));
    /// let rules = Rules::new().always(rule("all")).route("POST /login", rule("login"));
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules);
    ///
    /// let (request, ()) = Request::post("/login").header("x-api-key", "k-ann").body(())?.into_parts();
    /// let explanation = Explanation::of_request(&layer, &request).await?.unwrap();
    /// let policies: Vec<_> = explanation.charges().iter().map(|charge| charge.policy().name()).collect();
    /// assert_eq!(policies, ["all", "login"]);
    ///
    /// let (request, ()) = Request::post("/login").body(())?.into_parts();
    /// assert_eq!(Explanation::of_request(&layer, &request).await.unwrap_err().status(), 400);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn of_request(layer: &RateLimitLayer, request: &Parts) -> Result<Option<Self>, Rejection> {
        let charges = layer.charges(request).await?;
        if charges.is_empty() {
            return Ok(None);
        }
        let known = charges.into_iter().map(|(charge, key)| (charge, key.identity().map(String::from)));
        explain(layer.limiter(), known.collect()).await.map(Some).map_err(Rejection::Unavailable)
    }
}

/// Explains charges, each with its identity if it is known.
async fn explain(limiter: &Limiter, asked: Vec<(Charge, Option<String>)>) -> Result<Explanation, Error> {
    let charges: Vec<Charge> = asked.iter().map(|(charge, _)| charge.clone()).collect();
    // The decision is the enforced one, even in a handler of a layer that only reports.
    let decision = limiter.under(Enforcement::On).peek_all(&charges).await?;
    let mut explained = Vec::with_capacity(asked.len());
    for (charge, identity) in asked {
        let (policy, key) = (charge.policy(), charge.key());
        let mut outcomes = decision.outcomes().iter().chain(decision.shadows());
        let outcome =
            outcomes.find(|one| one.charge().key() == key && one.policy().name() == policy.name()).cloned();
        let may_owe =
            decision.failure().is_none() && outcome.as_ref().is_some_and(|one| one.remaining() == 0);
        let operator = limiter.operator();
        let owed = if may_owe { operator.owed(policy, key).await? } else { 0 };
        let stored_name = operator.stored_name(policy, key);
        explained.push(ExplainedCharge { charge, identity, stored_name, outcome, owed });
    }
    Ok(Explanation { charges: explained, decision })
}
