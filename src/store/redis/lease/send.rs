//! Returns leases in the background.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    entry::{ResetCount, Returned},
    table::{Fetch, LeaseTable},
};
use crate::{
    base::{Error, sync::lock},
    decision::{Charge, Charges, Outcome},
    key::Key,
    policy::Policy,
    store::{
        Action, ManualClock,
        redis::{
            job::{Job, KeyNames, LeaseRequest, LeaseReturn, Leased, Observer},
            script::Script,
            shortcut::{Clock, DenyCache, DenyObserver},
            transport::Link,
        },
    },
};

/// The leases of a store, and what sends their returns.
pub(crate) struct Leases {
    pub(crate) table: LeaseTable,
    link: Arc<dyn Link>,
    names: KeyNames,
    deny_cache: Option<Arc<DenyCache>>,
    /// The runtimes in which a task returns unused leases. One of them may not be driven.
    sweeping: Mutex<HashSet<Id>>,
    /// The number of script calls in the background.
    in_flight: watch::Sender<usize>,
    #[cfg(feature = "metrics")]
    leased: crate::metrics::record::Leased,
}

/// Between two searches for leases to return.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// The deadline of a return.
const RETURN_DEADLINE: Duration = Duration::from_millis(500);

impl Leases {
    pub(crate) fn new(
        link: Arc<dyn Link>,
        names: KeyNames,
        clock: Option<ManualClock>,
        deny_cache: Option<Arc<DenyCache>>,
    ) -> Self {
        Self {
            // Counts suspension: units that are spent after the lease's end would be spent twice.
            table: LeaseTable::new(Clock::including_suspension(clock)),
            link,
            names,
            deny_cache,
            sweeping: Mutex::default(),
            in_flight: watch::Sender::new(0),
            #[cfg(feature = "metrics")]
            leased: crate::metrics::record::Leased::default(),
        }
    }

    /// Removes the lease of a key. Returns the job that returns it to Redis.
    pub(crate) fn remove(self: &Arc<Self>, policy: &Policy, key: &Key) -> Option<Job> {
        self.return_job(&self.table.remove(policy, key)?)
    }

    /// Removes all leases. Returns the jobs that return them to Redis.
    pub(crate) fn remove_all(self: &Arc<Self>) -> Vec<Job> {
        let removed = self.table.remove_all();
        self.report();
        removed.iter().filter_map(|returned| self.return_job(returned)).collect()
    }

    /// Ends a fetch, see [`LeaseTable::complete`], and returns the lease that was replaced.
    pub(super) fn complete(
        self: &Arc<Self>,
        fetch: &Fetch,
        resets: u32,
        granted: Option<(Leased, &Outcome)>,
    ) {
        if let Some(returned) = self.table.complete(fetch, resets, granted) {
            self.spawn_return(&returned);
            self.start_sweeping();
        }
    }

    /// Makes a job return nothing if the lease was removed before a reset. A job that was certainly not sent may be sent
    /// again, so this is found when it is sent. Returns the reset count.
    pub(super) fn return_if_valid(&self, returned: &mut LeaseReturn, resets: ResetCount) -> u32 {
        let count = self.table.reset_count(resets.cell);
        if resets.count != count {
            *returned = LeaseReturn::default();
        }
        count
    }

    pub(super) fn spawn_return(self: &Arc<Self>, returned: &Returned) {
        // Outside a runtime it is not sent, and the end of the lease settles it.
        if let (Some(job), Ok(runtime)) = (self.return_job(returned), Handle::try_current()) {
            self.spawn(job, &runtime);
        }
    }

    /// Sends a job in the background.
    pub(crate) fn spawn(&self, job: Job, runtime: &Handle) -> JoinHandle<Result<(), Error>> {
        let guard = InFlight::new(&self.in_flight);
        let decide = self.link.clone().decide(job);
        runtime.spawn(async move {
            let _guard = guard;
            decide.await.map(|_| ())
        })
    }

    /// Waits until no job of [`spawn`](Self::spawn) is in flight, for half a second at most: under traffic there may
    /// always be one.
    pub(crate) async fn wait_until_idle(&self) {
        let mut in_flight = self.in_flight.subscribe();
        // The sender exists, so the wait itself cannot fail.
        let _ = timeout(RETURN_DEADLINE, in_flight.wait_for(|calls| *calls == 0)).await;
    }

    fn return_job(self: &Arc<Self>, returned: &Returned) -> Option<Job> {
        if returned.lease.units == 0 {
            return None;
        }
        let (frees_units, resets) = (returned.lease.frees_units(), returned.resets);
        let denial = |cache| DenyObserver::new(cache, cache.stamp(), Action::Refund, frees_units);
        let observer = Box::new(ReturnObserver { leases: self.clone(), resets });
        Some(Job {
            action: Action::Refund,
            penalties: Vec::new(),
            charges: Charges::One(Charge::new(&returned.policy, &returned.key, 0)),
            names: self.names.clone(),
            time: self.table.clock().manual_micros(),
            script: Script::built_in().clone(),
            deadline: RETURN_DEADLINE,
            denial: self.deny_cache.as_ref().map(denial),
            lease: Some(Box::new(LeaseRequest { wanted: 0, returned: returned.lease, observer })),
        })
    }

    fn start_sweeping(self: &Arc<Self>) {
        if let Ok(runtime) = Handle::try_current()
            && lock(&self.sweeping).insert(runtime.id())
        {
            runtime.spawn(sweep(Sweeper(Arc::downgrade(self), runtime.id())));
        }
    }

    /// Returns unused leases. The result is whether any lease remains.
    fn sweep(self: &Arc<Self>) -> bool {
        let unused = self.table.remove_unused();
        self.report();
        unused.iter().for_each(|returned| self.spawn_return(returned));
        self.has_leases()
    }

    /// Sets the gauges of leases, if there are any.
    fn report(&self) {
        #[cfg(feature = "metrics")]
        {
            let (keys, units) = self.table.sizes();
            self.leased.set(keys, units);
        }
    }

    fn has_leases(&self) -> bool {
        self.table.sizes().0 > 0
    }

    pub(crate) fn status(&self) -> LeaseStatus {
        let (keys, units) = self.table.sizes();
        LeaseStatus { keys, units, calls: *self.in_flight.borrow() }
    }
}

/// Observes a job that only returns a lease.
struct ReturnObserver {
    leases: Arc<Leases>,
    resets: ResetCount,
}

impl Observer for ReturnObserver {
    fn sending(&mut self, returned: &mut LeaseReturn) {
        self.leases.return_if_valid(returned, self.resets);
    }
}

/// Runs as long as there are leases, without keeping the store alive.
async fn sweep(mut sweeper: Sweeper) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(leases) = sweeper.0.upgrade() else { return };
        if leases.sweep() {
            continue;
        }
        lock(&leases.sweeping).remove(&sweeper.1);
        // A lease that was stored since saw this task running, and started no other.
        if !leases.has_leases() || !lock(&leases.sweeping).insert(sweeper.1) {
            sweeper.0 = Weak::new();
            return;
        }
    }
}

/// Counts a background job while it is in flight.
struct InFlight(watch::Sender<usize>);

impl InFlight {
    fn new(calls: &watch::Sender<usize>) -> Self {
        calls.send_modify(|calls| *calls += 1);
        Self(calls.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status().fmt(f)
    }
}

/// Removes the runtime if the task ends with it, so that a later one can start another.
struct Sweeper(Weak<Leases>, Id);

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(leases) = self.0.upgrade() {
            lock(&leases.sweeping).remove(&self.1);
        }
    }
}

/// The units on lease in an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The keys with units on lease here, under all policies.
    pub keys: usize,
    /// The units on lease that are not spent yet.
    pub units: u64,
    /// The script calls under way that lease units ahead of requests or return them.
    pub calls: usize,
}
