//! How a [`RedisStore`] makes a decision: from a lease or the deny cache if possible, otherwise with a job for Redis.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    deny_cache::DenyObserver,
    instances::MOST as MOST_INSTANCES,
    job::Job,
    lease::Spent,
    script::Script,
    store::RedisStore,
    transport::{PROBE_TIMEOUT, current, deadline_in, timed_out},
};
use crate::{
    base::Answer,
    decision::{Charge, Charges, Decision},
    policy::Traits,
    store::Action,
};

impl RedisStore {
    /// A [plain](Charge::is_plain) charge takes the short way: the deny cache, a job of this charge, and the short script. Only
    /// the others look up a lease, or bring charges against penalties.
    pub(super) fn evaluate(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        let now = self.clock.micros();
        let mut hot = None;
        if let Some(charge) = leased(action, charges) {
            let hash = self.leases.table.hash_of(charge);
            match self.leases.table.spend(charge, hash, now) {
                Spent::Decided(decision, is_low) => {
                    if is_low && let Ok(runtime) = Handle::try_current() {
                        self.lease_ahead(charge, hash, &runtime);
                    }
                    return Answer::ready(Ok(decision));
                }
                Spent::Hot => hot = Some((charge, hash)),
                Spent::Cold => {}
            }
        }
        let deny_cache = self.deny_cache.as_ref().filter(|_| !matches!(action, Action::Peek | Action::Renew));
        let stamp = deny_cache.map(|deny_cache| (deny_cache, deny_cache.stamp(now)));
        if let (Action::Charge, Some((deny_cache, stamp))) = (action, stamp)
            && let Some(decision) = deny_cache.lookup(charges, stamp)
        {
            return Answer::ready(Ok(decision));
        }
        if action.charges_units() {
            self.announce_if_due(now);
        }
        let script = match self.scripts.script_for(charges) {
            Ok(script) => script,
            Err(error) => return Answer::ready(Err(error)),
        };
        let mut job = self.job(action, charges.into(), script);
        job.lease = hot.and_then(|(charge, hash)| self.leases.fetch(charge, hash, false));
        let frees_units = job.lease.as_ref().is_some_and(|lease| lease.returned().frees_units());
        job.denial = stamp.map(|(cache, stamp)| DenyObserver::new(cache, stamp, action, frees_units));
        if action == Action::Refund { self.refund(job) } else { self.link.clone().decide(job.into()) }
    }

    pub(super) fn job(&self, action: Action, charges: Charges, script: Arc<Script>) -> Job {
        let job = Job::new(action, charges, self.names.clone(), script, self.deadline);
        Job { time: self.clock.manual_micros(), ..job }
    }

    /// Announces this instance in the background, if that is due at the time `now`. Call it with a charge.
    fn announce_if_due(&self, now: u64) {
        if let Some(instances) = &self.instances
            && instances.is_due(now)
            && let Ok(runtime) = Handle::try_current()
        {
            // A renewal adds a permit that Redis does not have. If it fails, the next interval tries again.
            let (store, permit) = (self.clone(), instances.permit.clone());
            runtime.spawn(async move { store.count_instances(Action::Renew, permit).await });
        }
    }

    /// Learns how many instances run already.
    pub(super) async fn look_for_instances(&self) {
        if let Some(instances) = &self.instances {
            self.count_instances(Action::Peek, instances.permit.clone().with_cost(0)).await;
        }
    }

    async fn count_instances(&self, action: Action, permit: Charge) {
        let job = self.job(action, Charges::One(permit), Script::built_in().clone());
        let job = Job { deadline: self.deadline.min(PROBE_TIMEOUT), ..job };
        let decision = self.link.clone().decide(job.into()).await;
        if let Some(remaining) = decision.ok().and_then(|decision| decision.remaining()) {
            let instances =
                u32::try_from(MOST_INSTANCES.saturating_sub(remaining).max(1)).unwrap_or(u32::MAX);
            self.local.reported(instances);
            metric!(instances_seen(instances));
        }
    }

    /// Leases more units before the lease is used up.
    fn lease_ahead(&self, charge: &Charge, hash: u64, runtime: &Handle) {
        if let Some(lease) = self.leases.fetch(charge, hash, true) {
            let no_units = Charge::new(charge.policy(), charge.key(), 0);
            let job = self.job(Action::Charge, Charges::One(no_units), Script::built_in().clone());
            self.leases.spawn(Job { lease: Some(lease), ..job }, runtime);
        }
    }

    /// Refunds. Redis can refund units that were spent from a lease only once it knows of them, so the lease is
    /// returned first.
    fn refund(&self, job: Job) -> Answer<Decision> {
        let (link, leases) = (self.link.clone(), self.leases.clone());
        if !job.charges.iter().any(|charge| charge.policy().has(Traits::LEASE)) {
            return link.decide(job.into());
        }
        Answer::pending(async move {
            let runtime = current()?;
            let (allowed, deadline) = (job.deadline, deadline_in(job.deadline));
            for charge in &*job.charges {
                if let Some(first) = leases.remove(charge.policy(), charge.key()) {
                    // Spawned, so it goes on if the refund is dropped or times out. If it fails, the units return when
                    // the lease ends.
                    let sent = leases.spawn(first, &runtime);
                    if timeout_at(deadline, sent).await.is_err() {
                        return Err(timed_out(allowed));
                    }
                }
            }
            // The refund gets the rest of the deadline.
            let deadline = deadline.saturating_duration_since(Instant::now());
            link.decide(Job { deadline: deadline.max(Duration::from_millis(1)), ..job }.into()).await
        })
    }
}

/// The charge of a decision that may be made from a lease.
fn leased(action: Action, charges: &[Charge]) -> Option<&Charge> {
    let [charge] = charges else { return None };
    let is_leased = action == Action::Charge && charge.policy().has(Traits::LEASE);
    (is_leased && charge.cost() > 0 && !charge.is_shadow()).then_some(charge)
}
