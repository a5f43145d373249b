//! Charges for what a request has cost, once that is known.

use super::limiter::Limiter;
use crate::{
    base::Answer,
    decision::{Charge, Decision, Outcome},
    policy::Policy,
    store::Action,
};

impl Limiter {
    /// Charges `units` more units to every key of `decision`, under the same policies, regardless of what remains. For
    /// a cost that is known when it can no longer be prevented: the bytes of a response, the tokens of a model.
    ///
    /// It charges what remains, and beyond that as much as the policy allows as [debt](Policy::debt). So it is always
    /// admitted; [`Outcome::granted`] is the number of units charged, and later requests are denied until the units are
    /// replenished. [`charge_more`](Self::charge_more) instead denies, and charges nothing, if the units do not remain.
    /// Permits of a [`Concurrency`](crate::algorithm::Concurrency) policy are not debited, nor is a
    /// [shadow](Policy::shadow) that denied the request.
    ///
    /// Of a decision over several policies, [`Decision::for_policy`] selects the one to debit. To reserve an estimate
    /// first, see [`Reservation`](crate::Reservation).
    ///
    /// # Errors
    ///
    /// The same as [`check`](Self::check). If the store fails, the [failure mode](crate::FailureMode) of the policies
    /// applies. A debit that fails is not repeated: it may have been charged.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let bytes = Policy::new("bytes", Quota::per_day(1_000));
    /// let alice = Key::new("alice");
    ///
    /// let request = limiter.check(&bytes, &alice, 1).await?;
    /// let response = "x".repeat(2_000);
    /// let debited = limiter.debit(&request, response.len() as u64).await?;
    /// assert!(debited.is_allowed());
    /// assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (999, Some(0)));
    /// assert!(!limiter.check(&bytes, &alice, 1).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn debit(&self, decision: &Decision, units: u64) -> Answer<Decision> {
        self.enforced(|| self.debit_each(decision, |_| units))
    }

    /// Debits `units(place)` to the outcome at each place.
    pub(super) fn debit_each(&self, decision: &Decision, units: impl Fn(usize) -> u64) -> Answer<Decision> {
        let is_debited = |one: &Outcome| !(one.policy().has_permits() || one.is_shadow() && one.is_denied());
        let debited = decision.all_outcomes().iter().enumerate().filter(|(_, one)| is_debited(one));
        let (policies, charges): (Vec<Policy>, Vec<Charge>) = debited
            .map(|(place, one)| {
                (one.policy().clone(), Charge::new(one.policy().debits(), one.key(), units(place)))
            })
            .unzip();
        if charges.is_empty() {
            return Answer::ready(Ok(decision.clone()));
        }
        self.decide(Action::Debit, &charges).then(move |debited| Ok(of_policies(&policies, debited?)))
    }
}

/// The decision of a debit, as one of `policies` instead of those that count debits.
fn of_policies(policies: &[Policy], debited: Decision) -> Decision {
    // While the store fails, there is no room for debt.
    let is_local = debited.failure().is_some();
    debited.map(|outcome: Outcome| match policies.iter().find(|one| one.debits() == outcome.policy()) {
        Some(policy) => outcome.of_debit(policy, if is_local { 0 } else { policy.debt_units() }),
        None => outcome,
    })
}
