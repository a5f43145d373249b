use std::{fmt, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::sleep};

use crate::{
    answer::Answer,
    decision::{Charge, Decision, Permit, WeakPermit},
    error::Error,
    store::{Action, Store},
};

/// The charges of a decision whose units are in use once they are admitted.
#[derive(Clone)]
pub(super) struct Holding {
    store: Arc<dyn Store>,
    charges: Arc<[Charge]>,
}

/// Longer than any connection waits for a reply.
const LATE: Duration = Duration::from_secs(2);

impl Holding {
    /// Those of `charges` that need permits, if there are any.
    pub(super) fn of(store: &Arc<dyn Store>, charges: &[Charge]) -> Option<Self> {
        let charges: Arc<[Charge]> =
            charges.iter().filter(|charge| charge.cost() > 0 && charge.needs_permit()).cloned().collect();
        (!charges.is_empty()).then(|| Self { store: store.clone(), charges })
    }

    /// The permit of the charges, which `decision` admitted. It is renewed until it is released.
    pub(super) fn hold(mut self, decision: &Decision) -> Permit {
        // Where as many units as remained were charged, these are in use.
        if let ([charge], [outcome]) = (&*self.charges, decision.outcomes()) {
            self.charges = [charge.clone().with_cost(outcome.granted())].into();
        }
        // Without a runtime nothing renews it, and it ends with its period.
        let runtime = Handle::try_current().ok();
        let permit = {
            let (holding, runtime) = (self.clone(), runtime.clone());
            Permit::new(move || holding.release_on(runtime))
        };
        let period = self.charges.iter().map(|charge| charge.policy().quota().period()).min();
        if let (Some(period), Some(runtime)) = (period, runtime) {
            runtime.spawn(renew(permit.downgrade(), self, period / 3));
        }
        permit
    }

    /// The decision was dropped, or failed with `answer` still to come. What it may have charged is released when the
    /// answer is there or cannot come any more: not sooner, or the release could reach the store first.
    pub(super) fn abandon(self, answer: Option<Answer<Decision>>) {
        let Ok(runtime) = Handle::try_current() else {
            // A store in memory releases at once. In any other, the permit ends with its period.
            drop(self.release());
            return;
        };
        runtime.spawn(async move {
            match answer {
                Some(answer) => match answer.await {
                    Ok(decision) if !decision.is_allowed() => return,
                    Ok(_) => {}
                    Err(_) => sleep(LATE).await,
                },
                None => sleep(LATE).await,
            }
            // If it fails, the permit ends with its period.
            let _ = self.release().await;
        });
    }

    /// Releases the permit where it is dropped, which may be a thread outside the runtime.
    fn release_on(&self, runtime: Option<Handle>) {
        let release = self.release();
        if let Some(runtime) = runtime.filter(|_| !release.is_ready()) {
            runtime.spawn(release);
        }
    }

    fn release(&self) -> Answer<Decision> {
        self.store.decide(Action::Refund, &self.charges)
    }
}

async fn renew(permit: WeakPermit, holding: Holding, pause: Duration) {
    loop {
        sleep(pause).await;
        let Some(_held) = permit.upgrade() else { return };
        // If it fails, the next one may succeed before the period ends.
        let _: Result<_, Error> = holding.store.decide(Action::Renew, &holding.charges).await;
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").finish_non_exhaustive()
    }
}
