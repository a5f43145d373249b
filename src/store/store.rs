//! [`Store`], and what the stores of this crate can do in addition: [`Backend`].

use std::sync::Arc;

use super::{
    action::Action,
    clock::ManualClock,
    identity::StoreIdentity,
    list::{Extent, StoredKeys},
    outage::LocalCounts,
};
use crate::{
    base::{Answer, Error},
    decision::{Charge, Decision},
    key::Key,
    policy::Policy,
};

/// A store keeps the counts and decides whether they admit a request.
///
/// A store is atomic: between its reading and its writing of a key's state, nothing else changes that key. A
/// decision on several charges makes all of them or none. In a Redis Cluster, charges to different keys are
/// made one after the other, and refunded if a later one is denied.
///
/// The methods return an [`Answer`]. A store in memory returns one that is ready, so a decision needs no
/// allocation and no task switch.
///
/// # A store around another one
///
/// Wrap a store to log slow decisions, to count denials, or to fail in a test. Implement
/// [`decide`](Self::decide), [`reset`](Self::reset) and [`inner`](Self::inner), and everything else works as
/// with the inner store: [shared counts in an outage](crate::Limiter#when-the-store-fails), the number of
/// instances, leases, the checks of algorithms when a layer is built, and the tools for operators. Stores can
/// be wrapped several times.
///
/// `decide` is called for every decision of a limiter or layer, even if the inner store makes it in this
/// process, from units on [lease](Policy::max_lease) or its deny cache:
///
/// * charges, peeks, debits and refunds, and each try of a [wait](crate::Limiter::wait);
/// * every renewal of a permit ([`Action::Renew`]) and its release ([`Action::Refund`]);
/// * bans;
/// * after an outage, what the store is charged ([`Action::ChargeUpTo`]) and refunded.
///
/// `decide` is not called for:
///
/// * denials that the inner store knows before a layer waits for a key or a policy that is looked up;
/// * the search for the keys that an operator lists;
/// * decisions of a [failure mode](crate::FailureMode), which follow a `decide` that failed;
/// * calls that the inner store makes without a request: to lease and return units, to count instances, and
///   to check connections.
///
/// If `decide` changes keys or policies, do not implement `inner`: the inner store would then look for
/// denials of keys that it does not have.
///
/// # Examples
///
/// Counts the denials of any store:
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
/// use tower_ratelimit::{
///     store::{Action, Store}, Answer, Charge, Decision, Key, Limiter, MemoryStore, Policy, Quota,
/// };
///
/// struct CountDenials<S> {
///     store: S,
///     denials: Arc<AtomicU64>,
/// }
///
/// impl<S: Store> Store for CountDenials<S> {
///     fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
///         let denials = self.denials.clone();
///         self.store.decide(action, charges).map(move |decision| {
///             denials.fetch_add(u64::from(!decision.is_admitted()), Ordering::Relaxed);
///             decision
///         })
///     }
///     fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
///         self.store.reset(policy, key)
///     }
///     fn inner(&self) -> Option<&dyn Store> {
///         Some(&self.store)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let denials = Arc::new(AtomicU64::new(0));
/// let limiter = Limiter::new(CountDenials { store: MemoryStore::new(), denials: denials.clone() });
/// let (policy, alice) = (Policy::new("p", Quota::per_hour(2)), Key::new("alice"));
/// for _ in 0..5 {
///     limiter.check(&policy, &alice, 1).await?;
/// }
/// assert_eq!(denials.load(Ordering::Relaxed), 3);
/// # Ok(())
/// # }
/// ```
///
/// A store without another one, which denies everything, to test how your service behaves then:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{
///     Answer, Charge, Decision, Key, Limiter, Policy, Quota, decision::{Outcome, Verdict},
///     store::{Action, Store},
/// };
///
/// struct DenyAll;
///
/// impl Store for DenyAll {
///     fn decide(&self, _: Action, charges: &[Charge]) -> Answer<Decision> {
///         let verdict = Verdict::deny(Some(Duration::from_secs(7)));
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
/// let limiter = Limiter::new(DenyAll);
/// let decision = limiter.check(&Policy::new("p", Quota::per_second(1)), &Key::new("alice"), 1).await?;
/// assert_eq!(decision.retry_after(), Some(Duration::from_secs(7)));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a store nor a `Limiter`",
    label = "counts nothing",
    note = "pass a `RedisStore` (`RedisStore::connect(url).await?`), a `MemoryStore`, or a `Limiter` over one",
    note = "to choose the store at run time, make a `Limiter` of it"
)]
pub trait Store: Send + Sync + 'static {
    /// Carries out `action` on all of `charges` in one atomic step, and returns one outcome for each charge,
    /// in their order. The answer is an error if the store could not decide; the failure mode of the policies
    /// then applies.
    ///
    /// [`Limiter::wait`](crate::Limiter::wait) asks again after some kinds of errors. Fail with
    /// [`StoreSuspended`](crate::ErrorKind::StoreSuspended) while the store is known to be unavailable: then
    /// it does not.
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision>;

    /// Removes everything that `key` was charged under `policy`. From then on, a refund of a charge from before should
    /// return nothing, as in the crate's own stores.
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()>;

    /// The store that this one wraps: [what it does in addition](Self#a-store-around-another-one) to
    /// [`decide`](Self::decide) is used as if it were not wrapped. Return the same store each time. Defaults
    /// to `None`.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// Returns what this process holds in advance, such as units on [lease](Policy::max_lease).
    /// [`Limiter::drain`](crate::Limiter::drain) calls it before the process ends. Defaults to the
    /// [inner](Self::inner) store's, or to `Ok`.
    ///
    /// # Errors
    ///
    /// The failure of the store.
    fn drain(&self) -> Answer<()> {
        self.inner().map_or_else(|| Answer::ready(Ok(())), |inner| inner.drain())
    }

    // Hidden because only the stores of this crate can return one. It is a method of this trait because a
    // `dyn Store` has no other way to it.
    #[doc(hidden)]
    fn backend(&self) -> Option<BackendRef<'_>> {
        self.inner()?.backend()
    }
}

/// A [`Backend`]. Only this crate can name or make one, so it can change without notice.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, unnameable_types, reason = "it is not part of the API")]
pub struct BackendRef<'a>(pub(crate) &'a dyn Backend);

/// Decides one charge, which it keeps instead of cloning it.
pub(crate) type DecideOne = Box<dyn Fn(Action, Charge) -> Result<Decision, Error> + Send + Sync>;

/// What the stores of this crate can do in addition to [`Store`]. A limiter uses it through any number of
/// stores around them.
pub(crate) trait Backend {
    /// [`decide`](Store::decide) for one charge, if the store decides in this process and cannot fail. Then
    /// no [failure mode](crate::FailureMode) applies. Not used if another store is around it, which may fail
    /// and sees every decision.
    fn decide_one(&self) -> Option<DecideOne> {
        None
    }

    /// The denial of `charges`, if this process knows without a call that the store denies them. A denial
    /// that a [penalty](Policy::penalty) counts is counted. Nothing is charged.
    ///
    /// A layer calls it before it waits for a key or a policy that is looked up, so clients that are over a
    /// limit cause no lookups.
    fn known_denial(&self, charges: &[Charge]) -> Option<Decision>;

    /// Whether this process knows that the store has denied one of `charges`, and still denies it unless
    /// another process has changed that. In that case, `charges` are decided before anything is looked up for
    /// the request, so denials that the store must count or compute cause no lookups either.
    fn has_denied(&self, charges: &[Charge]) -> bool;

    /// What identifies the store, and the layers that use it.
    fn identity(&self) -> &StoreIdentity;

    /// The name under which the store keeps the count of `key` under `policy`. `None` if there is no such
    /// name.
    fn stored_name(&self, policy: &Policy, key: &Key) -> Option<String>;

    /// The keys that the store has under `policies`.
    fn stored_keys(&self, policies: &[Policy], extent: Extent) -> Answer<StoredKeys>;

    /// What this process counts while the store fails, if all limiters on the store share it. `None` if each
    /// limiter and its clones count separately.
    fn local_counts(&self) -> Option<Arc<LocalCounts<dyn Store>>>;

    /// The clock that a test has set in place of the store's.
    fn manual_clock(&self) -> Option<ManualClock>;

    /// Checks whether the store supports the algorithm of `policy`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if it does not.
    fn supports(&self, policy: &Policy) -> Result<(), Error>;
}
