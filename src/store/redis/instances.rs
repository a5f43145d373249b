//! How many instances use the limits of one prefix.
//!
//! Each holds a permit of one policy, under one key for each prefix. So the scripts count them: by the clock of Redis, in a
//! key with a TTL, without a command that decisions do not need.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

use super::{
    job::{Job, KeyNames, Slot},
    script::Script,
    transport::{Link, PROBE_TIMEOUT},
};
use crate::{
    algorithm::Concurrency,
    base::{Quota, time::micros},
    decision::{Charge, Charges},
    key::Key,
    policy::Policy,
    store::{Action, LocalCounts},
};

/// The time between two announcements, and until the first one.
const INTERVAL: Duration = Duration::from_secs(5);
/// After this time, a process without traffic no longer counts. One that ended does not either.
const EXPIRY: Duration = Duration::from_secs(15);
/// The most instances that are counted.
const MOST: u64 = 100_000;

pub(super) struct Instances {
    link: Arc<dyn Link>,
    names: KeyNames,
    deadline: Duration,
    local: Arc<LocalCounts>,
    created: Instant,
    /// When to announce this instance, in microseconds since then.
    due: AtomicU64,
    /// What this instance holds.
    permit: Charge,
}

impl Instances {
    pub(super) fn new(
        link: Arc<dyn Link>,
        names: KeyNames,
        deadline: Duration,
        local: Arc<LocalCounts>,
    ) -> Self {
        // Its numbers are valid for the algorithm.
        let quota = Quota::new(MOST, EXPIRY);
        let policy = Policy::new("%instances", quota).algorithm(Concurrency::new());
        let permit = Charge::new(&policy, &Key::new("%instances"), 1);
        let deadline = deadline.min(PROBE_TIMEOUT);
        Self {
            link,
            names,
            deadline,
            local,
            created: Instant::now(),
            due: AtomicU64::new(micros(INTERVAL)),
            permit,
        }
    }

    /// Whether to announce this instance now. True once in each interval.
    fn is_due(&self) -> bool {
        let (now, due) = (micros(self.created.elapsed()), self.due.load(Ordering::Relaxed));
        let next = now + micros(INTERVAL);
        now >= due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Announces this instance in the background, if it is time to. Call it with a charge.
    pub(super) fn announce_if_due(self: &Arc<Self>) {
        if self.is_due()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(self.clone().announce());
        }
    }

    /// A failure fails no decision, and the next interval tries again.
    async fn announce(self: Arc<Self>) {
        // A renewal adds a permit that Redis does not have.
        self.count(Action::Renew, self.permit.clone()).await;
    }

    /// Learns how many instances run already.
    pub(super) async fn look(&self) {
        self.count(Action::Peek, self.permit.clone().with_cost(0)).await;
    }

    async fn count(&self, action: Action, permit: Charge) -> Option<u32> {
        let decision = self.link.clone().decide(self.job(action, permit).into()).await.ok()?;
        let instances = MOST.saturating_sub(decision.remaining()?).max(1);
        let instances = u32::try_from(instances).unwrap_or(u32::MAX);
        self.local.reported(instances);
        metric!(instances_seen(instances));
        Some(instances)
    }

    fn job(&self, action: Action, permit: Charge) -> Job {
        Job {
            action,
            penalties: Vec::new(),
            charges: Charges::One(permit),
            names: self.names.clone(),
            time: None,
            script: Script::built_in().clone(),
            deadline: self.deadline,
            denial: None,
            lease: None,
            slot: Slot::default(),
        }
    }
}
