//! The counts of this process while the store fails, and what is owed to the store.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use indexmap::{IndexMap, map::Entry};
use tokio::time::Instant;

use crate::{
    base::{Guard, UnderWay},
    decision::{Charge, Outcome, Reconciliation},
    key::Key,
    policy::Policy,
    store::{StoreClock, watchers::Watchers},
};

/// The most keys that are counted in this process, which takes about 400 bytes for each, with what it owes.
pub(super) const MAX_KEYS: usize = 100_000;

/// What this process counts while a store fails. Shared by all limiters on the store.
///
/// `S` is `dyn Store`. It is a parameter because the trait names this type.
pub(crate) struct LocalCounts<S: ?Sized> {
    /// The store in this process that counts. It is made when the main store fails for the first time.
    pub(super) counts: OnceLock<Arc<S>>,
    /// The clock of that store: the main store's, if it is known, so that both have the same windows.
    pub(super) clock: StoreClock,
    /// The policies that were counted here, each with its share.
    pub(super) shares: Mutex<Vec<(Policy, Policy)>>,
    /// Whom to inform of shares of quotas that are used.
    pub(crate) watchers: Arc<Watchers>,
    /// Held for the whole of a local decision, so that `owing` and `counts` change together.
    pub(super) owing: Mutex<Owing>,
    /// Whether something may be owed.
    pub(crate) owes: AtomicBool,
    /// The tasks that reconcile at the moment.
    pub(super) reconciling: UnderWay,
    /// The instances that the store last reported. 0 if it has not.
    instances: AtomicU32,
    /// Whether to warn if the store has not reported the instances yet.
    is_to_warn: AtomicBool,
}

/// Charges and refunds that are still to be sent to the store.
#[derive(Default)]
pub(super) struct Owing {
    /// The units that were admitted in this process, by policy, key, whether they are debits, and a number.
    /// Debits that may become debt are apart, because other units cannot become debt. The number is 0, except
    /// for units that were put back after a failed call while newer units of the key were already owed.
    pub(super) charges: IndexMap<(Box<str>, Key, bool, u64), Owed>,
    /// The last number in `charges`.
    pub(super) number: u64,
    /// Refunds of what the store charged.
    pub(super) refunds: VecDeque<Charge>,
    /// The calls under way for charges and refunds, by the name of the policy and the key.
    sent: HashMap<(Box<str>, Key), UnderWay>,
    /// The time before which no task starts to reconcile.
    pub(super) pause_until: Option<Instant>,
}

/// Units that a key was granted in this process.
pub(super) struct Owed {
    pub(super) policy: Policy,
    /// The share of the policy that counts the units in this process.
    pub(super) share: Policy,
    pub(super) units: Arc<Reconciliation>,
}

impl<S: ?Sized> LocalCounts<S> {
    /// Counts for a store that does not report how many instances use it.
    pub(crate) fn new() -> Arc<Self> {
        Self::of(StoreClock::wall(), false)
    }

    /// Counts for a store with this clock that reports how many instances use it.
    #[cfg(feature = "redis")]
    pub(in crate::store) fn of_server(clock: StoreClock) -> Arc<Self> {
        Self::of(clock, true)
    }

    fn of(clock: StoreClock, reports: bool) -> Arc<Self> {
        Arc::new(Self {
            counts: OnceLock::new(),
            clock,
            watchers: Arc::default(),
            shares: Mutex::default(),
            owing: Mutex::default(),
            owes: AtomicBool::default(),
            reconciling: UnderWay::default(),
            instances: AtomicU32::default(),
            is_to_warn: AtomicBool::new(reports),
        })
    }

    /// The instances that the store last reported. 0 if it has not.
    pub(crate) fn instances(&self) -> u32 {
        self.instances.load(Ordering::Relaxed)
    }

    /// Warns once, in an outage, if the store has not reported the instances yet.
    pub(super) fn warn_if_unknown(&self) {
        if self.instances() == 0 && self.is_to_warn.swap(false, Ordering::Relaxed) {
            log!(
                warn,
                "Redis has not reported how many instances run, so each one counts up to the whole limit until it does; \
                 write the number, as in `local/4`, if the service starts without Redis"
            );
        }
    }

    /// Notes how many instances use the store, as it reports.
    #[cfg(feature = "redis")]
    pub(crate) fn reported(&self, instances: u32) {
        if self.instances.swap(instances, Ordering::Relaxed) != instances {
            crate::base::sync::lock(&self.shares).clear();
        }
    }
}

impl Owing {
    pub(super) fn len(&self) -> usize {
        self.charges.len() + self.refunds.len()
    }

    /// Postpones the next round.
    pub(super) fn pause(&mut self, time: Duration) {
        self.pause_until = self.pause_until.max(Some(Instant::now() + time));
    }

    /// Remembers the units that `share` granted in place of `charge`. `None` without room for another key.
    pub(super) fn owe(&mut self, charge: &Charge, share: &Outcome) -> Option<Arc<Reconciliation>> {
        let is_full = self.len() >= MAX_KEYS;
        let policy = charge.policy();
        let name = (policy.label().into(), charge.key().clone(), policy.counts_debits(), 0);
        let policy = || (charge.policy().clone(), share.policy().clone());
        let owed = match self.charges.entry(name) {
            Entry::Occupied(entry) => {
                let owed = entry.into_mut();
                // The quota has changed. Units above the old quota still count.
                if !owed.share.is(share.policy()) {
                    (owed.policy, owed.share) = policy();
                }
                owed
            }
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(entry) => {
                let (policy, share) = policy();
                entry.insert(Owed { policy, share, units: Arc::default() })
            }
        };
        owed.units.add(share.granted());
        Some(owed.units.clone())
    }

    /// Notes a call for units that leave the table, until the guard is dropped.
    pub(super) fn send(&mut self, policy: &Policy, key: &Key) -> Guard {
        self.sent.retain(|_, calls| calls.count() > 0);
        self.sent.entry((policy.label().into(), key.clone())).or_default().begin()
    }

    /// Forgets what is owed for `key` under `policy`. Returns the calls under way for `key`, which may put
    /// units back.
    pub(super) fn forget(&mut self, policy: &Policy, key: &Key) -> Option<UnderWay> {
        self.charges.retain(|(label, owed, ..), _| **label != *policy.label() || owed != key);
        self.refunds.retain(|refund| refund.policy().label() != policy.label() || refund.key() != key);
        let calls = self.sent.get(&(policy.label().into(), key.clone()));
        calls.filter(|calls| calls.count() > 0).cloned()
    }
}
