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
pub(crate) struct Permit(Held);

impl Held {
    /// Those of `charges` that are held, if there are any.
    pub(crate) fn of(store: &Arc<dyn Store>, charges: &[Charge]) -> Option<Self> {
        let held: Box<[Charge]> =
            charges.iter().filter(|charge| charge.cost > 0 && charge.is_held()).cloned().collect();
        (!held.is_empty()).then(|| Self { store: store.clone(), charges: held })
    }

    /// The charges were admitted.
    pub(crate) fn hold(self) -> Arc<Permit> {
        let lease = self.charges.iter().map(|charge| charge.policy.quota().period()).min();
        let permit = Arc::new(Permit(self));
        // Outside a runtime there is nobody to renew it, and it is held for a lease at most.
        if let (Some(lease), Ok(runtime)) = (lease, Handle::try_current()) {
            runtime.spawn(renew(Arc::downgrade(&permit), lease / 3));
        }
        permit
    }

    /// Nobody waits for `answer` any more. What it may have charged is released when it is there: not
    /// sooner, or the release could reach the store first.
    pub(crate) fn abandon(self, answer: Option<Answer<Decision>>) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Some(answer) = answer {
                    let _ = answer.await;
                }
                // Where it fails, the lease ends by itself.
                let _ = self.release().await;
            });
        }
    }

    fn release(&self) -> Answer<Decision> {
        self.store.decide(Action::Refund, &self.charges)
    }
}

async fn renew(permit: Weak<Permit>, pause: Duration) {
    loop {
        sleep(pause).await;
        let Some(permit) = permit.upgrade() else { return };
        // Where it fails, the next one may succeed before the lease ends.
        let _: Result<_, Error> = permit.0.store.decide(Action::Renew, &permit.0.charges).await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let release = self.0.release();
        // Outside a runtime, the lease ends by itself.
        if !release.is_ready()
            && let Ok(runtime) = Handle::try_current()
        {
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
