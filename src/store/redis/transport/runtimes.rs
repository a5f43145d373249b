//! What belongs to each runtime: its connections, lanes and probes. So none waits for another, which may be blocked or not
//! driven.

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    runtime::{Handle, Id},
    sync::oneshot,
};

use crate::base::{
    Error, ErrorKind,
    sync::{read, write},
};

/// A value for each runtime, from its first use there until the runtime ends.
pub(super) struct PerRuntime<T> {
    make: Box<dyn Fn() -> T + Send + Sync>,
    parts: Arc<Parts<T>>,
}

type Parts<T> = RwLock<Vec<Part<T>>>;

struct Part<T> {
    runtime: Id,
    value: Arc<T>,
    /// Dropped with the part, which ends the task that waits for the end of the runtime.
    _used: oneshot::Sender<Infallible>,
}

impl<T: Send + Sync + 'static> PerRuntime<T> {
    /// With values of `make`. The current runtime's value, if there is a runtime, is made now.
    pub(super) fn new(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        let all = Self { make: Box::new(make), parts: Arc::default() };
        if let Ok(runtime) = Handle::try_current() {
            all.add(&runtime);
        }
        all
    }

    /// The value of this runtime.
    pub(super) fn here(&self) -> Result<Arc<T>, Error> {
        let runtime = current()?;
        let known = find(&read(&self.parts), runtime.id());
        Ok(known.unwrap_or_else(|| self.add(&runtime)))
    }

    fn add(&self, runtime: &Handle) -> Arc<T> {
        let (used, unused) = oneshot::channel();
        let value = {
            let mut parts = write(&self.parts);
            // Another thread of the runtime may have made it.
            if let Some(known) = find(&parts, runtime.id()) {
                return known;
            }
            let value = Arc::new((self.make)());
            parts.push(Part { runtime: runtime.id(), value: value.clone(), _used: used });
            value
        };
        let end = End { runtime: runtime.id(), parts: Arc::downgrade(&self.parts) };
        // Not under the lock: a runtime that ends drops the task here.
        runtime.spawn(async move {
            let _end = end;
            let _: Result<Infallible, _> = unused.await;
        });
        value
    }
}

fn find<T>(parts: &[Part<T>], runtime: Id) -> Option<Arc<T>> {
    parts.iter().find(|part| part.runtime == runtime).map(|part| part.value.clone())
}

/// Drops the value of a runtime when the runtime drops this.
struct End<T> {
    runtime: Id,
    parts: Weak<Parts<T>>,
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.upgrade() else { return };
        let ended: Vec<Part<T>> = write(&parts).extract_if(.., |part| part.runtime == self.runtime).collect();
        // Not under the lock.
        drop(ended);
    }
}

/// The runtime of the caller.
pub(crate) fn current() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        Error::new(
            ErrorKind::MissingSetup,
            "a `RedisStore` needs a Tokio runtime: await its answers inside of one",
        )
    })
}

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
