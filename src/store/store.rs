use std::sync::Arc;

use super::{clock::ManualClock, outage::LocalCounts};
use crate::{
    base::{Answer, Error},
    decision::{Charge, Decision, OneOrMany},
    key::Key,
    policy::Policy,
};

/// A store keeps the counts and decides whether they admit a request.
///
/// A store is atomic: between its reading and its writing of a key's state, nothing else changes that key. A decision
/// on several charges makes all of them or none. In a Redis Cluster, charges to different keys are made one after the
/// other, and refunded if a later one is denied.
///
/// The methods return an [`Answer`]. A store in memory returns one that is ready, so a decision needs no allocation and
/// no task switch.
///
/// # Example
///
/// A store that denies everything, to test how your service behaves then:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{
///     decision::Outcome, store::{Action, Store}, Answer, Charge, Decision, Key, Limiter, Policy, Quota,
///     Verdict,
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
    /// Carries out `action` on all of `charges` in one atomic step, and returns one outcome for each charge, in their
    /// order. The answer is an error if the store could not decide; the failure mode of the policies then applies.
    ///
    /// [`Limiter::wait`](crate::Limiter::wait) asks again after some kinds of errors. Fail with
    /// [`StoreSuspended`](crate::ErrorKind::StoreSuspended) while the store is known to be unavailable: then it does not.
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision>;

    /// Whether the store decides in this process and cannot fail. Then no [failure mode](crate::FailureMode) is applied.
    /// Defaults to `false`.
    #[doc(hidden)]
    fn is_in_process(&self) -> bool {
        false
    }

    /// [`decide`](Self::decide) for one charge, which the store may keep instead of cloning it. Called only if it
    /// [decides in this process](Self::is_in_process). Defaults to `decide`.
    #[doc(hidden)]
    fn decide_one(&self, action: Action, charge: Charge) -> Answer<Decision> {
        self.decide(action, &[charge])
    }

    /// The denial of `charges`, if this process knows without asking another one that the store denies them. A denial
    /// that a [penalty](Policy::penalty) counts is counted. Nothing is charged.
    ///
    /// A layer calls it before it waits for a key or a policy that is looked up, so clients that are over a limit cause
    /// no lookups. Defaults to `None`.
    #[doc(hidden)]
    fn known_denial(&self, charges: &[Charge]) -> Option<Decision> {
        let _ = charges;
        None
    }

    /// Whether this process knows that the store has denied one of `charges`, and that it still does unless another process
    /// has changed that. `charges` are decided then before anything is looked up for the request, so denials that the
    /// store must count or compute cause no lookups either. Defaults to `false`.
    #[doc(hidden)]
    fn has_denied(&self, charges: &[Charge]) -> bool {
        let _ = charges;
        false
    }

    /// Removes everything that `key` was charged under `policy`.
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()>;

    /// The name under which the store keeps the count of `key` under `policy`, for operators: the key in Redis.
    /// Defaults to `None`: there is no such name.
    #[doc(hidden)]
    fn stored_name(&self, policy: &Policy, key: &Key) -> Option<String> {
        let _ = (policy, key);
        None
    }

    /// The keys that the store has under `policies`, for operators. Defaults to an error.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the store cannot list its keys.
    #[doc(hidden)]
    fn stored_keys(&self, policies: &[Policy], extent: Extent) -> Answer<StoredKeys> {
        let _ = (policies, extent);
        let problem = "this store cannot list its keys: use a `RedisStore` or a `MemoryStore`";
        Answer::ready(Err(Error::invalid(problem)))
    }

    /// Peeks, for an operator who can wait: a deadline that it misses does not count as a failure for requests. Defaults to
    /// [`decide`](Self::decide).
    #[doc(hidden)]
    fn peek_patiently(&self, charges: &[Charge]) -> Answer<Decision> {
        self.decide(Action::Peek, charges)
    }

    /// Returns what this process holds in advance, such as units on [lease](Policy::leased).
    /// [`Limiter::drain`](crate::Limiter::drain) calls it before the process ends. Defaults to `Ok`.
    ///
    /// # Errors
    ///
    /// The failure of the store.
    fn drain(&self) -> Answer<()> {
        Answer::ready(Ok(()))
    }

    /// What this process counts while the store fails, if all limiters on the store share it. Defaults to `None`: each
    /// limiter and its clones count on their own.
    #[doc(hidden)]
    fn local_counts(&self) -> Option<Arc<LocalCounts<dyn Store>>> {
        None
    }

    /// The clock that a test has set in place of the store's. Defaults to `None`.
    #[doc(hidden)]
    fn manual_clock(&self) -> Option<ManualClock> {
        None
    }

    /// Checks whether the store supports the algorithm of `policy`. Called when a layer is built. Defaults to `Ok`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if it does not.
    #[doc(hidden)]
    fn accept(&self, policy: &Policy) -> Result<(), Error> {
        let _ = policy;
        Ok(())
    }
}

/// How many keys a search in Redis looks at.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// All names of the one policy, until about this number is found. It counts no others.
    Found(usize),
    /// About this number of keys of each server, including other programs' keys.
    Seen(usize),
}

/// The keys that a store has.
#[derive(Clone, Debug)]
pub struct StoredKeys {
    /// Each key as it is [stored](crate::key#the-stored-form), and the place of its policy among those that were asked
    /// for.
    pub keys: Vec<(usize, Key)>,
    /// How many names belong to none of the policies: to other policies, to a policy that had another algorithm, or to
    /// the hash of live policies.
    pub others: usize,
    /// Whether all keys were looked at.
    pub is_complete: bool,
}

/// What a store does with charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Charge all of them, or none if one is denied.
    Charge,
    /// Charge as many units as remain, up to the cost. For one charge at a time.
    ChargeUpTo,
    /// Charge each as many units as remain, up to its cost. Always admitted, even if nothing remains.
    Debit,
    /// Decide as [`Charge`](Self::Charge) would now, and change nothing.
    Peek,
    /// Refund the units that were charged and still count, up to the costs. For a policy with permits, release the
    /// permit of the same charge.
    Refund,
    /// Renew the permits of the same charges, so they do not expire. Permits that the store has lost are in use again,
    /// even above the limit.
    Renew,
    /// Ban the keys for `cost` microseconds from now, under policies with a [penalty](crate::Policy::penalty). A cost
    /// of 0 ends the ban, and forgets earlier denials and bans. Charges nothing.
    ///
    /// The outcome is [banned](crate::decision::Outcome::banned_for) if the key is banned then. A store without bans
    /// returns another one.
    Ban,
}

/// What an action does. Each decision has three phases: the states are changed, the charges are planned, and they are
/// charged. Calls of Redis have these fields as numbers, see `lua/README.md`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// Changes each state before anything is planned. Then no units are.
    pub(crate) change: Option<StateChange>,
    /// Whether a penalty or a denial denies all charges, except those that are shadows.
    pub(crate) denies: bool,
    /// Whether admitted units are charged.
    pub(crate) charges: bool,
    /// The units that are charged at least if not all remain. `None` if none are charged then.
    pub(crate) least: Option<u64>,
}

/// A change of a state that is not a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateChange {
    Refund = 1,
    Renew = 2,
    Ban = 3,
}

impl Action {
    pub(crate) const fn spec(self) -> Spec {
        let (change, denies, charges, least) = match self {
            Self::Charge => (None, true, true, None),
            // If nothing remains, one unit is planned, for its retry time.
            Self::ChargeUpTo => (None, true, true, Some(1)),
            Self::Debit => (None, false, true, Some(0)),
            Self::Peek => (None, true, false, None),
            Self::Refund => (Some(StateChange::Refund), false, false, None),
            Self::Renew => (Some(StateChange::Renew), false, false, None),
            Self::Ban => (Some(StateChange::Ban), false, false, None),
        };
        Spec { change, denies, charges, least }
    }

    /// Whether an admitted decision charges units.
    #[cfg(feature = "redis")]
    pub(crate) const fn charges_units(self) -> bool {
        self.spec().charges
    }
}

/// A charge against the [penalty](crate::Policy::penalty) of a policy. It reports whether the key is banned, and counts
/// its denials.
#[derive(Clone, Debug)]
pub(crate) struct PenaltyCharge {
    /// The place of the charge that it belongs to.
    pub(crate) place: usize,
    pub(crate) charge: Charge,
}

impl PenaltyCharge {
    /// The penalties of `charges`, in their order. A preflight has the bans of its client. Their keys have the same
    /// hash tag, so they are in the same slot of a Cluster.
    pub(crate) fn of(action: Action, charges: &[Charge]) -> OneOrMany<Self> {
        let Spec { change, denies, .. } = action.spec();
        let cost = |charge: &Charge| match change {
            Some(StateChange::Ban) => Some(charge.cost()),
            _ => (denies && charge.cost() > 0 && !charge.is_shadow()).then_some(1),
        };
        let penalty = |(place, charge): (usize, &Charge)| {
            let (bans, cost) = (charge.policy().bans()?.clone(), cost(charge)?);
            let key = charge.key().client().unwrap_or_else(|| charge.key().clone());
            Some(Self { place, charge: Charge::of(bans, key, cost) })
        };
        match charges {
            [charge] => penalty((0, charge)).map_or_else(OneOrMany::none, OneOrMany::One),
            many => OneOrMany::Many(many.iter().enumerate().filter_map(penalty).collect()),
        }
    }
}

/// Which denials a call counts for the penalties of its charges.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only a Cluster decides in several calls"))]
pub(crate) enum Counts {
    /// The denials of these charges.
    #[default]
    Own,
    /// None: a later call counts them.
    Later,
    /// One each, which was decided in an earlier call.
    Earlier,
}
