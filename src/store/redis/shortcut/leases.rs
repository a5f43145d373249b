//! Leases: a hot key takes units in one call and spends them here.
//!
//! Redis has charged a lease, or keeps its room free, before a unit of it is spent, and until it ends; see
//! `lua/decide.lua`. So nothing here can admit more than the limit as long as a unit is spent once, and
//! before the end. The end is counted from before the call was sent, by the time that Redis says is left,
//! so it comes no later here than there. Everything else, how much to ask for and when to give it back,
//! is only about how well it does.
//!
//! What is given back is taken out first, and names its lease: of one that has ended Redis takes nothing
//! back. Of one that was taken out before a reset nothing is sent, because a window would not know it for an
//! older one. A report that was surely not sent is sent again, and no other: one that fails is dropped, and
//! the lease's end settles it.

use std::{
    collections::{HashMap, hash_map},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, task::JoinHandle, time::sleep};

use super::{
    clock::Clock,
    deny_cache::{DenyCache, DenyWatch},
    lease::{Entry, Lease, Resets, Returned},
};
use crate::{
    decision::{Charge, Decision, Outcome, Verdict},
    error::Error,
    key::Key,
    policy::Policy,
    store::{
        Action, ManualClock,
        redis::{
            script::Script,
            transport::Link,
            wire::{Job, LeaseRequest, LeaseReturn, Leased, Observer, Reply},
        },
    },
    util::{sync::lock, time::micros},
};

pub(crate) struct Leases {
    shards: Box<[Mutex<HashMap<u64, Entry>>]>,
    /// How often a key was reset whose hash leads there. What is on its way meanwhile is not there any more.
    resets: Box<[AtomicU32]>,
    hasher: RandomState,
    clock: Clock,
    link: Arc<dyn Link>,
    prefix: Arc<str>,
    denied: Option<Arc<DenyCache>>,
    /// Whether a task returns what is not used.
    sweeping: AtomicBool,
    /// Calls that are made whether a caller waits for them or not.
    under_way: watch::Sender<usize>,
}

/// Tells the leases what became of a job that leases units or returns some.
pub(crate) struct LeaseWatch {
    leases: Arc<Leases>,
    returned: Returned,
    fetch: Option<Fetch>,
}

/// A lease on its way.
struct Fetch {
    policy: Policy,
    key: Key,
    asked: u64,
    set_back: u64,
    sent: AtomicBool,
    came: AtomicBool,
    /// How many resets there were when it was sent.
    resets: AtomicU32,
}

const SHARDS: usize = 64;
/// Keys that share a place cost each other a lease at most, and only while it is on its way.
const RESETS: u32 = 1024;
/// Keys in a shard. Others are decided by Redis, as if nothing were leased.
const MOST_KEYS: usize = 64;
/// For a key that needs a call again so soon more is asked for, and for one that needs none for so long less.
/// Colder keys would pay more for giving back than they save.
const QUICK: u64 = 10_000;
const SLOW: u64 = 50_000;
/// A lease of fewer units costs about what they would cost one by one.
const FIRST: u64 = 8;
/// A lease of which nothing was spent for so long is given back, and so is what is left of one so old.
const QUIET: u64 = 250_000;
const OLD: u64 = 1_000_000;
/// No lease is spent from for longer, so that clocks of different speed do not matter.
const LONGEST: u64 = 2_000_000;
/// Between two looks for such ones.
const PAUSE: Duration = Duration::from_millis(100);
/// A lease that ends within so much time is given back while it can be.
const LAST_CHANCE: u64 = 150_000;
/// How long giving back may take.
const PATIENCE: Duration = Duration::from_millis(500);

impl Leases {
    pub(crate) fn new(
        link: Arc<dyn Link>,
        prefix: Arc<str>,
        clock: Option<ManualClock>,
        denied: Option<Arc<DenyCache>>,
    ) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            resets: (0..RESETS).map(|_| AtomicU32::default()).collect(),
            hasher: RandomState::new(),
            // A lease that was spent after its end would be spent twice.
            clock: Clock::through_suspension(clock),
            link,
            prefix,
            denied,
            sweeping: AtomicBool::new(false),
            under_way: watch::Sender::new(0),
        }
    }

    /// Spends the units of `charge`, where there are enough on lease. Says also whether few are left.
    pub(crate) fn spend(&self, charge: &Charge) -> Option<(Decision, bool)> {
        let (remaining, reset, low, receipt) = {
            let (hash, mut shard) = self.shard(charge.policy(), charge.key());
            let entry = shard.get_mut(&hash).filter(|entry| entry.is_of(charge))?;
            let lease = entry.lease.as_mut()?;
            // Read under the lock: no lease is younger.
            let now = self.clock.micros();
            if !lease.is_on(now, self.clock.times_set_back()) {
                return None;
            }
            lease.left = lease.left.checked_sub(charge.cost())?;
            lease.spent += charge.cost();
            lease.used = now;
            let low = lease.left < lease.low && !entry.fetching;
            let remaining = lease.remaining.saturating_add(lease.left);
            (remaining, lease.reset.saturating_sub(now - lease.from), low, lease.receipt)
        };
        let outcome = Outcome::new(charge, Verdict::Allow, remaining, Duration::from_micros(reset));
        let outcome = outcome.granting(charge.cost()).with_lease_receipt(receipt);
        Some((Decision::of_one(outcome), low))
    }

    /// What to ask Redis for beside the cost of `charge`: nothing for a key that is not hot, or for which a
    /// lease is on its way. `ahead` says that there is enough left for now.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        charge: &Charge,
        ahead: bool,
    ) -> Option<(LeaseRequest, LeaseWatch)> {
        let (set_back, asked) = (self.clock.times_set_back(), self.clock.micros());
        let most = charge.policy().most_leased();
        let (hash, mut shard) = self.shard(charge.policy(), charge.key());
        let entry = entry(&mut shard, hash, charge)?;
        if entry.fetching {
            return None;
        }
        match entry.asked.replace(asked).map(|before| asked.saturating_sub(before)) {
            Some(since) if since < QUICK => {
                entry.want = (entry.want * 2).clamp(FIRST.min(most), most);
            }
            Some(since) if since > SLOW => entry.want /= 2,
            _ => {}
        }
        let resets = self.resets(hash);
        let (returned, left) = match &mut entry.lease {
            Some(lease) if ahead => {
                let spent = LeaseReturn { name: lease.name, units: lease.spent, spent: lease.spent };
                lease.spent = 0;
                (Returned { lease: spent, resets }, lease.left)
            }
            lease => {
                let nothing = Returned { resets, ..Returned::default() };
                (lease.take().map_or(nothing, |lease| lease.returned(resets)), 0)
            }
        };
        let wanted = entry.want.min(most).saturating_sub(left);
        if wanted == 0 && returned.lease.units == 0 {
            return None;
        }
        entry.fetching = true;
        drop(shard);
        let fetch = Fetch {
            policy: charge.policy().clone(),
            key: charge.key().clone(),
            asked,
            set_back,
            sent: AtomicBool::new(false),
            came: AtomicBool::new(false),
            resets: AtomicU32::new(resets.times),
        };
        let watch = LeaseWatch { leases: self.clone(), returned, fetch: Some(fetch) };
        Some((LeaseRequest { wanted, returned: returned.lease }, watch))
    }

    /// Puts down what came of a fetch, which may be nothing.
    fn put(self: &Arc<Self>, fetch: &Fetch, granted: Option<(Leased, &Outcome)>) {
        let replaced = {
            let (hash, mut shard) = self.shard(&fetch.policy, &fetch.key);
            // It is not evicted while something is on its way.
            let Some(entry) = shard.get_mut(&hash) else { return };
            entry.fetching = false;
            let resets = self.resets(hash);
            let reset = fetch.resets.load(Ordering::Acquire) != resets.times;
            let now = self.clock.micros();
            match granted {
                // What was charged before a reset is not there any more.
                Some((granted, outcome)) if granted.units > 0 && !reset => {
                    // Were this clock slower than that of Redis by a thousandth, it would still not be late.
                    let lasts = granted.lasts.min(LONGEST);
                    let end = fetch.asked.saturating_add(lasts - lasts.div_ceil(1_000));
                    let older = entry.lease.take();
                    let (same, replaced) = match older {
                        Some(older) if older.name == granted.name => (Some(older), None),
                        older => (None, older),
                    };
                    // Which of its units are spent is not known, so the earliest of them counts.
                    let receipt = same.as_ref().map_or(granted.receipt, |lease| lease.receipt);
                    let (left, spent) = same.map_or((0, 0), |lease| (lease.left, lease.spent));
                    let left = left.saturating_add(granted.units);
                    entry.lease = Some(Lease {
                        name: granted.name,
                        left,
                        spent,
                        low: left / 2,
                        from: fetch.asked,
                        set_back: fetch.set_back,
                        end,
                        used: now,
                        remaining: outcome.remaining().saturating_sub(granted.units),
                        reset: micros(outcome.reset_after()),
                        receipt,
                    });
                    replaced.map(|lease| lease.returned(resets))
                }
                _ => {
                    // There is not much left to ask for.
                    if let Some(lease) = &mut entry.lease {
                        lease.low = 0;
                    }
                    return;
                }
            }
        };
        if let Some(replaced) = replaced {
            self.send_back(&fetch.policy, &fetch.key, replaced);
        }
        self.start_sweeping();
    }

    /// Forgets the lease of a key whose charges are forgotten too.
    pub(crate) fn forget(&self, policy: &Policy, key: &Key) {
        let (hash, mut shard) = self.shard(policy, key);
        self.resets[(hash as u32 % RESETS) as usize].fetch_add(1, Ordering::AcqRel);
        if let Some(entry) = shard.get_mut(&hash) {
            entry.lease = None;
        }
    }

    /// What gives the lease of a key back, where there is one.
    pub(crate) fn take_back(self: &Arc<Self>, policy: &Policy, key: &Key) -> Option<Job> {
        let (hash, mut shard) = self.shard(policy, key);
        let entry = shard.get_mut(&hash)?;
        let (lease, policy, key) = (entry.lease.take()?, entry.policy.clone(), entry.key.clone());
        let returned = lease.returned(self.resets(hash));
        drop(shard);
        self.returning(&policy, &key, returned)
    }

    /// What gives all leases back.
    pub(crate) fn take_all_back(self: &Arc<Self>) -> Vec<Job> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            for (hash, entry) in lock(shard).iter_mut() {
                if let Some(lease) = entry.lease.take() {
                    let returned = lease.returned(self.resets(*hash));
                    taken.push((entry.policy.clone(), entry.key.clone(), returned));
                }
            }
        }
        taken.iter().filter_map(|(policy, key, returned)| self.returning(policy, key, *returned)).collect()
    }

    fn send_back(self: &Arc<Self>, policy: &Policy, key: &Key, returned: Returned) {
        // Outside a runtime it is not sent, and the lease's end settles it.
        if let (Some(job), Ok(runtime)) = (self.returning(policy, key, returned), Handle::try_current()) {
            self.spawn(job, &runtime);
        }
    }

    /// Makes a call whether a caller waits for it or not.
    pub(crate) fn spawn(&self, job: Job, runtime: &Handle) -> JoinHandle<Result<(), Error>> {
        let call = UnderWay::new(&self.under_way);
        let decide = self.link.clone().decide(job);
        runtime.spawn(async move {
            let _call = call;
            decide.await.map(|_| ())
        })
    }

    /// Waits until no call of [`spawn`](Self::spawn) is under way.
    pub(crate) async fn settled(&self) {
        // The sender is here, so there is no error.
        let _ = self.under_way.subscribe().wait_for(|calls| *calls == 0).await;
    }

    fn returning(self: &Arc<Self>, policy: &Policy, key: &Key, returned: Returned) -> Option<Job> {
        if returned.lease.units == 0 {
            return None;
        }
        let watch = LeaseWatch { leases: self.clone(), returned, fetch: None };
        let frees = watch.frees_some();
        let denied = self.denied.as_ref();
        let denied = denied.map(|denied| DenyWatch::new(denied, denied.asked(), Action::Refund, frees));
        Some(Job {
            action: Action::Refund,
            charges: vec![Charge::new(policy, key, 0)],
            prefix: self.prefix.clone(),
            time: self.clock.told(),
            script: Script::built_in(),
            deadline: PATIENCE,
            lease: Some(LeaseRequest { wanted: 0, returned: returned.lease }),
            observer: Some(Box::new((Some(watch), denied))),
        })
    }

    fn start_sweeping(self: &Arc<Self>) {
        if let Ok(runtime) = Handle::try_current()
            && !self.sweeping.swap(true, Ordering::SeqCst)
        {
            runtime.spawn(sweep(Sweeper(Some(Arc::downgrade(self)))));
        }
    }

    /// Gives back what is not used. `true` where something is on lease still.
    fn sweep(self: &Arc<Self>) -> bool {
        let mut some = false;
        let mut unused = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let now = self.clock.micros();
            for (hash, entry) in shard.iter_mut() {
                let Some(lease) = &entry.lease else { continue };
                if !lease.is_on(now, self.clock.times_set_back())
                    || now.saturating_sub(lease.used) >= QUIET
                    || now - lease.from >= OLD
                    || lease.end - now <= LAST_CHANCE && !entry.fetching
                {
                    // What was asked for was too much.
                    entry.want /= 2;
                    let returned = lease.returned(self.resets(*hash));
                    entry.lease = None;
                    unused.push((entry.policy.clone(), entry.key.clone(), returned));
                } else {
                    some = true;
                }
            }
        }
        for (policy, key, returned) in unused {
            self.send_back(&policy, &key, returned);
        }
        some
    }

    fn has_some(&self) -> bool {
        self.shards.iter().any(|shard| lock(shard).values().any(|entry| entry.lease.is_some()))
    }

    pub(crate) fn status(&self) -> LeaseStatus {
        let mut status = LeaseStatus { keys: 0, units: 0, calls: *self.under_way.borrow() };
        for shard in &self.shards {
            for lease in lock(shard).values().filter_map(|entry| entry.lease.as_ref()) {
                status.keys += 1;
                status.units += lease.left;
            }
        }
        status
    }

    fn resets(&self, hash: u64) -> Resets {
        let place = hash as u32 % RESETS;
        Resets { place, times: self.times_reset(place) }
    }

    fn times_reset(&self, place: u32) -> u32 {
        self.resets[place as usize].load(Ordering::Acquire)
    }

    fn shard(&self, policy: &Policy, key: &Key) -> (u64, MutexGuard<'_, HashMap<u64, Entry>>) {
        let hash = self.hasher.hash_one((policy.label(), key));
        (hash, lock(&self.shards[hash as usize % SHARDS]))
    }
}

/// The entry of `charge`, made where there is room for it.
fn entry<'a>(shard: &'a mut HashMap<u64, Entry>, hash: u64, charge: &Charge) -> Option<&'a mut Entry> {
    if shard.len() >= MOST_KEYS && !shard.contains_key(&hash) {
        // The coldest of a few. To look at all of them would cost cold keys more than a lease saves hot ones.
        let idle = shard.iter().filter(|(_, entry)| entry.is_idle()).take(4);
        let idle = *idle.min_by_key(|(_, entry)| entry.asked)?.0;
        shard.remove(&idle);
    }
    let new = || Entry {
        policy: charge.policy().clone(),
        key: charge.key().clone(),
        lease: None,
        want: 0,
        asked: None,
        fetching: false,
    };
    match shard.entry(hash) {
        hash_map::Entry::Vacant(place) => Some(place.insert(new())),
        hash_map::Entry::Occupied(place) => {
            let entry = place.into_mut();
            if !entry.is_of(charge) {
                // Another quota's, or by a rare chance another key's.
                if !entry.is_idle() {
                    return None;
                }
                *entry = new();
            }
            Some(entry)
        }
    }
}

impl LeaseWatch {
    /// Whether units come back that others can be charged.
    pub(crate) const fn frees_some(&self) -> bool {
        self.returned.lease.units > self.returned.lease.spent
    }
}

impl Observer for LeaseWatch {
    /// What a reset forgot since it was taken out is not returned. A job that was surely never sent may be sent again.
    fn sending(&self, lease: &mut Option<LeaseRequest>) {
        let times = self.leases.times_reset(self.returned.resets.place);
        if let Some(fetch) = &self.fetch {
            fetch.resets.store(times, Ordering::Release);
            fetch.sent.store(true, Ordering::Release);
        }
        if let Some(lease) = lease
            && self.returned.resets.times != times
        {
            lease.returned = LeaseReturn::default();
        }
    }

    fn settled(&self, _: &Job, reply: Option<&Reply>) {
        if let (Some(fetch), Some(Reply { decision, leased: Some(leased) })) = (&self.fetch, reply)
            && let [outcome] = decision.outcomes()
        {
            fetch.came.store(true, Ordering::Release);
            self.leases.put(fetch, Some((*leased, outcome)));
        }
    }
}

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        let Some(fetch) = &mut self.fetch else { return };
        if !*fetch.came.get_mut() {
            self.leases.put(fetch, None);
        }
        if !*fetch.sent.get_mut() {
            self.leases.send_back(&fetch.policy, &fetch.key, self.returned);
        }
    }
}

/// What an instance has on lease, from [`RedisStore::lease_status`](crate::RedisStore::lease_status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    keys: usize,
    units: u64,
    calls: usize,
}

impl LeaseStatus {
    /// How many keys have units on lease here, under all policies.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.keys
    }

    /// The units on lease that are not spent.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// How many calls that lease units ahead of requests or return them are under way.
    #[must_use]
    pub const fn calls(&self) -> usize {
        self.calls
    }
}

/// Runs as long as anything is on lease, and does not keep the store alive.
async fn sweep(mut sweeper: Sweeper) {
    loop {
        sleep(PAUSE).await;
        let Some(leases) = sweeper.0.as_ref().and_then(Weak::upgrade) else { return };
        if leases.sweep() {
            continue;
        }
        leases.sweeping.store(false, Ordering::SeqCst);
        // One that came meanwhile found that somebody sweeps.
        if !leases.has_some() || leases.sweeping.swap(true, Ordering::SeqCst) {
            sweeper.0 = None;
            return;
        }
    }
}

/// A call of which the leases know that it is under way.
struct UnderWay(watch::Sender<usize>);

impl UnderWay {
    fn new(calls: &watch::Sender<usize>) -> Self {
        calls.send_modify(|calls| *calls += 1);
        Self(calls.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status().fmt(f)
    }
}

/// The task, whose runtime may be shut down: then the next runtime's begins anew.
struct Sweeper(Option<Weak<Leases>>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(leases) = self.0.take().and_then(|leases| leases.upgrade()) {
            leases.sweeping.store(false, Ordering::SeqCst);
        }
    }
}
