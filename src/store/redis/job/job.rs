//! [`Job`], and the traits through which others make its decision and observe it.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
#[cfg(feature = "metrics")]
use tokio::time::Instant;

use super::names::KeyNames;
#[cfg(feature = "tracing")]
use crate::decision::DecisionSpan;
use crate::{
    algorithm::twin::Receipt,
    base::{Answer, Error, SharedResult, panics::caught, sync::lock},
    decision::{Charge, Charges, Decision, OneOrMany},
    store::{
        Action, Counts, PenaltyCharge,
        redis::{deny_cache::DenyObserver, script::Script},
    },
};

/// A decision for Redis to make. Its caller, and the queue or the lane that it is in, share it.
pub(crate) struct Job {
    pub(crate) action: Action,
    pub(crate) charges: Charges,
    /// The charges against the penalties of the policies.
    pub(crate) penalties: OneOrMany<PenaltyCharge>,
    /// Which denials the penalties count.
    pub(crate) counts: Counts,
    pub(crate) names: KeyNames,
    /// The time of a manual clock, in microseconds, or `None` for the server's clock.
    pub(crate) time: Option<u64>,
    pub(crate) script: Arc<Script>,
    pub(crate) deadline: Duration,
    /// Whether an operator waits for the decision, and longer than requests do. A late reply opens no
    /// breaker.
    pub(crate) is_patient: bool,
    /// The observer through which the deny cache learns of the decision.
    pub(crate) denial: Option<DenyObserver>,
    /// Units to lease and return. Only for a job with one charge.
    pub(crate) lease: Option<Box<LeaseRequest>>,
    pub(crate) result: Mutex<JobResult>,
    /// The span of the decision, if it has one.
    #[cfg(feature = "tracing")]
    pub(crate) span: DecisionSpan,
    /// What sends the job: the link to a server or a Cluster, in `transport`.
    pub(crate) link: Arc<dyn Decides>,
    /// When the job entered a queue. Not a `OnceLock`, which costs more at every decision.
    #[cfg(feature = "metrics")]
    pub(crate) entered: Mutex<Option<Instant>>,
}

/// What a job needs of its link, which `Link` in `transport` extends.
pub(crate) trait Decides: Send + Sync {
    /// Begins a decision: sends the job, or lets it wait for a lane. Returns a future for the caller to poll, unless it
    /// only has to wait for the job.
    fn begin(self: Arc<Self>, job: Arc<Job>) -> Option<BoxFuture<'static, Result<Decision, Error>>>;

    /// Ends the wait of a caller: its decision, from the fate of its job.
    fn finish(&self, job: &Job, fate: Fate) -> Result<Decision, Error>;
}

/// What has become of a job.
#[derive(Debug)]
pub(crate) enum Fate {
    /// Redis has replied, or the job has failed.
    Replied(Result<Reply, Error>),
    /// There will be no reply: it is late, or the job was dropped with its runtime.
    Lost,
}

impl SharedResult<Decision> for Job {
    fn begin(self: Arc<Self>) -> Option<BoxFuture<'static, Result<Decision, Error>>> {
        self.link.clone().begin(self)
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Decision, Error>> {
        let fate = ready!(self.poll_fate(Some(cx.waker())));
        Poll::Ready(self.link.finish(self, fate))
    }
}

/// The result for which the caller of a job waits.
#[derive(Default)]
pub(crate) struct JobResult {
    /// Whether the job is decided, or never will be.
    is_final: bool,
    reply: Option<Result<Reply, Error>>,
    caller: Option<Waker>,
}

/// Units to lease, and units of an older lease to return.
pub(crate) struct LeaseRequest {
    pub(crate) wanted: u64,
    state: Mutex<LeaseState>,
}

struct LeaseState {
    returned: LeaseReturn,
    /// `None` once the job has ended.
    observer: Option<Box<dyn Observer>>,
}

impl LeaseRequest {
    pub(crate) fn new(wanted: u64, returned: LeaseReturn, observer: impl Observer + 'static) -> Box<Self> {
        let state = Mutex::new(LeaseState { returned, observer: Some(Box::new(observer)) });
        Box::new(Self { wanted, state })
    }

    pub(crate) fn returned(&self) -> LeaseReturn {
        self.state().returned
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        lock(&self.state)
    }
}

/// Observes a job that leases or returns units. The observer is dropped when the job has ended, whether it
/// was settled or never will be.
pub(crate) trait Observer: Send {
    /// Called right before the job is sent. May change what is `returned`.
    fn sending(&mut self, returned: &mut LeaseReturn);

    /// Called when Redis has replied to the job.
    fn settled(&mut self, decision: &Decision, leased: Option<Leased>);
}

/// Units of a lease that are returned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseReturn {
    /// The lease's name.
    pub(crate) name: u64,
    /// All units that leave the lease, including the spent ones.
    pub(crate) units: u64,
    pub(crate) spent: u64,
    /// When the first of the units were leased.
    pub(crate) made: u64,
}

impl LeaseReturn {
    /// Whether units are freed that other requests can be charged.
    pub(crate) const fn frees_units(self) -> bool {
        self.units > self.spent
    }
}

impl Job {
    /// A job by the server's clock, without observers.
    // Inlined because a call would copy the job once more.
    #[inline(always)]
    pub(crate) fn new(
        action: Action,
        charges: Charges,
        names: KeyNames,
        script: Arc<Script>,
        deadline: Duration,
        link: Arc<dyn Decides>,
    ) -> Self {
        let charges = action.ordered(&charges).map_or(charges, Charges::from);
        Self {
            action,
            penalties: PenaltyCharge::of(action, &charges),
            counts: Counts::default(),
            charges,
            names,
            time: None,
            script,
            deadline,
            is_patient: false,
            denial: None,
            lease: None,
            result: Mutex::default(),
            #[cfg(feature = "tracing")]
            span: if DecisionSpan::is_enabled() { DecisionSpan::current() } else { DecisionSpan::default() },
            link,
            #[cfg(feature = "metrics")]
            entered: Mutex::default(),
        }
    }

    /// The decision, which is made once the answer is polled.
    // Inlined because a call would copy the job once more.
    #[inline(always)]
    pub(crate) fn into_answer(self) -> Answer<Decision> {
        Answer::shared(Arc::new(self))
    }

    /// Whether both jobs can be in one batch.
    pub(crate) fn can_share_batch(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.script, &other.script)
            && self.time == other.time
            && self.is_patient == other.is_patient
    }

    /// A part of this job, without observers.
    #[cfg(feature = "cluster")]
    pub(crate) fn part(&self, action: Action, charges: Vec<Charge>) -> Self {
        let (names, script) = (self.names.clone(), self.script.clone());
        let (charges, link) = (Charges::Many(charges), self.link.clone());
        let part = Self::new(action, charges, names, script, self.deadline, link);
        Self {
            time: self.time,
            is_patient: self.is_patient,
            #[cfg(feature = "tracing")]
            span: self.span.clone(),
            ..part
        }
    }

    /// The charges, and then those against penalties, in the order of their keys and records.
    pub(crate) fn all_charges(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter().chain(self.penalties.iter().map(|penalty| &penalty.charge))
    }

    /// The number of [all charges](Self::all_charges).
    pub(crate) fn width(&self) -> usize {
        self.charges.len() + self.penalties.len()
    }

    /// Notifies the observer of its lease. Call it right before the job is encoded and sent.
    pub(crate) fn sending(&self) {
        if let Some(lease) = &self.lease
            && let LeaseState { returned, observer: Some(observer) } = &mut *lease.state()
        {
            observer.sending(returned);
        }
    }

    /// Sets the decision for its caller, and notifies the observers of the reply. [`end`](Self::end) wakes
    /// the caller.
    pub(crate) fn answer(&self, reply: Result<Reply, Error>) {
        match &reply {
            // Observers learn nothing from an admission without a lease.
            Ok(Reply::Admitted(_)) => {}
            Ok(Reply::Decided(decision, leased)) => self.settled(decision, *leased),
            Err(_) => self.failed(),
        }
        self.set(reply);
    }

    /// Wakes the caller for its decision, or because it will get none. Call it when nothing will send the job
    /// any more.
    pub(crate) fn end(&self) {
        let observer = self.lease.as_ref().and_then(|lease| lease.state().observer.take());
        // The observer is dropped outside of the lock, because that may send a job.
        drop(observer);
        self.wake();
    }

    /// Fails for its caller, unless it is decided, and wakes it. Redis may still reply to the job.
    pub(crate) fn fail(&self, error: Error) {
        self.set(Err(error));
        self.wake();
    }

    // Inlined because a call would copy the reply once more.
    #[inline(always)]
    fn set(&self, reply: Result<Reply, Error>) {
        let mut result = lock(&self.result);
        if !result.is_final {
            result.is_final = true;
            result.reply = Some(reply);
        }
    }

    fn wake(&self) {
        let caller = {
            let mut result = lock(&self.result);
            result.is_final = true;
            result.caller.take()
        };
        // The caller is woken outside of the lock, because it may run here. The waker may be a program's own, and
        // the other decisions of its batch do not depend on it.
        if let Some(caller) = caller {
            caught(|| caller.wake());
        }
    }

    /// Whether its caller has neither a decision nor an error.
    pub(crate) fn is_open(&self) -> bool {
        !lock(&self.result).is_final
    }

    /// The fate of the job, once it is known. Until then, the caller is woken by `waker`.
    pub(crate) fn poll_fate(&self, waker: Option<&Waker>) -> Poll<Fate> {
        let mut result = lock(&self.result);
        if result.is_final {
            result.caller = None;
            return Poll::Ready(result.reply.take().map_or(Fate::Lost, Fate::Replied));
        }
        match (&mut result.caller, waker) {
            (Some(known), Some(waker)) => known.clone_from(waker),
            (known, Some(waker)) => *known = Some(waker.clone()),
            _ => {}
        }
        Poll::Pending
    }

    /// Notifies the observers of the reply.
    pub(crate) fn settled(&self, decision: &Decision, leased: Option<Leased>) {
        if let Some(lease) = &self.lease
            && let Some(observer) = &mut lease.state().observer
        {
            observer.settled(decision, leased);
        }
        if let Some(denial) = &self.denial {
            denial.settled(self.action, &self.charges, Some(decision));
        }
    }

    /// Notifies the observers that the job failed as a whole and may have been carried out in part.
    pub(crate) fn failed(&self) {
        if let Some(denial) = &self.denial {
            denial.settled(self.action, &self.charges, None);
        }
    }

    /// The microseconds for which the job blocks Redis, estimated for the worst case.
    pub(crate) fn redis_micros(&self) -> u64 {
        let refund = self.action == Action::Refund;
        // A denial examines at most as many holders as units are missing. The cost of a ban is a time.
        let needs_holders = |charge: &Charge| charge.needs_permit() && self.action != Action::Ban;
        let holders = |charge: &Charge| if needs_holders(charge) { charge.cost().min(1_000) } else { 0 };
        let micros = |charge: &Charge| charge.policy().redis_micros(refund) + holders(charge);
        // Not `all_charges`, because a sum over its chain is slower.
        let of_penalties: u64 = self.penalties.iter().map(|penalty| micros(&penalty.charge)).sum();
        self.charges.iter().map(micros).sum::<u64>() + of_penalties
    }

    /// Whether the job may be sent again if it is unknown whether it was carried out. A repeated charge is
    /// admitted once, or counts one more denial for a penalty, and a repeated release releases once. A
    /// repeated refund would admit twice, unless a stamp prevents that, and units of a repeated lease would be
    /// unavailable until it ends.
    pub(crate) fn may_be_repeated(&self) -> bool {
        let has_stamp = || self.charges.iter().any(|charge| charge.stamp().is_some());
        self.lease.is_none()
            && (self.action != Action::Refund || self.charges.iter().all(Charge::needs_permit) || has_stamp())
    }
}

/// The script's reply to one job.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Each charge fits, and none has a lease: the most frequent reply. Its caller decodes it: a lane has the
    /// replies to a whole batch before the first caller runs, and allocators are slower where many values are
    /// allocated in a row.
    Admitted(Records),
    /// Any other reply, with the lease for a job that requested one.
    Decided(Decision, Option<Leased>),
}

/// The records of a job.
#[derive(Debug)]
pub(crate) struct Records {
    /// The reply to the batch: a time, and the records of all jobs.
    pub(crate) reply: Bytes,
    /// The number of the first record.
    pub(crate) first: usize,
}

/// A lease that Redis granted. It has no units if the request was denied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leased {
    pub(crate) units: u64,
    /// Microseconds until the lease ends.
    pub(crate) lifetime: u64,
    pub(crate) name: u64,
    /// The receipt of its units.
    pub(crate) receipt: Receipt,
}

#[cfg(test)]
impl Job {
    /// A charge of `cost` units.
    pub(crate) fn for_tests(cost: u64, deadline: Duration) -> Self {
        use crate::{base::Quota, key::Key, policy::Policy};
        let charge = Charge::new(&Policy::new("p", Quota::per_second(5)), &Key::new("k"), cost);
        let (charges, script) = (Charges::One(charge), Script::built_in().clone());
        Self::new(Action::Charge, charges, KeyNames::new("rl"), script, deadline, Arc::new(NoLink))
    }
}

#[cfg(test)]
struct NoLink;

#[cfg(test)]
impl Decides for NoLink {
    fn begin(self: Arc<Self>, _: Arc<Job>) -> Option<BoxFuture<'static, Result<Decision, Error>>> {
        None
    }

    fn finish(&self, _: &Job, _: Fate) -> Result<Decision, Error> {
        unreachable!("nothing polls it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        key::Key,
        policy::{Penalty, Policy},
    };

    #[test]
    fn the_time_of_a_ban_is_not_a_number_of_permits() {
        let policy = Policy::concurrency("p", 2_000).penalty(Penalty::manual());
        let micros = |action, cost| {
            let charges = Charges::One(Charge::new(&policy, &Key::new("k"), cost));
            Job { action, charges, ..Job::for_tests(1, Duration::ZERO) }.redis_micros()
        };
        assert_eq!(micros(Action::Ban, 3_600_000_000), micros(Action::Ban, 0));
        assert_eq!(micros(Action::Charge, 100), micros(Action::Charge, 0) + 100);
    }
}
