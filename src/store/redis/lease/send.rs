//! Fetches leases, and returns them in the background.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    clock::Clock,
    entry::Returned,
    table::{Fetch, LeaseTable},
};
use crate::{
    base::{Error, ErrorKind, Guard, UnderWay, sync::lock},
    decision::{Charge, Charges, Decision, Outcome},
    key::Key,
    policy::Policy,
    store::{
        Action, ManualClock,
        redis::{
            deny_cache::{DenyCache, DenyObserver},
            job::{Job, KeyNames, LeaseRequest, LeaseReturn, Leased, Observer},
            script::Script,
            transport::Link,
        },
        watchers::Watchers,
    },
};

/// The leases of a store, and the link over which they are returned.
pub(crate) struct Leases {
    pub(crate) table: LeaseTable,
    link: Arc<dyn Link>,
    names: KeyNames,
    deny_cache: Option<Arc<DenyCache>>,
    watchers: Arc<Watchers>,
    /// The tasks that return unused leases: one in each runtime, because a runtime may not be driven.
    sweeping: Mutex<HashMap<Id, JoinHandle<()>>>,
    /// The jobs that lease or return units.
    in_flight: UnderWay,
    /// Why leases were not returned, by the last attempt that failed, and when those leases have ended in any case.
    lost: Mutex<Option<(Error, Instant)>>,
    #[cfg(feature = "metrics")]
    leased: crate::metrics::record::Leased,
}

/// The time between two searches for leases to return.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// The longest life of a lease.
const MAX_LEASE: Duration = Duration::from_secs(2);
/// The deadline of a return.
const RETURN_DEADLINE: Duration = Duration::from_millis(500);

impl Leases {
    pub(crate) fn new(
        link: Arc<dyn Link>,
        names: KeyNames,
        clock: Option<ManualClock>,
        deny_cache: Option<Arc<DenyCache>>,
        watchers: Arc<Watchers>,
    ) -> Self {
        Self {
            // This clock counts suspension, because units that are spent after the lease's end would be spent
            // twice.
            table: LeaseTable::new(Clock::including_suspension(clock)),
            link,
            names,
            deny_cache,
            watchers,
            sweeping: Mutex::default(),
            in_flight: UnderWay::default(),
            lost: Mutex::default(),
            #[cfg(feature = "metrics")]
            leased: crate::metrics::record::Leased::default(),
        }
    }

    /// Fetches a lease with a job for `charge`; `ahead` is whether enough units are left for now. `None` if
    /// there is nothing to fetch.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        charge: &Charge,
        hash: u64,
        ahead: bool,
    ) -> Option<Box<LeaseRequest>> {
        let (fetch, returned) = self.table.fetch(charge, hash, ahead)?;
        Some(self.request(returned, Some(fetch)))
    }

    fn request(self: &Arc<Self>, returned: Returned, fetch: Option<Fetch>) -> Box<LeaseRequest> {
        let (wanted, lease) = (fetch.as_ref().map_or(0, |fetch| fetch.wanted), returned.lease);
        let _in_flight = self.in_flight.begin();
        let observer = LeaseObserver { leases: self.clone(), returned, fetch, is_sent: false, _in_flight };
        LeaseRequest::new(wanted, lease, observer)
    }

    /// Returns the lease of a key to Redis in the background. Waits until Redis knows, or will never know,
    /// how many units of the key's leases were spent.
    pub(crate) async fn settle(self: &Arc<Self>, policy: &Policy, key: &Key) {
        if let Some((returned, reports, _next)) = self.table.remove(policy, key) {
            self.spawn_return(returned);
            reports.ended().await;
        }
    }

    /// Removes all leases. Returns the jobs that return them to Redis, and the attempt to do so.
    pub(crate) fn remove_all(self: &Arc<Self>) -> (Vec<Job>, Attempt) {
        let removed = self.table.remove_all();
        self.report();
        let jobs = removed.into_iter().filter_map(|returned| self.return_job(returned)).collect();
        let failure = Error::new(
            ErrorKind::StoreTimeout,
            "an earlier `drain` did not wait until the leases were returned: units that were not returned count as \
             used",
        );
        (jobs, Attempt { leases: self.clone(), failure: Some(failure) })
    }

    /// The result of returning all leases: `result`, or the failure of an earlier attempt whose leases may not
    /// have ended.
    pub(crate) fn returned(&self, mut attempt: Attempt, result: Result<(), Error>) -> Result<(), Error> {
        attempt.failure = result.err();
        drop(attempt);
        match &*lock(&self.lost) {
            Some((error, end)) if Instant::now() < *end => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Ends a fetch, see [`LeaseTable::complete`], and returns the lease that was replaced.
    fn complete(self: &Arc<Self>, fetch: &Fetch, returned: &Returned, granted: Option<(Leased, &Outcome)>) {
        if let Some(replaced) = self.table.complete(fetch, returned, granted) {
            self.spawn_return(replaced);
            self.start_sweeping();
        }
    }

    fn spawn_return(self: &Arc<Self>, returned: Returned) {
        // Outside a runtime, the return is not sent, and the end of the lease settles it.
        if let (Some(job), Ok(runtime)) = (self.return_job(returned), Handle::try_current()) {
            self.spawn(job, &runtime);
        }
    }

    /// Sends a job in the background.
    pub(crate) fn spawn(&self, job: Job, runtime: &Handle) -> JoinHandle<Result<(), Error>> {
        let decision = job.into_answer();
        runtime.spawn(async move { decision.await.map(|_| ()) })
    }

    /// Waits until no job that leases or returns units is in flight, for half a second at most: under traffic
    /// there may always be one.
    pub(crate) async fn wait_until_idle(&self) {
        let _ = timeout(RETURN_DEADLINE, self.in_flight.ended()).await;
    }

    fn return_job(self: &Arc<Self>, returned: Returned) -> Option<Job> {
        if returned.lease.units == 0 {
            return None;
        }
        // The observer only invalidates denials, so the time does not matter.
        let denial = |cache| DenyObserver::new(cache, 0, true);
        let charges = Charges::One(returned.charge.clone());
        let (names, script) = (self.names.clone(), Script::built_in().clone());
        Some(Job {
            time: self.table.clock.manual_micros(),
            denial: self.deny_cache.as_ref().map(denial),
            lease: Some(self.request(returned, None)),
            ..Job::new(Action::Refund, charges, names, script, RETURN_DEADLINE, self.link.clone())
        })
    }

    fn start_sweeping(self: &Arc<Self>) {
        if let Ok(runtime) = Handle::try_current() {
            let mut sweeping = lock(&self.sweeping);
            // Tasks that are finished belonged to runtimes that have ended.
            sweeping.retain(|_, task| !task.is_finished());
            let start = || runtime.spawn(sweep(Arc::downgrade(self), runtime.id()));
            sweeping.entry(runtime.id()).or_insert_with(start);
        }
    }

    /// Sets the gauges of leases, if there are any.
    fn report(&self) {
        #[cfg(feature = "metrics")]
        {
            let (keys, units) = self.table.sizes();
            self.leased.set(keys, units);
        }
    }

    pub(crate) fn status(&self) -> LeaseStatus {
        let (keys, units) = self.table.sizes();
        LeaseStatus { keys, units, calls: self.in_flight.count() }
    }
}

/// An attempt to return all leases. A timeout may drop it before it has ended: then it has failed.
pub(crate) struct Attempt {
    leases: Arc<Leases>,
    /// Why they were not returned.
    failure: Option<Error>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(failure) = self.failure.take() {
            *lock(&self.leases.lost) = Some((failure, Instant::now() + MAX_LEASE));
        }
    }
}

/// Observes a job that returns units, and may lease others.
struct LeaseObserver {
    leases: Arc<Leases>,
    returned: Returned,
    /// `None` once its units are stored, or if the job only returns units.
    fetch: Option<Fetch>,
    is_sent: bool,
    _in_flight: Guard,
}

impl Observer for LeaseObserver {
    fn sending(&mut self, returned: &mut LeaseReturn) {
        // A lease that was removed before a reset is not returned. The check is made when the job is sent,
        // because a job that was certainly not sent may be sent again.
        let resets = self.leases.table.resets(self.returned.hash);
        if mem::replace(&mut self.returned.resets, resets) != resets {
            *returned = LeaseReturn::default();
        }
        self.is_sent = true;
    }

    fn settled(&mut self, decision: &Decision, leased: Option<Leased>) {
        if let (Some(leased), [outcome]) = (leased, decision.outcomes())
            && let Some(fetch) = self.fetch.take()
        {
            if decision.has_lease() {
                self.leases.watchers.leased(outcome, leased.units);
            }
            self.leases.complete(&fetch, &self.returned, Some((leased, outcome)));
        }
    }
}

impl Drop for LeaseObserver {
    fn drop(&mut self) {
        if let Some(fetch) = self.fetch.take() {
            self.leases.complete(&fetch, &self.returned, None);
            if !self.is_sent {
                self.leases.spawn_return(self.returned.clone());
            }
        }
    }
}

/// Returns unused leases as long as there are leases, without keeping the store alive.
async fn sweep(leases: Weak<Leases>, runtime: Id) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(leases) = leases.upgrade() else { return };
        let unused = leases.table.remove_unused();
        leases.report();
        unused.into_iter().for_each(|returned| leases.spawn_return(returned));
        // The task ends under the lock, so a lease that is stored afterwards starts another one.
        let mut sweeping = lock(&leases.sweeping);
        if leases.table.sizes().0 == 0 {
            sweeping.remove(&runtime);
            return;
        }
    }
}

/// The units on [lease](crate::Policy::max_lease) in this process: see
/// [`RedisStore::lease_status`](crate::RedisStore::lease_status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// The keys with units on lease, under all policies.
    pub keys: usize,
    /// The units on lease that are not spent yet.
    pub units: u64,
    /// The script calls under way that lease or return units.
    pub calls: usize,
}
