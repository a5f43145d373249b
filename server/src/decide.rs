//! Has a [`Plan`] decided, all or nothing.

use std::time::Duration;

use tokio::time::timeout;
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, Key, Limiter, Policy,
    decision::Outcome,
    policy::Enforcement,
    store::{Action, Store},
};

use crate::plan::{Plan, is_of_same_client};

/// Makes the decisions of calls.
pub(crate) struct Decider {
    limiter: Limiter,
    /// The same counts of an outage, for calls whose deadline is over before the store's.
    late: Limiter,
    /// The longest time for a call.
    deadline: Duration,
}

/// What was decided.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    /// `None` if nothing is counted.
    decision: Option<Decision>,
    /// What was looked up before a charge.
    peeked: Option<Decision>,
    /// Why there is no decision, under a policy that is closed then.
    pub(crate) failure: Option<Error>,
}

impl Decided {
    /// The decision that counts.
    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref().or(self.peeked.as_ref())
    }

    pub(crate) fn is_denied(&self) -> bool {
        self.failure.is_some() || self.decision().is_some_and(Decision::is_denied)
    }

    /// The outcome of `charge`.
    pub(crate) fn outcome(&self, charge: &Charge) -> Option<&Outcome> {
        let decisions = [&self.decision, &self.peeked].into_iter().flatten();
        let mut outcomes =
            decisions.flat_map(|decision| decision.outcomes().iter().chain(decision.shadows()));
        outcomes.find(|outcome| is_of_same_client(outcome.charge(), charge))
    }
}

impl Decider {
    pub(crate) fn new(limiter: Limiter, store: impl Store, deadline: Duration) -> Self {
        Self { limiter, late: Limiter::new(Late(store)), deadline }
    }

    /// Decides within three quarters of `patience`, the time that the caller waits. After that, the failure modes decide.
    ///
    /// # Errors
    ///
    /// The limit is not set up.
    pub(crate) async fn decide(
        &self,
        plan: &Plan,
        patience: Option<Duration>,
        enforcement: Enforcement,
    ) -> Result<Decided, Error> {
        let deadline = patience.map_or(self.deadline, |patience| self.deadline.min(patience * 3 / 4));
        let under = |limiter: &Limiter| match enforcement {
            Enforcement::On => limiter.clone(),
            other => limiter.under(other),
        };
        let decided = match timeout(deadline, decide(&under(&self.limiter), plan)).await {
            Ok(decided) => decided,
            Err(_) => decide(&under(&self.late), plan).await,
        };
        match decided {
            Err(error) if !matches!(error.kind(), ErrorKind::InvalidConfig | ErrorKind::MissingSetup) => {
                Ok(Decided { failure: Some(error), ..Decided::default() })
            }
            decided => decided,
        }
    }
}

async fn decide(limiter: &Limiter, plan: &Plan) -> Result<Decided, Error> {
    let charges = &plan.charges;
    if charges.is_empty() {
        return Ok(Decided::default());
    }
    let is_ask = |charge: &Charge| charge.cost() == 0;
    if !plan.is_blocked() && !charges.iter().any(is_ask) {
        let decision = limiter.check_all(charges).await?;
        debit(limiter, &decision).await;
        return Ok(Decided { decision: Some(decision), ..Decided::default() });
    }
    // A cost of 0 is always admitted, so a question is whether one unit remains. It is asked right before the others are charged.
    let asked: Vec<Charge> =
        charges.iter().map(|charge| charge.clone().with_cost(charge.cost().max(1))).collect();
    let peeked = limiter.peek_all(&asked).await?;
    let charged: Vec<Charge> = charges.iter().filter(|charge| !is_ask(charge)).cloned().collect();
    let decision = match plan.is_blocked() || peeked.is_denied() || charged.is_empty() {
        true => None,
        false => Some(limiter.check_all(&charged).await?),
    };
    Ok(Decided { decision, peeked: Some(peeked), failure: None })
}

/// Charges what was denied if all policies that deny allow a debt: then the hits are those of work that was done.
async fn debit(limiter: &Limiter, decision: &Decision) {
    let allows_debt = |outcome: &Outcome| outcome.policy().settings().max_debt > 0;
    let denies = |outcome: &&Outcome| outcome.verdict().is_denied();
    if decision.is_denied() && decision.outcomes().iter().filter(denies).all(allows_debt) {
        for outcome in decision.outcomes() {
            // A failure is counted by the limiter, and the answer stays the same.
            let _ = limiter.debit(&Decision::new([outcome.clone()]), outcome.charge().cost()).await;
        }
    }
}

/// A store that is late, so that the failure modes decide. What it counts in an outage is the store's.
struct Late<S>(S);

impl<S: Store> Store for Late<S> {
    fn decide(&self, _: Action, _: &[Charge]) -> Answer<Decision> {
        let message = "the store did not answer in the time that the caller waits";
        Answer::ready(Err(Error::new(ErrorKind::StoreTimeout, message)))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.0.reset(policy, key)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }
}
