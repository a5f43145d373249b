//! Where the counts are kept: [`MemoryStore`] in this process, `RedisStore` for all of them.

mod answer;
mod memory;
#[cfg(feature = "redis")]
mod redis;

#[cfg(feature = "redis")]
pub use self::redis::RedisStore;
pub use self::{answer::Answer, memory::MemoryStore};

use crate::{Charge, Decision, Key, Policy};

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
/// use tower_ratelimit::{Answer, Charge, Decision, Key, Limiter, Outcome, Policy, Quota, Store, Verdict};
///
/// struct RefuseAll;
///
/// impl Store for RefuseAll {
///     fn decide(&self, charges: &[Charge]) -> Answer<Decision> {
///         let verdict = Verdict::Deny { retry_after: Some(Duration::from_secs(7)) };
///         let outcome = |charge: &Charge| Outcome::new(&charge.policy, verdict, 0, Duration::from_secs(7));
///         Answer::ready(Ok(Decision::new(charges.iter().map(outcome))))
///     }
///     fn peek(&self, charges: &[Charge]) -> Answer<Decision> {
///         self.decide(charges)
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
pub trait Store: Send + Sync + 'static {
    /// Charges all of `charges`, or none of them where one is refused.
    fn decide(&self, charges: &[Charge]) -> Answer<Decision>;

    /// What [`decide`](Self::decide) would say now. Nothing is charged and nothing is written.
    fn peek(&self, charges: &[Charge]) -> Answer<Decision>;

    /// Forgets what `key` was charged under `policy`.
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()>;
}
