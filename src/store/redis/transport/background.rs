//! Work that continues when no caller waits for it.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::base::{Error, ErrorKind};

/// The output of `work`, which a task of this runtime does: to its end, even if the caller is dropped or is not polled
/// again. So a connection returns to the pool soon, and only after the reply is read.
pub(crate) async fn in_task<T>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Error>
where
    T: Send + 'static,
{
    tokio::spawn(work).await.map_err(|_| {
        Error::new(ErrorKind::StoreDisconnected, "the Tokio runtime was shut down before Redis answered")
    })
}

/// A guard for a task that runs once at a time. It is released even if the task's runtime is shut down.
pub(crate) struct Exclusive(Arc<AtomicBool>);

impl Exclusive {
    /// `None` if another task runs.
    pub(crate) fn acquire(running: &Arc<AtomicBool>) -> Option<Self> {
        (!running.swap(true, Ordering::AcqRel)).then(|| Self(running.clone()))
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
