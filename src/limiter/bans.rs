//! The list of bans.

use std::{slice, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::operator::Operator;
use crate::{
    base::{Error, ErrorKind},
    decision::{Charge, Decision},
    key::Key,
    policy::Policy,
    store::{Action, BanList, list::Extent},
};

/// About how many keys with denials or bans are looked at, at most.
const MOST_SEEN: usize = 100_000;
/// The number of keys that are looked at concurrently.
const CHUNK: usize = 128;
/// The time for which a store may be unavailable until the list fails.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before a key is looked at again.
const PAUSE: Duration = Duration::from_millis(100);

impl Operator {
    /// The keys that are banned under `policy` now, automatically or by hand, even if the policy is a shadow:
    /// all of them, or the 10,000 longest bans. [`unban`](Self::unban) takes a key as it is in the list.
    ///
    /// A `RedisStore` reads the names of all keys of all primaries with `SCAN`, in steps between which Redis
    /// makes decisions. The work grows with the number of keys in Redis, so do not call this for requests. It
    /// stops the search after about 100,000 keys that were denied or banned under the policy. A store makes
    /// one list at a time; further calls wait. The Redis user needs `+scan`, which is not part of the store's
    /// `acl_rule`. A key that is banned or released during the scan may be missing or listed.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](ErrorKind::InvalidConfig): the policy has no penalty, or the store cannot list its
    ///   keys.
    /// * [`StoreTimeout`](ErrorKind::StoreTimeout): a step of the search took longer than the deadline of a
    ///   decision, or half a second if that is longer.
    /// * The failure of a store that does not answer for five seconds while the keys are looked at.
    /// * Any other failure of the store. The policy's [`FailureMode`](crate::FailureMode) does not apply.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, policy::Penalty};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let operator = Limiter::new(MemoryStore::new()).operator();
    /// let api = Policy::new("api", Quota::per_second(10)).penalty(Penalty::manual());
    /// let mallory = Key::new("203.0.113.7");
    ///
    /// operator.ban(&api, &mallory, Duration::from_secs(3_600)).await?;
    /// assert_eq!(operator.bans(&api).await?.bans[0].0, mallory);
    /// operator.unban(&api, &mallory).await?;
    /// assert!(operator.bans(&api).await?.bans.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn bans(&self, policy: &Policy) -> Result<BanList, Error> {
        let Some(counted_by) = policy.bans() else {
            return Err(invalid!(
                "the policy `{}` has no penalty, so no key can be banned under it: add `.penalty(Penalty::manual())`",
                policy.name()
            ));
        };
        let found = self.list(slice::from_ref(counted_by), Extent::Found(MOST_SEEN)).await?;
        let (mut keys, mut bans) = (found.keys.into_iter().map(|(_, key)| key), Vec::new());
        let mut is_complete = found.is_complete;
        loop {
            let mut peeks = JoinSet::new();
            for key in keys.by_ref().take(CHUNK) {
                // Peeks only at the ban: neither the charged units nor a shadow matter.
                peeks.spawn(patient_peek(self.clone(), counted_by.clone(), key));
            }
            let peeked = peeks.join_all().await;
            if peeked.is_empty() {
                return Ok(BanList::longest(bans, is_complete));
            }
            for (key, peeked) in peeked {
                match peeked {
                    Ok(decision) => bans.extend(decision.retry_after().map(|rest| (key, rest))),
                    // Another version may have written it.
                    Err(error) if error.kind() == ErrorKind::ForeignValue => is_complete = false,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Peeks at `key`, again and again while the store is unavailable: a list takes seconds, and must not fail
/// because Redis pauses for longer than the deadline of a request.
async fn patient_peek(operator: Operator, policy: Policy, key: Key) -> (Key, Result<Decision, Error>) {
    let began = Instant::now();
    loop {
        // A deadline that it misses does not count as a failure for requests.
        let charge = Charge::new(&policy, &key, 1).patiently();
        let peeked = operator.decider.store.decide(Action::Peek, &[charge]).await;
        if !peeked.as_ref().is_err_and(may_pass) || began.elapsed() >= PATIENCE {
            return (key, peeked);
        }
        sleep(PAUSE).await;
    }
}

/// Whether the store did not answer, so that another peek may succeed.
fn may_pass(error: &Error) -> bool {
    use ErrorKind::{StoreBusy, StoreDisconnected, StoreSuspended, StoreTimeout, StoreUnreachable};
    matches!(error.kind(), StoreBusy | StoreDisconnected | StoreSuspended | StoreTimeout | StoreUnreachable)
}
