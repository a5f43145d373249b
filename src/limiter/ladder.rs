//! The failure ladder: what decides while the store fails.
//!
//! The [`FailureMode`]s of the policies say it. Policies that are [`Local`](FailureMode::Local) are counted in a store in
//! this process, at this instance's share. When the store answers again, what was admitted meanwhile and still counts is
//! charged to it, so an outage is no second quota.

use std::{
    fmt, mem, slice,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use indexmap::IndexMap;
use tokio::{runtime::Handle, task::JoinSet, time::sleep};

use super::permit::PermitRequest;
use crate::{
    decision::{Charge, Decision, DecisionSource, Outcome},
    error::{Error, ErrorKind},
    key::Key,
    policy::{FailureMode, Policy},
    store::{Action, MemoryStore, Store},
    util::sync::lock,
};

/// The most keys that are counted in this process, so the ladder takes at most about 30 MB.
const MAX_KEYS: usize = 100_000;
/// The most shares that are kept. Further ones are computed for each decision.
const MAX_SHARES: usize = 64;
/// How many charges are handed back at once: about as many as fit into a call.
const AT_ONCE: usize = 128;
/// The pause before charges are handed back that the store did not take.
const PAUSE: Duration = Duration::from_millis(250);

/// Shared by all clones of a limiter.
#[derive(Default)]
pub(super) struct Ladder {
    /// Made when the store fails for the first time.
    counts: OnceLock<Arc<MemoryStore>>,
    /// Policies, and the share of each.
    shares: Mutex<Vec<(Policy, Policy)>>,
    /// What was admitted in this process and is not charged to the store, the oldest first.
    owed: Mutex<IndexMap<(Box<str>, Key), Owed>>,
    /// Whether it is time to hand that back.
    owes: AtomicBool,
}

/// The charges of a decision, in case the store fails to make it.
pub(super) enum Charges {
    One(Charge),
    Many(Vec<Charge>),
}

/// A decision's place on the ladder.
pub(super) struct Rung {
    pub(super) ladder: Arc<Ladder>,
    pub(super) store: Arc<dyn Store>,
    pub(super) action: Action,
    pub(super) charges: Charges,
}

impl Rung {
    /// The decision of the store, or the one in its place if the store failed.
    pub(super) fn apply(&self, decided: Result<Decision, Error>) -> Result<Decision, Error> {
        match decided {
            Ok(decision) => {
                self.succeeded(&decision);
                Ok(decision)
            }
            Err(error) => self.decide(error),
        }
    }

    /// Call it when the store has decided.
    pub(super) fn succeeded(&self, decision: &Decision) {
        // A lease and the deny cache answer while Redis is unavailable too.
        if decision.source() == DecisionSource::Store {
            self.ladder.hand_back(&self.store);
        }
    }

    /// The decision in place of one that the store failed to make.
    pub(super) fn decide(&self, error: Error) -> Result<Decision, Error> {
        let charges = match &self.charges {
            Charges::One(charge) => slice::from_ref(charge),
            Charges::Many(charges) => charges,
        };
        self.ladder.decide(self.action, charges, error)
    }
}

impl From<Vec<Charge>> for Charges {
    fn from(charges: Vec<Charge>) -> Self {
        Self::Many(charges)
    }
}

impl fmt::Debug for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rung").finish_non_exhaustive()
    }
}

/// Units that a key was granted in this process.
struct Owed {
    policy: Policy,
    /// The share of the policy that counts them.
    share: Policy,
    units: u64,
}

impl Ladder {
    /// The decision over `charges`, or the error, in place of a decision that the store failed to make.
    pub(super) fn decide(&self, action: Action, charges: &[Charge], error: Error) -> Result<Decision, Error> {
        match mode(charges) {
            // An error in the program, not a failure of the store.
            _ if error.kind() == ErrorKind::InvalidConfig => Err(error),
            FailureMode::Closed => Err(error),
            FailureMode::Local { .. }
                if matches!(action, Action::Charge | Action::ChargeUpTo | Action::Debit | Action::Peek) =>
            {
                Ok(self.decide_locally(action, charges, error))
            }
            _ => Ok(Decision::failed_open(error)),
        }
    }

    fn decide_locally(&self, action: Action, charges: &[Charge], error: Error) -> Decision {
        let is_local = |charge: &&Charge| matches!(charge.policy().failure_mode(), FailureMode::Local { .. });
        let charges: Vec<&Charge> = charges.iter().filter(is_local).collect();
        let shares: Vec<Charge> = charges
            .iter()
            .map(|charge| Charge::new(&self.share(charge.policy()), charge.key(), charge.cost()))
            .collect();
        let counts = self.counts.get_or_init(|| Arc::new(MemoryStore::builder().capacity(MAX_KEYS).build()));
        // A twin of the user's may fail.
        let Ok(Ok(local)) = counts.decide(action, &shares).now() else {
            return Decision::failed_open(error);
        };
        let charged = local.is_allowed() && action != Action::Peek;
        if charged && !error.kind().may_have_charged() {
            charges.iter().zip(local.all_outcomes()).for_each(|(charge, share)| self.owe(charge, share));
        }
        let outcomes = charges.iter().zip(local.all_outcomes()).map(|(charge, share)| {
            let (remaining, reset_after) = (share.remaining(), share.reset_after());
            let outcome =
                Outcome::new(charge, share.verdict(), remaining, reset_after).granting(share.granted());
            match share.banned_for() {
                Some(rest) => outcome.banning(rest),
                None => outcome,
            }
        });
        let mut decision = Decision::failed_local(outcomes, error);
        let counts: Arc<dyn Store> = counts.clone();
        if charged && let Some(permits) = PermitRequest::of(&counts, &shares) {
            decision.attach_permit(permits.grant(&local));
        }
        decision
    }

    /// Bans `key` in this process for `time` microseconds, if keys are counted here, for the rest of this outage and for
    /// later ones. 0 ends its ban.
    pub(super) fn set_ban(&self, policy: &Policy, key: &Key, time: u64) {
        let is_local = matches!(policy.failure_mode(), FailureMode::Local { .. });
        if let Some(counts) = self.counts.get().filter(|_| is_local) {
            // Done at once. Only the user's twin of an algorithm may fail, and it does not affect the ban.
            drop(counts.decide_one(Action::Ban, Charge::new(&self.share(policy), key, time)));
        }
    }

    /// The policy that counts for `policy` in this process.
    fn share(&self, policy: &Policy) -> Policy {
        let mut shares = lock(&self.shares);
        if let Some((_, share)) = shares.iter().find(|(known, _)| known.is(policy)) {
            return share.clone();
        }
        let share = policy.local_share();
        if shares.len() < MAX_SHARES {
            shares.push((policy.clone(), share.clone()));
        }
        share
    }

    /// Remembers what `share` granted in place of `charge`.
    fn owe(&self, charge: &Charge, share: &Outcome) {
        // A permit is not charged but held.
        if share.granted() == 0 || charge.needs_permit() {
            return;
        }
        // What is handed back is no request, which could be denied and counted.
        let (policy, units) = (charge.policy().without_penalty(), share.granted());
        self.remember(charge.key().clone(), Owed { policy, share: share.policy().clone(), units });
        self.owes.store(true, Ordering::Relaxed);
    }

    fn remember(&self, key: Key, new: Owed) {
        let mut owed = lock(&self.owed);
        let name = (new.policy.label().into(), key);
        if owed.len() < MAX_KEYS || owed.contains_key(&name) {
            let units = new.units;
            owed.entry(name).or_insert(Owed { units: 0, ..new }).units += units;
        }
    }

    /// Charges to `store`, which has just answered, what is owed to it.
    pub(super) fn hand_back(self: &Arc<Self>, store: &Arc<dyn Store>) {
        // Nearly always this is one load.
        if !self.owes.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let owed = {
            let mut owed = lock(&self.owed);
            self.owes.store(false, Ordering::Relaxed);
            mem::take(&mut *owed)
        };
        let (ladder, store) = (self.clone(), store.clone());
        runtime.spawn(async move {
            let mut calls = JoinSet::new();
            for ((_, key), owed) in owed {
                if calls.len() >= AT_ONCE {
                    calls.join_next().await;
                }
                let (ladder, store) = (ladder.clone(), store.clone());
                calls.spawn(async move { ladder.hand_back_one(&store, key, owed).await });
            }
            calls.join_all().await;
            if !lock(&ladder.owed).is_empty() {
                drop(store);
                sleep(PAUSE).await;
                ladder.owes.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Charges to `store` what it is owed by `key`. Remembers it again if the store does not take it.
    async fn hand_back_one(&self, store: &Arc<dyn Store>, key: Key, owed: Owed) {
        let Some(counts) = self.counts.get() else { return };
        // What has been replenished meanwhile no longer counts.
        let peek = Charge::new(&owed.share, &key, 0);
        let Ok(Ok(local)) = counts.decide_one(Action::Peek, peek).now() else { return };
        let counted = owed.share.capacity().saturating_sub(local.remaining().unwrap_or_default());
        let units = owed.units.min(counted);
        if units == 0 {
            return;
        }
        let charge = Charge::new(&owed.policy, &key, units);
        match store.decide(Action::ChargeUpTo, &[charge]).await {
            // What the store did not take still counts here, or every outage would be a new quota. So do units that were
            // admitted during the call.
            Ok(charged) => {
                let taken = charged.all_outcomes().first().map_or(0, Outcome::granted);
                drop(counts.decide_one(Action::Refund, Charge::new(&owed.share, &key, taken)));
            }
            // If it may have been charged, another attempt could charge it twice.
            Err(error) if error.kind().may_have_charged() => {}
            Err(_) => self.remember(key, Owed { units, ..owed }),
        }
    }
}

/// The strictest failure mode of the policies.
fn mode(charges: &[Charge]) -> FailureMode {
    let enforced = || charges.iter().filter(|charge| !charge.is_shadow());
    let modes = || enforced().map(|charge| charge.policy().failure_mode());
    let local = |mode: &FailureMode| matches!(mode, FailureMode::Local { .. });
    modes()
        .find(|mode| *mode == FailureMode::Closed)
        .or_else(|| modes().find(local))
        .unwrap_or(FailureMode::Open)
}

impl fmt::Debug for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ladder").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::{answer::Answer, quota::Quota};

    /// Counts what is handed back.
    #[derive(Clone, Default)]
    struct HandedBack(Arc<AtomicUsize>);

    impl Store for HandedBack {
        fn decide(&self, _: Action, _: &[Charge]) -> Answer<Decision> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Answer::ready(Ok(Decision::new([])))
        }

        fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
            Answer::ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_is_owed_is_handed_back_when_the_store_decides_and_not_when_a_lease_does() {
        let handed_back = HandedBack::default();
        let charge = Charge::new(&Policy::new("api", Quota::per_day(9)), &Key::new("alice"), 1);
        let rung = Rung {
            ladder: Arc::default(),
            store: Arc::new(handed_back.clone()),
            action: Action::Charge,
            charges: Charges::One(charge),
        };
        assert!(rung.apply(Err(Error::new(ErrorKind::StoreSuspended, "not sent"))).is_ok());
        let rows = [
            (DecisionSource::Lease, 0),
            (DecisionSource::DenyCache, 0),
            (DecisionSource::Store, 1),
            (DecisionSource::Store, 1),
        ];
        for (source, expected) in rows {
            rung.succeeded(&Decision::new([]).made_by(source));
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(handed_back.0.load(Ordering::Relaxed), expected, "{source}");
        }
    }
}
