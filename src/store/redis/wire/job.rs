use std::{sync::Arc, time::Duration};

use super::reply::Reply;
use crate::{
    decision::Charge,
    store::{Action, redis::script::Script},
};

/// One decision to be made.
pub(crate) struct Job {
    pub(crate) action: Action,
    pub(crate) charges: Vec<Charge>,
    pub(crate) prefix: Arc<str>,
    /// A manual clock's time, in microseconds; `None` for the server's own.
    pub(crate) time: Option<u64>,
    pub(crate) script: Arc<Script>,
    pub(crate) deadline: Duration,
    /// What is leased and returned besides. Of a job with one charge.
    pub(crate) lease: Option<LeaseRequest>,
    pub(crate) observer: Option<Box<dyn Observer>>,
}

/// Learns what becomes of a job. Dropped with the job: then the job was settled or never will be.
pub(crate) trait Observer: Send + Sync {
    /// The job is sent with `lease`, which may be changed until now.
    fn sending(&self, lease: &mut Option<LeaseRequest>) {
        let _ = lease;
    }

    /// The server replied to `job`, or it could not be carried out as a whole and may have been in part.
    fn settled(&self, job: &Job, reply: Option<&Reply>);

    /// An observer for a job that undoes a part of this one, which was charged and is not admitted after all.
    #[cfg(feature = "cluster")]
    fn undoing(&self) -> Option<Box<dyn Observer>> {
        None
    }
}

/// Both observe, the first one first.
impl<A: Observer, B: Observer> Observer for (Option<A>, Option<B>) {
    fn sending(&self, lease: &mut Option<LeaseRequest>) {
        self.0.iter().for_each(|first| first.sending(lease));
        self.1.iter().for_each(|second| second.sending(lease));
    }

    fn settled(&self, job: &Job, reply: Option<&Reply>) {
        self.0.iter().for_each(|first| first.settled(job, reply));
        self.1.iter().for_each(|second| second.settled(job, reply));
    }

    #[cfg(feature = "cluster")]
    fn undoing(&self) -> Option<Box<dyn Observer>> {
        self.0.as_ref().and_then(A::undoing).or_else(|| self.1.as_ref().and_then(B::undoing))
    }
}

/// Units that a job leases, and units of an older lease that it returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseRequest {
    pub(crate) wanted: u64,
    pub(crate) returned: LeaseReturn,
}

/// What is returned of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseReturn {
    /// The lease's name.
    pub(crate) name: u64,
    /// Those that were spent too.
    pub(crate) units: u64,
    pub(crate) spent: u64,
}

impl Job {
    /// Whether both can be made in one call.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.script, &other.script) && self.time == other.time
    }

    /// A part of this one, which nothing observes.
    #[cfg(feature = "cluster")]
    pub(crate) fn part(&self, action: Action, charges: Vec<Charge>) -> Self {
        let (prefix, script) = (self.prefix.clone(), self.script.clone());
        Self { action, charges, prefix, script, lease: None, observer: None, ..*self }
    }

    /// To be called right before the job is encoded and sent.
    pub(crate) fn sending(&mut self) {
        if let Some(observer) = &self.observer {
            observer.sending(&mut self.lease);
        }
    }

    /// To be called with the reply.
    pub(crate) fn settled(&self, reply: Option<&Reply>) {
        if let Some(observer) = &self.observer {
            observer.settled(self, reply);
        }
    }

    /// About how many microseconds of Redis it takes at worst.
    pub(crate) fn micros(&self) -> u64 {
        let refund = self.action == Action::Refund;
        // A denial looks at no more holders than units are missing.
        let holders = |charge: &Charge| if charge.needs_permit() { charge.cost().min(1_000) } else { 0 };
        self.charges.iter().map(|charge| charge.policy().redis_micros(refund) + holders(charge)).sum()
    }

    /// Whether it may be sent again where it is not known whether it was carried out: what is charged twice is admitted
    /// once, and a permit is released once. What is refunded twice is admitted twice, and units that are leased twice
    /// are missed until the second lease ends.
    pub(crate) fn may_be_repeated(&self) -> bool {
        self.lease.is_none()
            && (self.action != Action::Refund || self.charges.iter().all(Charge::needs_permit))
    }
}
