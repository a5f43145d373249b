//! Has a [`Plan`] decided, all or nothing.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
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
    /// The same counts of an outage, for calls that are not decided in time.
    late: Limiter,
    /// The longest time for a call.
    deadline: Duration,
}

/// What was decided.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    /// `None` if nothing is counted, or a question or a block denies before anything is charged.
    charged: Option<Decision>,
    /// What was looked up before a charge.
    peeked: Option<Decision>,
    /// Why there is no decision, under a policy that is closed then.
    pub(crate) failure: Option<Error>,
}

impl Decided {
    /// The decision that counts.
    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.charged.as_ref().or(self.peeked.as_ref())
    }

    /// The outcome of `charge`.
    pub(crate) fn outcome(&self, charge: &Charge) -> Option<&Outcome> {
        let decisions = [&self.charged, &self.peeked].into_iter().flatten();
        let mut outcomes =
            decisions.flat_map(|decision| decision.outcomes().iter().chain(decision.shadows()));
        outcomes.find(|outcome| is_of_same_client(outcome.charge(), charge))
    }
}

impl Decider {
    pub(crate) fn new(limiter: &Limiter, store: impl Store, deadline: Duration) -> Self {
        Self { limiter: limiter.clone(), late: Limiter::new(Late(store)), deadline }
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
        let end = Instant::now() + deadline;
        let reporting;
        // Most calls need no other handle on the limiter, whose counts of references all threads share.
        let limiter = match enforcement {
            Enforcement::On => &self.limiter,
            other => {
                reporting = self.limiter.under(other);
                &reporting
            }
        };
        // One call of the store has its deadline, so it needs no timer here.
        let decided = if deadline == self.deadline && !plan.asks() && !plan.is_blocked() {
            decide(limiter, plan).await
        } else {
            // Boxed, because few calls have it, and each moves its future.
            match Box::pin(timeout_at(end, decide(limiter, plan))).await {
                Ok(decided) => decided,
                Err(_) => decide(&self.late.under(enforcement), plan).await,
            }
        };
        match decided {
            Ok(decided) => {
                if let Some(charged) = decided.charged.as_ref().filter(|charged| is_debit(charged)) {
                    let debited = tokio::spawn(debit(limiter.clone(), charged.clone()));
                    // It goes on if the caller no longer waits.
                    let _ = timeout_at(end, debited).await;
                }
                Ok(decided)
            }
            Err(error) if matches!(error.kind(), ErrorKind::InvalidConfig | ErrorKind::MissingSetup) => {
                Err(error)
            }
            Err(error) => Ok(Decided { failure: Some(error), ..Decided::default() }),
        }
    }
}

async fn decide(limiter: &Limiter, plan: &Plan) -> Result<Decided, Error> {
    let charges = &plan.charges;
    if charges.is_empty() {
        return Ok(Decided::default());
    }
    if !plan.is_blocked() && !plan.asks() {
        return Ok(Decided { charged: Some(limiter.check_all(charges).await?), ..Decided::default() });
    }
    // A cost of 0 is always admitted, so a question is whether one unit remains. The others are charged right after it.
    let asked: Vec<_> = charges.iter().map(|charge| charge.clone().with_cost(charge.cost().max(1))).collect();
    let peeked = limiter.peek_all(&asked).await?;
    let mut decided = Decided { peeked: Some(peeked), ..Decided::default() };
    let (questions, charged): (Vec<_>, Vec<_>) =
        charges.iter().cloned().partition(|charge| charge.cost() == 0);
    let is_denied = |charge: &Charge| {
        !charge.never_denies() && decided.outcome(charge).is_some_and(|outcome| outcome.verdict().is_denied())
    };
    if !plan.is_blocked() && !charged.is_empty() && !questions.iter().any(is_denied) {
        decided.charged = Some(limiter.check_all(&charged).await?);
    }
    Ok(decided)
}

/// Whether hits that do not fit are charged all the same: all policies that deny allow a debt, so the hits are of work that was
/// done.
fn is_debit(charged: &Decision) -> bool {
    let mut denied = charged.outcomes().iter().filter(|outcome| outcome.verdict().is_denied()).peekable();
    denied.peek().is_some() && denied.all(|outcome| outcome.policy().settings().max_debt > 0)
}

async fn debit(limiter: Limiter, denied: Decision) {
    for outcome in denied.outcomes() {
        // The limiter counts a failure, and the answer stays the same.
        let _ = limiter.debit(&Decision::new([outcome.clone()]), outcome.charge().cost()).await;
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
