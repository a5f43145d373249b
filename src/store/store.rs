use std::sync::Arc;

use crate::{
    answer::Answer,
    decision::{Charge, Decision},
    error::Error,
    key::Key,
    policy::Policy,
};

/// Keeps the counts and decides over them.
///
/// A store is atomic: of everything that happens to a key, nothing happens between its reading of the
/// state and its writing. It is asked for several charges at once only where all of them are to be
/// carried out or none.
///
/// The methods return an [`Answer`], which is ready at once for a store in memory, so that a decision
/// need cost no allocation and no turn of the scheduler.
///
/// # Example
///
/// A store for a test of what your service does when it is refused:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{
///     decision::Outcome, store::{Action, Store}, Answer, Charge, Decision, Key, Limiter, Policy, Quota,
///     Verdict,
/// };
///
/// struct RefuseAll;
///
/// impl Store for RefuseAll {
///     fn decide(&self, _: Action, charges: &[Charge]) -> Answer<Decision> {
///         let verdict = Verdict::Deny { retry_after: Some(Duration::from_secs(7)) };
///         let outcome = |charge: &Charge| Outcome::new(charge, verdict, 0, Duration::from_secs(7));
///         Answer::ready(Ok(Decision::new(charges.iter().map(outcome))))
///     }
///     fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
///         Answer::ready(Ok(()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(RefuseAll);
/// let decision = limiter.check(&Policy::new("p", Quota::per_second(1)), &Key::new("alice"), 1).await?;
/// assert_eq!(decision.retry_after(), Some(Duration::from_secs(7)));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a store nor a `Limiter`",
    label = "counts nothing",
    note = "pass a `RedisStore` (`RedisStore::connect(url).await?`), a `MemoryStore`, or a `Limiter` over one",
    note = "to choose the store at run time, make an `Arc<dyn Store>` or a `Limiter` of it"
)]
pub trait Store: Send + Sync + 'static {
    /// Carries out `action` on all of `charges` in one step.
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision>;

    /// [`decide`](Self::decide) over one charge, which the store may keep: for one that would clone it
    /// otherwise. Defaults to `decide`.
    fn decide_one(&self, action: Action, charge: Charge) -> Answer<Decision> {
        self.decide(action, &[charge])
    }

    /// Forgets what `key` was charged under `policy`.
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()>;

    /// Whether the store can count as `policy` wants it to. Asked when a layer is built. Defaults to yes.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where it cannot.
    fn accept(&self, policy: &Policy) -> Result<(), Error> {
        let _ = policy;
        Ok(())
    }
}

/// A store chosen at run time.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        (**self).decide(action, charges)
    }

    fn decide_one(&self, action: Action, charge: Charge) -> Answer<Decision> {
        (**self).decide_one(action, charge)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        (**self).reset(policy, key)
    }

    fn accept(&self, policy: &Policy) -> Result<(), Error> {
        (**self).accept(policy)
    }
}

/// What to do with charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Charge all of them, or none where one is denied.
    Charge,
    /// Charge as many units of the cost as remain. For one charge at a time.
    ChargeUpTo,
    /// Decide what [`Charge`](Self::Charge) would decide now, and change nothing.
    Peek,
    /// Give the costs back, as far as they were charged. Of units that are held, those of the same charge.
    Refund,
    /// Keep the units that the same charges hold from expiring.
    Renew,
}
