use super::explanation::{ExplainedCharge, Explanation};
use crate::{
    base::Error,
    decision::{Charge, Decision, Outcome},
    key::Key,
    limiter::Limiter,
    policy::Policy,
    store::Action,
};

impl Limiter {
    /// What [`check`](Self::check) would decide about `key` now, and why: the state of the key, how the store names it,
    /// and the settings of the policy. It charges nothing. For administrators.
    ///
    /// A denial that makes a [penalty](Policy::penalty) ban the key is not foreseen: the explanation shows the wait without
    /// the ban. The store decides, even if this process could answer from a lease or the
    /// [deny cache](crate::store::RedisStoreBuilder::deny_cache). So an instance that has the key in its deny cache may
    /// deny it for up to a second more, and one that has units on [lease](Policy::leased) may still admit it.
    ///
    /// [`Explanation`] prints as text, and with the feature `serde` it is serialized.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check). If the store fails and the policy is not
    /// [`Closed`](crate::FailureMode::Closed), [`Explanation::decision`] has the cause.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// let alice = Key::new("alice");
    /// limiter.check(&login, &alice, 5).await?;
    ///
    /// let explanation = limiter.explain(&login, &alice, 1).await?;
    /// assert!(!explanation.decision().is_allowed());
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
    pub async fn explain(&self, policy: &Policy, key: &Key, cost: u64) -> Result<Explanation, Error> {
        // The charge keeps no identity that the store does not hold.
        self.explain_each(vec![(Charge::new(policy, key, cost), key.identity().map(Into::into))]).await
    }

    /// What [`check_all`](Self::check_all) would decide about `charges` now, and why. See [`explain`](Self::explain).
    ///
    /// # Errors
    ///
    /// Those of [`check_all`](Self::check_all).
    pub async fn explain_all(&self, charges: &[Charge]) -> Result<Explanation, Error> {
        let known = |charge: &Charge| (charge.clone(), charge.key().identity().map(Into::into));
        self.explain_each(charges.iter().map(known).collect()).await
    }

    pub(crate) async fn explain_each(
        &self,
        asked: Vec<(Charge, Option<String>)>,
    ) -> Result<Explanation, Error> {
        let charges: Vec<Charge> = asked.iter().map(|(charge, _)| charge.clone()).collect();
        let decision = self.decide(Action::Peek, &charges).await?;
        let debts = self.debts(&decision).await?;
        let explained = asked.into_iter().map(|(charge, identity)| ExplainedCharge {
            identity,
            stored_name: self.stored_name(charge.policy(), charge.key()),
            outcome: of(&decision, &charge).cloned(),
            owed: of(&debts, &charge).map_or(0, |room| {
                let (_, debt) = charge.policy().debits();
                debt.saturating_sub(room.remaining())
            }),
            charge,
        });
        Ok(Explanation { charges: explained.collect(), decision })
    }

    /// What remains of the room for debts, of the keys that may be in debt.
    async fn debts(&self, decision: &Decision) -> Result<Decision, Error> {
        let may_owe = |one: &&Outcome| one.remaining() == 0 && one.policy().debits().1 > 0;
        let known = decision.all_outcomes().iter().filter(|_| decision.failure().is_none());
        let charges: Vec<Charge> = known.filter(may_owe).map(room_of).collect();
        if charges.is_empty() {
            // A decision without charges succeeds without the store, which would look as if the store answered again.
            return Ok(Decision::new([]));
        }
        let room = self.decide(Action::Peek, &charges).await?;
        // What this process counts for a store that has just failed knows of no debt.
        Ok(if room.failure().is_some() { Decision::new([]) } else { room })
    }
}

/// The charge whose outcome shows what remains of the room for debt, also of a key that is banned.
fn room_of(outcome: &Outcome) -> Charge {
    let room = outcome.policy().debits().0.without_penalty();
    Charge::new(&room, outcome.key(), 0)
}

fn of<'a>(decision: &'a Decision, charge: &Charge) -> Option<&'a Outcome> {
    let is_same = |one: &&Outcome| one.key() == charge.key() && one.policy().name() == charge.policy().name();
    decision.all_outcomes().iter().find(is_same)
}
