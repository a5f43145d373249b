use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, sleep},
};

use crate::{
    base::{Answer, Error, ErrorKind},
    decision::{Charge, Decision, Outcome, Permit, WeakPermit},
    store::{Action, Store},
};

/// The charges of a decision that need permits, once admitted.
pub(super) struct PermitRequest {
    store: Arc<dyn Store>,
    charges: Arc<[Charge]>,
}

/// Longer than any connection waits for a reply.
const MAX_REPLY_TIME: Duration = Duration::from_secs(2);
/// The pause before a release that failed is sent again.
const PAUSE: Duration = Duration::from_millis(250);

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
        if self.charges.is_empty() {
            return None;
        }
        // Without a runtime the permit is not renewed, and expires after its period.
        let runtime = Handle::try_current().ok();
        let period = self.shortest_period();
        let request = Arc::new(self);
        // Only the permit keeps the request, and with it the store, alive.
        let renewed = Arc::downgrade(&request);
        let renewal = Arc::new(OnceLock::<AbortHandle>::new());
        let permit = {
            let (runtime, renewal) = (runtime.clone(), renewal.clone());
            Permit::new(move || {
                // Otherwise the task would wait until its next renewal.
                if let Some(renewal) = renewal.get() {
                    renewal.abort();
                }
                request.release_on(runtime);
            })
        };
        if let (Some(period), Some(runtime)) = (period, runtime) {
            let task = runtime.spawn(renew(permit.downgrade(), renewed, period / 3));
            renewal.get_or_init(|| task.abort_handle());
        }
        Some(permit)
    }

    /// Releases the permits of a decision that was dropped or that failed with `answer` pending. It waits until the
    /// answer is ready or can no longer come: an earlier release could reach the store before the charge.
    pub(super) fn release_later(self, answer: Option<Answer<Decision>>) {
        let Ok(runtime) = Handle::try_current() else {
            // A store in memory releases immediately. In Redis, the permit expires after its period.
            drop(self.release());
            return;
        };
        runtime.spawn(async move {
            match answer {
                Some(answer) => match answer.await {
                    Ok(decision) if decision.is_denied() => return,
                    Ok(_) => {}
                    Err(error) if !error.kind().may_have_charged() => return,
                    Err(_) => sleep(MAX_REPLY_TIME).await,
                },
                None => sleep(MAX_REPLY_TIME).await,
            }
            Arc::new(self).release_until_expiry().await;
        });
    }

    /// Releases the permit. The caller may be on a thread outside the runtime.
    fn release_on(self: &Arc<Self>, runtime: Option<Handle>) {
        let release = self.release();
        if let Some(runtime) = runtime.filter(|_| !release.is_ready()) {
            runtime.spawn(self.clone().finish(release));
        }
    }

    async fn release_until_expiry(self: Arc<Self>) {
        let release = self.release();
        self.finish(release).await;
    }

    /// Waits for a release, and sends it again while the store fails, until the permit has expired. It may be sent
    /// twice: it names the permit.
    async fn finish(self: Arc<Self>, mut release: Answer<Decision>) {
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

async fn renew(permit: WeakPermit, request: Weak<PermitRequest>, pause: Duration) {
    let mut wait = pause;
    loop {
        sleep(wait).await;
        // The permit is not released during the call: a renewal that reached the store after the release would add it again.
        let (Some(_permit), Some(request)) = (permit.upgrade(), request.upgrade()) else { return };
        let renewed: Result<_, Error> = request.store.decide(Action::Renew, &request.charges).await;
        wait = pause;
        if renewed.is_err() {
            // It may still reach the store. The next one is early, because the store may have lost the permit.
            sleep(MAX_REPLY_TIME.min(pause)).await;
            wait = Duration::ZERO;
        }
    }
}

impl fmt::Debug for PermitRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitRequest").finish_non_exhaustive()
    }
}
