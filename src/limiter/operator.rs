//! The calls of operators.

use std::{sync::Arc, time::Duration};

use super::{background::User, decider::Decider};
use crate::{
    base::{Answer, Error, time::micros},
    decision::{Charge, Decision, Outcome},
    key::Key,
    policy::{MAX_BAN, Policy},
    store::{
        Action,
        list::{Extent, StoredKeys},
    },
};

/// The calls for operators, from [`Limiter::operator`](crate::Limiter::operator): unlock, reset, refund, ban or
/// unban a key, list keys and bans. Cloning is cheap. To see the state of a key, use the feature `explain` of
/// the crate `tower-ratelimit-operate`.
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
#[derive(Clone)]
pub struct Operator {
    pub(super) decider: Arc<Decider>,
    pub(super) _user: Arc<User>,
}

impl Operator {
    /// Unlocks `key` under `policy`: [resets](Self::reset) it, and ends its ban if the policy has a
    /// [penalty](Policy::penalty). The next request is admitted, and starts with the whole quota.
    ///
    /// Use it for a client that was locked out by mistake. A reset alone leaves the ban, and after
    /// [`unban`](Self::unban) alone, the next request is denied again and may ban the key again. Requests that
    /// are denied between the two steps of this call cause no ban. What both document about
    /// other instances and outages holds here too.
    ///
    /// # Errors
    ///
    /// The failure of the store. The key is then as it was, reset, or reset and not banned: call it again. What
    /// this process has counted in the outage, and its ban, is removed even so.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{
    ///     algorithm::SlidingLog, policy::Penalty, Key, Limiter, MemoryStore, Policy, Quota,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let penalty = Penalty::after(1, Duration::from_secs(600)).ban(Duration::from_secs(1_800));
    /// let login = Policy::new("login", Quota::per_hour(5)).algorithm(SlidingLog::new()).penalty(penalty);
    /// let ann = Key::new("ann");
    /// for _ in 0..6 {
    ///     limiter.check(&login, &ann, 1).await?;
    /// }
    /// assert!(limiter.check(&login, &ann, 1).await?.banned_for().is_some());
    ///
    /// limiter.operator().unlock(&login, &ann).await?;
    /// let decision = limiter.check(&login, &ann, 1).await?;
    /// assert!(decision.is_admitted());
    /// assert_eq!(decision.remaining(), Some(4));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn unlock(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        // In this order: no denial of a banned key counts for another ban, and when the ban ends, the whole
        // quota is there.
        let reset = self.reset(policy, key).await;
        if policy.bans().is_none() {
            return reset;
        }
        if reset.is_err() {
            // What the process counted in the outage is forgotten, and its ban ends too.
            self.decider.local.set_ban(policy, key, 0);
            return reset;
        }
        self.unban(policy, key).await.map_err(|error| {
            Error::new(error.kind(), format!("the key was reset, and its ban may last: {error}"))
        })
    }

    /// Removes everything that `key` was charged under `policy`, so its whole quota is available again. It
    /// does not end a ban; [`unlock`](Self::unlock) does both. Under a
    /// [`Concurrency`](crate::algorithm::Concurrency) policy, requests that are still running count again
    /// once their permits are renewed, within a third of the period.
    ///
    /// A refund of a request from before the reset returns nothing, and neither do its reservation and its
    /// settlement token; what they settle above their estimate is charged. For this, the store keeps the time of
    /// the reset: in Redis under a key of up to 120 bytes, which each refund reads too, for 2 % more instructions.
    /// The time is kept for as long as a charge under `policy` can be refunded, and at least an hour: two periods,
    /// and with a burst or a debt until that is replenished and a period more. What a store loses, by an eviction or
    /// a failover, leaves no such time: refunds can then return units of later requests.
    ///
    /// A request in the microsecond of the reset counts as one from before. You see that only under a
    /// [`ManualClock`](crate::store::ManualClock) that stands still.
    ///
    /// # Errors
    ///
    /// The failure of the store. The policy's [`FailureMode`](crate::FailureMode) does not apply: if the
    /// store fails, this forgets only what the process has counted in the outage
    /// ([`Local`](crate::FailureMode::Local)).
    pub async fn reset(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        self.decider.local.forget(policy, key).await;
        self.decider.store.reset(policy, key).await
    }

    /// Refunds the latest `units` units that `key` was charged under `policy`, for any requests.
    ///
    /// It refunds at most what was charged and still counts. To undo one decision, use
    /// [`Limiter::refund`](crate::Limiter::refund), which refunds no other request's units, except in the cases
    /// that it lists. A permit of a
    /// [`Concurrency`](crate::algorithm::Concurrency) policy is not refunded; drop its decision instead.
    ///
    /// The decision shows what remains after the refund. If the refund failed and the policy is not
    /// [`Closed`](crate::FailureMode::Closed), [`Decision::failure`] has the cause. Errors are the same as
    /// for [`Limiter::check`](crate::Limiter::check).
    pub fn refund_latest(&self, policy: &Policy, key: &Key, units: u64) -> Answer<Decision> {
        self.decider.decide(Action::Refund, Charge::new(policy, key, units))
    }

    /// The units of [debt](Policy::max_debt) that `key` has not paid off under `policy`. 0 while the store
    /// fails, because only the store counts debts.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::peek`](crate::Limiter::peek).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, store::ManualClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    /// let (tokens, alice) = (Policy::new("tokens", Quota::per_hour(1_000)).max_debt(500), Key::new("alice"));
    ///
    /// let request = limiter.check(&tokens, &alice, 1).await?;
    /// limiter.debit(&request, 1_199).await?;
    /// assert_eq!(limiter.operator().owed(&tokens, &alice).await?, 200);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn owed(&self, policy: &Policy, key: &Key) -> Result<u64, Error> {
        let debt = policy.settings().max_debt;
        if debt == 0 {
            return Ok(0);
        }
        // The unused room for debt; the policy of debits has no bans.
        let room = self.decider.decide(Action::Peek, Charge::new(policy.debits(), key, 0)).await?;
        let room = room.all_outcomes().first().filter(|_| room.failure().is_none());
        Ok(room.map_or(0, |room| debt.saturating_sub(room.remaining())))
    }

    /// The name under which the store keeps the count of `key` under `policy`: the key in Redis. `None` if
    /// the store has no such names, as a [`MemoryStore`](crate::MemoryStore).
    #[must_use]
    pub fn stored_name(&self, policy: &Policy, key: &Key) -> Option<String> {
        self.decider.store.backend()?.0.stored_name(policy, key)
    }

    /// The keys that the store has under `policies`, of charges and of denials and bans under a penalty. No
    /// [`FailureMode`](crate::FailureMode) applies.
    ///
    /// A `RedisStore` looks at about `most` keys of each server with `SCAN`, including other programs' keys. The Redis
    /// user needs `+scan`, which is not part of the store's `acl_rule`. A `MemoryStore` looks at all its keys.
    ///
    /// # Errors
    ///
    /// The failure of the store, and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if it cannot list its
    /// keys.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let (limiter, api) = (Limiter::new(MemoryStore::new()), Policy::new("api", Quota::per_hour(10)));
    /// limiter.check(&api, &Key::new("alice"), 1).await?;
    /// let stored = limiter.operator().keys(&[api], 10_000).await?;
    /// assert_eq!(stored.keys, [(0, Key::new("alice"))]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn keys(&self, policies: &[Policy], most: usize) -> Result<StoredKeys, Error> {
        let bans = policies.iter().map(|policy| policy.bans().unwrap_or(policy));
        let counted_by: Vec<Policy> = policies.iter().chain(bans).cloned().collect();
        let mut found = self.list(&counted_by, Extent::Seen(most)).await?;
        // A banned key may have no charge.
        found.keys.iter_mut().for_each(|(place, _)| *place %= policies.len().max(1));
        found.keys.sort_unstable();
        found.keys.dedup();
        Ok(found)
    }

    pub(super) fn list(&self, policies: &[Policy], extent: Extent) -> Answer<StoredKeys> {
        match self.decider.store.backend() {
            Some(backend) => backend.0.stored_keys(policies, extent),
            None => Answer::ready(Err(Error::invalid(
                "this store cannot list its keys: use a `RedisStore` or a `MemoryStore`",
            ))),
        }
    }

    /// Bans `key` under `policy` for `time` from now. This replaces a ban that it already has.
    ///
    /// The policy needs a [penalty](Policy::penalty): [`Penalty::manual`](crate::policy::Penalty::manual) if
    /// keys are to be banned by hand only. The ban takes effect immediately on every instance that reaches
    /// the store. Earlier denials are forgotten, and the ban does not make later automatic bans longer.
    ///
    /// If this process has counted keys in an outage ([`Local`](crate::FailureMode::Local)), the ban also
    /// applies to these counts, now and in later outages.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the policy has no penalty, the time is not 1 ms
    /// to 3650 days, or the store has no bans; or the failure of the store. The policy's
    /// [`FailureMode`](crate::FailureMode) does not apply: if the store fails, the key is banned at most in
    /// this process.
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
    ///
    /// operator.unban(&api, &mallory).await?;
    /// assert!(limiter.check(&api, &mallory, 1).await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ban(&self, policy: &Policy, key: &Key, time: Duration) -> Result<(), Error> {
        let time = micros(time);
        ensure!(
            (1_000..=MAX_BAN).contains(&time),
            "a ban must last 1 ms to 3650 days: use `unban` to end one"
        );
        // A shadow has bans too, because it may be enforced later.
        let decision = self.set_ban(policy, key, time).await?;
        if decision.all_outcomes().iter().any(Outcome::is_banned) {
            Ok(())
        } else {
            Err(Error::invalid("this store has no bans: use a `RedisStore` or a `MemoryStore`"))
        }
    }

    /// Ends the ban of `key` under `policy`, if it has one, and forgets earlier denials and bans.
    ///
    /// It takes effect immediately on this store. Other instances may deny the key for as long as their [deny
    /// caches](crate::store::RedisStoreBuilder::deny_cache) hold a denial, a second by default. What the key
    /// was charged stays, so its next request may be denied: see [`unlock`](Self::unlock).
    ///
    /// A ban that this process imposed while the store failed ends too, even if the store still fails. Such
    /// bans on other instances do not end.
    ///
    /// # Errors
    ///
    /// The same as [`ban`](Self::ban).
    pub async fn unban(&self, policy: &Policy, key: &Key) -> Result<(), Error> {
        self.set_ban(policy, key, 0).await.map(|_| ())
    }

    async fn set_ban(&self, policy: &Policy, key: &Key, time: u64) -> Result<Decision, Error> {
        with_penalty(policy)?;
        self.decider.local.set_ban(policy, key, time);
        self.decider.store.decide(Action::Ban, &[Charge::new(policy, key, time)]).await
    }
}

opaque_debug!(Operator);

fn with_penalty(policy: &Policy) -> Result<(), Error> {
    policy.bans().map(|_| ()).ok_or_else(|| {
        invalid!(
            "the policy `{}` has no penalty, so no key can be banned under it: add `.penalty(Penalty::manual())`",
            policy.name()
        )
    })
}
