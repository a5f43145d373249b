//! The calls of operators.

use std::time::Duration;

use super::limiter::Limiter;
use crate::{
    base::{Answer, Error, ErrorKind, time::micros},
    decision::{Charge, Decision, Outcome},
    key::Key,
    policy::{MAX_BAN, Policy},
    store::{Action, BanList},
};

/// The most bans that [`Operator::bans`] lists.
const MOST_BANS: usize = 10_000;

/// What operators do, from [`Limiter::operator`]: reset, refund, ban or unban a key, and list bans. Cloning is cheap.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let (mails, acme) = (Policy::new("mails", Quota::per_hour(100)), Key::new("acme"));
/// limiter.check(&mails, &acme, 90).await?;
///
/// let operator = limiter.operator();
/// assert_eq!(operator.refund_latest(&mails, &acme, 20).await?.remaining(), Some(30));
/// operator.reset(&mails, &acme).await?;
/// assert_eq!(limiter.peek(&mails, &acme, 0).await?.remaining(), Some(100));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Operator(Limiter);

impl Limiter {
    /// The calls that operators make, on the same store.
    #[must_use]
    pub fn operator(&self) -> Operator {
        Operator(self.clone())
    }
}

impl Operator {
    /// Removes everything that `key` was charged under `policy`, so its whole quota is available again. It does not end a
    /// ban; [`unban`](Self::unban) does. Under a [`Concurrency`](crate::algorithm::Concurrency) policy, requests that are
    /// still running count again once their permits are renewed, within a third of the period.
    ///
    /// # Errors
    ///
    /// The failure of the store. The policy's [`FailureMode`](crate::FailureMode) does not apply.
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        self.0.shared.store.reset(policy, key).await?;
        self.0.shared.local.forget(policy, key);
        Ok(())
    }

    /// Refunds the latest `units` units that `key` was charged under `policy`, for any requests.
    ///
    /// It refunds at most what was charged and still counts. To undo one decision, use [`Limiter::refund`], which never
    /// refunds other requests' units. A permit of a [`Concurrency`](crate::algorithm::Concurrency) policy is not refunded;
    /// drop its decision instead.
    ///
    /// The decision shows what remains after the refund. If the refund failed and the policy is not
    /// [`Closed`](crate::FailureMode::Closed), [`Decision::failure`] has the cause. Errors are the same as for
    /// [`Limiter::check`].
    pub fn refund_latest(&self, policy: &Policy, key: &Key, units: u64) -> Answer<Decision> {
        self.0.decide(Action::Refund, Charge::new(policy, key, units))
    }

    /// The units of [debt](Policy::debt) that `key` has not paid off under `policy`. Charges nothing. 0 while the store
    /// fails and this process counts.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::check`].
    #[doc(hidden)]
    pub async fn owed(&self, policy: &Policy, key: &Key) -> Result<u64, Error> {
        let debt = policy.settings().debt;
        if debt == 0 {
            return Ok(0);
        }
        // What remains of the room for debt, also of a key that is banned.
        let charge = Charge::new(policy.debits(), key, 0);
        let room = self.0.decide(Action::Peek, charge).await?;
        // What this process counts for a store that has just failed knows of no debt.
        let known = room.all_outcomes().first().filter(|_| room.failure().is_none());
        Ok(known.map_or(0, |room| debt.saturating_sub(room.remaining())))
    }

    /// The name under which the store keeps the count of `key` under `policy`: the key in Redis. `None` for a store that has
    /// no such names.
    #[doc(hidden)]
    #[must_use]
    pub fn stored_name(&self, policy: &Policy, key: &Key) -> Option<String> {
        self.0.shared.store.stored_name(policy, key)
    }

    /// Bans `key` under `policy` for `time` from now. This replaces a ban that it already has.
    ///
    /// The policy needs a [penalty](Policy::penalty): [`Penalty::manual`](crate::policy::Penalty::manual) if keys are to be
    /// banned by hand only. The ban takes effect immediately on every instance that reaches the store. Earlier denials are
    /// forgotten, and the ban does not make later automatic bans longer.
    ///
    /// If this process has counted keys in place of a store that [failed](crate::FailureMode::Local), the ban also holds
    /// there, for the rest of this outage and for later ones.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if the policy has no penalty, the time is not 1 ms to 3650 days, or the
    /// store has no bans; or the failure of the store. The policy's [`FailureMode`](crate::FailureMode) does not apply:
    /// if the store fails, the key is banned at most in this process.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{policy::Penalty, Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let operator = limiter.operator();
    /// let api = Policy::new("api", Quota::per_second(10)).penalty(Penalty::manual());
    /// let mallory = Key::new("203.0.113.7");
    ///
    /// operator.ban(&api, &mallory, Duration::from_secs(3_600)).await?;
    /// assert!(limiter.check(&api, &mallory, 1).await?.banned_for().is_some());
    /// assert_eq!(operator.bans(&api).await?.bans[0].0, mallory);
    ///
    /// operator.unban(&api, &mallory).await?;
    /// assert!(limiter.check(&api, &mallory, 1).await?.is_allowed());
    /// assert!(operator.bans(&api).await?.bans.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ban(&self, policy: &Policy, key: &Key, time: Duration) -> Result<(), Error> {
        let time = micros(time);
        if !(1_000..=MAX_BAN).contains(&time) {
            return Err(Error::invalid("a ban must last 1 ms to 3650 days: use `unban` to end one"));
        }
        // Of a shadow, too: it may be enforced later.
        let decision = self.set_ban(policy, key, time).await?;
        if decision.all_outcomes().iter().any(Outcome::is_banned) {
            Ok(())
        } else {
            Err(Error::invalid("this store has no bans: use a `RedisStore` or a `MemoryStore`"))
        }
    }

    /// Ends the ban of `key` under `policy`, if it has one, and forgets earlier denials and bans.
    ///
    /// It takes effect immediately on this store. Other instances may deny the key for as long as their
    /// [deny caches](crate::store::RedisStoreBuilder::deny_cache) hold a denial, a second by default. What the key was
    /// charged stays: see [`reset`](Self::reset).
    ///
    /// A ban that this process imposed while the store failed ends too, even if the store still fails. Such bans on other
    /// instances do not end.
    ///
    /// # Errors
    ///
    /// The same as [`ban`](Self::ban).
    pub async fn unban(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        self.set_ban(policy, key, 0).await.map(|_| ())
    }

    /// The keys that are banned under `policy` now, automatically or by hand, the longest ban first: all of them, or the
    /// 10,000 longest bans. [`unban`](Self::unban) takes a key as it is in the list.
    ///
    /// A [`RedisStore`](crate::RedisStore) reads the names of all keys of all primaries with `SCAN`, in steps between which
    /// Redis makes decisions. The work grows with the number of keys in Redis, so do not call this for requests. It stops
    /// the search after about 100,000 keys that were denied or banned under the policy. A store makes one list at a time;
    /// further calls to `bans` wait. The Redis user needs `+scan`, which is not part of the store's `acl_rule`. A key that
    /// is banned or released during the scan may be missing or listed.
    ///
    /// [`BanList::is_complete`] is `false` if one of the two limits was reached, so that there may be others.
    ///
    /// # Errors
    ///
    /// The same as [`ban`](Self::ban), and [`StoreTimeout`](ErrorKind::StoreTimeout) if a step takes longer than the
    /// deadline of a decision, or half a second if that is longer.
    pub async fn bans(&self, policy: &Policy) -> Result<BanList, Error> {
        with_penalty(policy)?;
        self.0.shared.store.bans(policy, MOST_BANS).await
    }

    async fn set_ban(&self, policy: &Policy, key: &Key, time: u64) -> Result<Decision, Error> {
        with_penalty(policy)?;
        self.0.shared.local.set_ban(policy, key, time);
        self.0.shared.store.decide(Action::Ban, &[Charge::new(policy, key, time)]).await
    }
}

fn with_penalty(policy: &Policy) -> Result<(), Error> {
    if policy.has_penalty() {
        return Ok(());
    }
    let message = format!(
        "the policy `{}` has no penalty, so no key can be banned under it: add `.penalty(Penalty::manual())`",
        policy.name()
    );
    Err(Error::new(ErrorKind::InvalidConfig, message))
}
