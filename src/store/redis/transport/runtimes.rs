//! What belongs to each runtime: its connections, lanes and probes. So none waits for another, which may be
//! blocked or not driven.

use std::{
    future::Future,
    sync::{Arc, RwLock, Weak},
};

use tokio::{
    runtime::{Handle, Id},
    sync::watch,
};

use crate::base::{
    Error, ErrorKind,
    sync::{read, write},
};

/// A value for each runtime, from its first use there until the runtime ends.
pub(super) struct PerRuntime<T> {
    make: Box<dyn Fn() -> T + Send + Sync>,
    /// A task of each runtime keeps the value, so the value is dropped when the runtime is.
    values: RwLock<Vec<(Id, Weak<T>)>>,
    /// Dropped with this, which ends the tasks.
    used: watch::Sender<()>,
}

impl<T: Send + Sync + 'static> PerRuntime<T> {
    /// With values of `make`. The current runtime's value, if there is a runtime, is made now.
    pub(super) fn new(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        let all = Self { make: Box::new(make), values: RwLock::default(), used: watch::Sender::new(()) };
        if let Ok(runtime) = Handle::try_current() {
            all.add(&runtime);
        }
        all
    }

    /// The value of this runtime.
    pub(super) fn here(&self) -> Result<Arc<T>, Error> {
        let runtime = current()?;
        let known = find(&read(&self.values), runtime.id());
        Ok(known.unwrap_or_else(|| self.add(&runtime)))
    }

    fn add(&self, runtime: &Handle) -> Arc<T> {
        let value = {
            let mut values = write(&self.values);
            // Another thread of the runtime may have made it.
            if let Some(known) = find(&values, runtime.id()) {
                return known;
            }
            let value = Arc::new((self.make)());
            values.retain(|(_, value)| value.strong_count() > 0);
            values.push((runtime.id(), Arc::downgrade(&value)));
            value
        };
        let (kept, mut used) = (value.clone(), self.used.subscribe());
        // Not under the lock: a runtime that ends drops the task here.
        runtime.spawn(async move {
            let _kept = kept;
            let _ = used.changed().await;
        });
        value
    }
}

fn find<T>(values: &[(Id, Weak<T>)], runtime: Id) -> Option<Arc<T>> {
    values.iter().find(|(id, _)| *id == runtime).and_then(|(_, value)| value.upgrade())
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

/// The output of `work`, which a task of this runtime does: to its end, even if the caller is dropped or is
/// not polled again. So a connection returns to the pool soon, and only after the reply is read.
pub(crate) async fn in_task<T>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Error>
where
    T: Send + 'static,
{
    tokio::spawn(work).await.map_err(|_| {
        Error::new(ErrorKind::StoreDisconnected, "the Tokio runtime was shut down before Redis answered")
    })
}
