//! What holds units that are given back: those of a limit on [concurrency](crate::Concurrency).

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use crate::{Action, Answer, Charge, Decision, Error, Store};

/// Charges whose units are held once they are admitted.
pub(crate) struct Held {
    store: Arc<dyn Store>,
    charges: Box<[Charge]>,
}

/// Units in use. They are renewed as long as it lives, and released when it is dropped.
pub(crate) struct Permit {
    held: Held,
    runtime: Option<Handle>,
}

impl Held {
    /// Those of `charges` that are held, if there are any.
    pub(crate) fn of(store: &Arc<dyn Store>, charges: &[Charge]) -> Option<Self> {
        let held: Box<[Charge]> =
            charges.iter().filter(|charge| charge.cost > 0 && charge.is_held()).cloned().collect();
        (!held.is_empty()).then(|| Self { store: store.clone(), charges: held })
    }

    /// The charges were admitted by `decision`.
    pub(crate) fn hold(mut self, decision: &Decision) -> Arc<Permit> {
        // Where as much as there was was asked for, that is what is held.
        if let ([charge], [outcome]) = (&mut *self.charges, decision.outcomes()) {
            charge.cost = outcome.granted();
        }
        let lease = self.charges.iter().map(|charge| charge.policy.quota().period()).min();
        // Outside a runtime there is nobody to renew it, and it is held for a lease at most.
        let runtime = Handle::try_current().ok();
        let permit = Arc::new(Permit { held: self, runtime: runtime.clone() });
        if let (Some(lease), Some(runtime)) = (lease, runtime) {
            runtime.spawn(renew(Arc::downgrade(&permit), lease / 3));
        }
        permit
    }

    /// Nobody waits for `answer` any more, or it came as a failure. What it may have charged is released
    /// when it is there, or can come no more: not sooner, or the release could reach the store first.
    pub(crate) fn abandon(self, answer: Option<Answer<Decision>>) {
        let Ok(runtime) = Handle::try_current() else {
            // A store in memory releases at once. Elsewhere, the lease ends by itself.
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
            // Where it fails, the lease ends by itself.
            let _ = self.release().await;
        });
    }

    fn release(&self) -> Answer<Decision> {
        self.store.decide(Action::Refund, &self.charges)
    }
}

/// Longer than any connection waits for a reply.
const LATE: Duration = Duration::from_secs(2);

async fn renew(permit: Weak<Permit>, pause: Duration) {
    loop {
        sleep(pause).await;
        let Some(permit) = permit.upgrade() else { return };
        // Where it fails, the next one may succeed before the lease ends.
        let _: Result<_, Error> = permit.held.store.decide(Action::Renew, &permit.held.charges).await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let release = self.held.release();
        // It may be dropped on a thread that knows no runtime. Where there is none at all, the lease ends by
        // itself.
        if let Some(runtime) = self.runtime.take().filter(|_| !release.is_ready()) {
            runtime.spawn(release);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}
