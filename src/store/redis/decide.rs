//! How a [`RedisStore`] makes a decision: from a lease or the deny cache if possible, otherwise with a job for Redis.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    instances::Instances,
    job::{Job, Slot},
    lease,
    script::Script,
    shortcut::DenyObserver,
    store::RedisStore,
    transport::{current, deadline_in, timed_out},
};
use crate::{
    base::Answer,
    decision::{Charge, Charges, Decision},
    policy::Traits,
    store::{Action, ManualClock, PenaltyCharge},
};

impl RedisStore {
    /// A [plain](Charge::is_plain) charge takes the short way: the deny cache, a job of this charge, and the short script. Only
    /// the others look up a lease, or bring charges against penalties.
    pub(super) fn evaluate(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        let hot = self.leased(action, charges);
        if let Some((decision, is_low)) = hot.and_then(|charge| self.leases.table.spend(charge)) {
            if is_low && let (Ok(runtime), [charge]) = (Handle::try_current(), charges) {
                self.lease_ahead(charge, &runtime);
            }
            return Answer::ready(Ok(decision));
        }
        let stamp = match (action, &self.deny_cache) {
            (Action::Charge, Some(deny_cache)) => match deny_cache.lookup(charges) {
                Ok(decision) => return Answer::ready(Ok(decision)),
                Err(stamp) => Some((deny_cache, stamp)),
            },
            (Action::Refund | Action::ChargeUpTo | Action::Debit | Action::Ban, Some(deny_cache)) => {
                Some((deny_cache, deny_cache.stamp()))
            }
            _ => None,
        };
        if action.charges_units() {
            self.instances.iter().for_each(Instances::announce_if_due);
        }
        let script = match self.scripts.script_for(charges) {
            Ok(script) => script,
            Err(error) => return Answer::ready(Err(error)),
        };
        let mut job = self.job(action, charges.into(), script);
        job.lease = hot.and_then(|charge| lease::fetch(&self.leases, charge, false));
        let frees_units = job.lease.as_ref().is_some_and(|lease| lease.returned().frees_units());
        job.denial = stamp.map(|(cache, stamp)| DenyObserver::new(cache, stamp, action, frees_units));
        if action == Action::Refund { self.refund(job) } else { self.link.clone().decide(job.into()) }
    }

    /// The charge of a decision that may be made from a lease.
    fn leased<'a>(&self, action: Action, charges: &'a [Charge]) -> Option<&'a Charge> {
        let [charge] = charges else { return None };
        let is_leased = action == Action::Charge && charge.policy().has(Traits::LEASE);
        (is_leased && charge.cost() > 0 && !charge.is_shadow()).then_some(charge)
    }

    pub(super) fn job(&self, action: Action, charges: Charges, script: Arc<Script>) -> Job {
        Job {
            action,
            penalties: PenaltyCharge::of(action, &charges),
            charges,
            names: self.names.clone(),
            time: self.clock.as_ref().map(ManualClock::micros),
            script,
            deadline: self.deadline,
            denial: None,
            lease: None,
            slot: Slot::default(),
        }
    }

    /// Leases more units before the lease is used up.
    fn lease_ahead(&self, charge: &Charge, runtime: &Handle) {
        if let Some(lease) = lease::fetch(&self.leases, charge, true) {
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
