//! What goes on although its request may be gone: calls to the store after it, and permits in use.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep},
};

use crate::{
    base::{Answer, ErrorKind},
    decision::{Charge, Decision, Outcome, Permit},
    store::{Action, Store},
};

/// Longer than any connection waits for a reply.
const MAX_REPLY_TIME: Duration = Duration::from_secs(2);
/// The pause before a release that failed is sent again.
const PAUSE: Duration = Duration::from_millis(250);

/// Work of a limiter or a clone that is done when this is dropped.
#[derive(Debug)]
pub(crate) struct Work(#[expect(dead_code, reason = "only dropped")] pub(super) watch::Receiver<()>);

impl Work {
    /// Waits for `answer` in the background, on the runtime of the caller. Without one it is lost, unless the store is in
    /// process.
    pub(crate) fn finish(self, answer: Answer<Decision>) {
        if let Err(pending) = answer.now()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                // The failure mode has decided what a failure means.
                drop(pending.await);
                drop(self);
            });
        }
    }
}

/// The runtime of the caller; outside a runtime, `otherwise`.
pub(super) fn runtime(otherwise: Option<&Handle>) -> Option<Handle> {
    Handle::try_current().ok().or_else(|| otherwise.cloned())
}

/// The charges of a decision that need permits, once admitted.
#[derive(Clone)]
pub(super) struct PermitRequest {
    store: Arc<dyn Store>,
    charges: Arc<[Charge]>,
}

impl PermitRequest {
    /// The charges that need permits; `None` if none does.
    pub(super) fn of(store: &Arc<dyn Store>, charges: &[Charge]) -> Option<Self> {
        let charges: Arc<[Charge]> =
            charges.iter().filter(|charge| charge.cost() > 0 && charge.needs_permit()).cloned().collect();
        (!charges.is_empty()).then(|| Self { store: store.clone(), charges })
    }

    /// The permit for the charges that `decision` made. A task renews it until it is released. `None` if it made none.
    pub(super) fn grant(mut self, decision: &Decision) -> Option<Permit> {
        // A shadow that denies is not charged, and `check_up_to` may have charged fewer units than the cost.
        let made = |charge: &Charge| {
            let is_of = |outcome: &&Outcome| outcome.charge().holder() == charge.holder();
            let outcome = decision.all_outcomes().iter().find(is_of)?;
            (outcome.granted() > 0).then(|| charge.clone().with_cost(outcome.granted()))
        };
        self.charges = self.charges.iter().filter_map(made).collect();
        let pause = self.shortest_period()? / 3;
        // Without a runtime the permit is not renewed, and expires after its period.
        let runtime = Handle::try_current().ok();
        Some(Arc::new_cyclic(|granted| {
            // Only the permit keeps the store alive.
            let renew = |runtime: &Handle| runtime.spawn(renew(granted.clone(), pause)).abort_handle();
            let renewal = runtime.as_ref().map(renew);
            Granted { request: self, runtime, renewal }
        }))
    }

    /// Releases the permits of a decision that was dropped while it waited for `answer`, or that failed with it. This waits
    /// until the charge can no longer reach the store: it could reach it after an earlier release.
    pub(super) fn release_later(self, answer: Answer<Decision>) {
        let Ok(runtime) = Handle::try_current() else {
            // A store in memory releases immediately. In Redis, the permit expires after its period.
            drop(self.release());
            return;
        };
        runtime.spawn(async move {
            match answer.await {
                Ok(decision) if decision.is_denied() => return,
                Ok(_) => {}
                Err(error) if !error.kind().may_have_charged() => return,
                Err(_) => sleep(MAX_REPLY_TIME).await,
            }
            let release = self.release();
            self.finish(release).await;
        });
    }

    /// Waits for a release, and sends it again while the store fails, until the permit has expired. It may be sent
    /// twice: it names the permit.
    async fn finish(self, mut release: Answer<Decision>) {
        let started = Instant::now();
        let period = self.shortest_period().unwrap_or_default();
        while let Err(error) = release.await {
            if error.kind() == ErrorKind::InvalidConfig || started.elapsed() > period {
                return;
            }
            sleep(PAUSE).await;
            release = self.release();
        }
    }

    fn shortest_period(&self) -> Option<Duration> {
        self.charges.iter().map(|charge| charge.policy().quota().period()).min()
    }

    fn release(&self) -> Answer<Decision> {
        self.store.decide(Action::Refund, &self.charges)
    }
}

/// Permits in use, until this is dropped.
struct Granted {
    request: PermitRequest,
    runtime: Option<Handle>,
    renewal: Option<AbortHandle>,
}

impl Drop for Granted {
    /// May run on a thread outside the runtime.
    fn drop(&mut self) {
        // Otherwise the task would wait until its next renewal.
        if let Some(renewal) = &self.renewal {
            renewal.abort();
        }
        let release = self.request.release();
        if let Some(runtime) = self.runtime.as_ref().filter(|_| !release.is_ready()) {
            runtime.spawn(self.request.clone().finish(release));
        }
    }
}

async fn renew(granted: Weak<Granted>, pause: Duration) {
    let mut wait = pause;
    loop {
        sleep(wait).await;
        // The permit is not released during the call: a renewal that reached the store after the release would add it again.
        let Some(granted) = granted.upgrade() else { return };
        let renewed = granted.request.store.decide(Action::Renew, &granted.request.charges).await;
        wait = pause;
        if renewed.is_err() {
            // It may still reach the store. The next one is early, because the store may have lost the permit.
            sleep(MAX_REPLY_TIME.min(pause)).await;
            wait = Duration::ZERO;
        }
    }
}
