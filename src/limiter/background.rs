//! What is sent to the store after the request that it belongs to.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{runtime::Handle, sync::Notify};

use crate::{base::Answer, decision::Decision};

/// The work of a limiter and its clones that is not done yet.
#[derive(Debug, Default)]
pub(super) struct Background {
    open: AtomicUsize,
    idle: Notify,
}

/// Work that is done when this is dropped.
#[derive(Debug)]
pub(crate) struct Work(Arc<Background>);

impl Background {
    pub(super) fn begin(self: &Arc<Self>) -> Work {
        self.open.fetch_add(1, Ordering::Relaxed);
        Work(self.clone())
    }

    /// How much work is not done.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until all work is done.
    pub(super) async fn wait_until_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.open() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Work {
    /// Waits for `answer` in the background, on the runtime of the caller or `otherwise`. Without one it is lost, unless
    /// the store is in process.
    pub(crate) fn finish(self, answer: Answer<Decision>, otherwise: Option<&Handle>) {
        if let Err(pending) = answer.now()
            && let Some(runtime) = runtime(otherwise)
        {
            runtime.spawn(async move {
                // The failure mode has decided what a failure means.
                drop(pending.await);
                drop(self);
            });
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Release) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// The runtime of the caller; outside a runtime, `otherwise`.
pub(super) fn runtime(otherwise: Option<&Handle>) -> Option<Handle> {
    Handle::try_current().ok().or_else(|| otherwise.cloned())
}
