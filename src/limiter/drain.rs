//! The end of a process: what must still be sent to the store.

use std::time::Duration;

use futures_util::future::join;
use tokio::{runtime::Handle, time::timeout};

use super::limiter::Limiter;
use crate::{
    base::{Error, ErrorKind},
    store::outage::reconcile,
};

impl Limiter {
    /// Completes what must still be sent to the store. Await it after the last request, before the process ends.
    ///
    /// For at most `deadline`, it waits until:
    ///
    /// * every [`Reservation`](crate::Reservation) is settled or dropped;
    /// * every settlement and refund in the background has ended, including settlements and refunds of an outage;
    /// * every permit whose decision was dropped is released;
    /// * what was admitted in process during an outage is charged to the store;
    /// * units on [lease](crate::Policy::max_lease) are returned to the store.
    ///
    /// This covers the reservations and refunds of this limiter, its clones and the layers built with them, but not the
    /// ones of another limiter on the same store: build all layers with clones of one limiter. Leases are returned for
    /// the whole store.
    ///
    /// # Errors
    ///
    /// [`StoreTimeout`](ErrorKind::StoreTimeout) if the deadline passes first,
    /// [`MissingSetup`](ErrorKind::MissingSetup) outside a Tokio runtime, and any error of the store while leases are
    /// returned. What was not sent by then is lost with the process. You can call this again.
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
        if Handle::try_current().is_err() {
            let message = "`drain` needs a Tokio runtime: await it inside of one";
            return Err(Error::new(ErrorKind::MissingSetup, message));
        }
        let settled = async {
            self.shared.background.finished().await;
            reconcile(&self.shared.local, &self.shared.store).await;
        };
        // A settlement leases no units, so neither depends on the other. In a task, so that leases are returned even if
        // this is dropped.
        let returned = tokio::spawn(timeout(deadline, self.shared.store.drain()));
        let (returned, settled) = join(returned, timeout(deadline, settled)).await;
        let late = |what: String| {
            let message = format!("{what} within {deadline:?}: drain after the last request, or wait longer");
            Error::new(ErrorKind::StoreTimeout, message)
        };
        let returned = returned.ok().and_then(Result::ok);
        let returned = returned.unwrap_or_else(|| Err(late("the leases were not returned".to_owned())));
        match settled {
            Ok(()) => returned,
            Err(_) if self.shared.background.unfinished() == 0 => {
                Err(late("what was admitted or refunded in an outage was not sent".to_owned()))
            }
            Err(_) => Err(late(format!(
                "{} reservations, refunds and releases of permits did not end",
                self.shared.background.unfinished()
            ))),
        }
    }
}
