//! What is sent to the store after the request that it belongs to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::timeout};

use super::limiter::Limiter;
use crate::{
    answer::Answer,
    decision::Decision,
    error::{Error, ErrorKind},
};

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

impl Limiter {
    /// Waits, for at most `deadline`, until every [`Reservation`](crate::Reservation) is settled or dropped and every
    /// settlement and refund in the background has ended. Returns units on [lease](Policy::leased) to the store, too. Await
    /// it before the process ends, after the last request.
    ///
    /// It covers the reservations of this limiter and its clones, and of layers built with them, and returns all leases of
    /// the store.
    ///
    /// # Errors
    ///
    /// [`StoreTimeout`](ErrorKind::StoreTimeout) if the deadline is over first, and every error of returning the leases. What
    /// was not sent by then is lost with the process. You can call this again.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{ErrorKind, Key, Limiter, MemoryStore, Policy, Quota, Reservation};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    /// let decision = limiter.check(&tokens, &Key::new("alice"), 400).await?;
    /// let reservation = Reservation::new(&limiter, &decision);
    ///
    /// let deadline = Duration::from_millis(50);
    /// assert_eq!(limiter.drain(deadline).await.unwrap_err().kind(), ErrorKind::StoreTimeout);
    /// drop(reservation.settle(150));
    /// limiter.drain(deadline).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// After a graceful shutdown:
    ///
    /// ```no_run
    /// # #[cfg(feature = "axum")]
    /// # async fn example(limiter: tower_ratelimit::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, app) = (tokio::net::TcpListener::bind("0.0.0.0:3000").await?, axum::Router::new());
    /// axum::serve(listener, app).with_graceful_shutdown(async { /* the signal to stop */ }).await?;
    /// limiter.drain(std::time::Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self, deadline: Duration) -> Result<(), Error> {
        // No settlement leases units, so nobody waits for the other.
        let returned = tokio::spawn(timeout(deadline, self.store.drain()));
        let settled = timeout(deadline, self.background.wait_until_idle()).await;
        let late = |what: String| Error::new(ErrorKind::StoreTimeout, format!("{what} within {deadline:?}"));
        let returned = match returned.await {
            Ok(Ok(returned)) => returned,
            Ok(Err(_)) => Err(late("the leases were not returned".to_owned())),
            Err(_) => Err(Error::new(ErrorKind::StoreUnreachable, "the Tokio runtime was shut down")),
        };
        match settled {
            Ok(()) => returned,
            Err(_) => Err(late(format!("{} reservations and refunds did not end", self.background.open()))),
        }
    }

    /// Begins work that [`drain`](Self::drain) waits for.
    pub(crate) fn begin_work(&self) -> Work {
        self.background.begin()
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
