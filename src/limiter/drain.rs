//! The end of a process: what must still be sent to the store.

use std::time::Duration;

use futures_util::future::join;
use tokio::{runtime::Handle, time::timeout};

use super::decider::Decider;
use crate::{
    base::{Error, ErrorKind, panics::answer_of},
    store::outage::reconcile,
};

/// See [`Limiter::drain`](super::Limiter::drain).
pub(super) async fn drain(decider: &Decider, deadline: Duration) -> Result<(), Error> {
    if Handle::try_current().is_err() {
        let message = "`drain` needs a Tokio runtime: await it inside of one";
        return Err(Error::new(ErrorKind::MissingSetup, message));
    }
    let settled = async {
        decider.background.finished().await;
        reconcile(&decider.local, &decider.store).await;
    };
    // Leases are returned at the same time, because a settlement leases no units; and in a task, so that they
    // are returned even if this future is dropped.
    let store = decider.store.clone();
    let returned = tokio::spawn(timeout(deadline, async move { answer_of(|| store.drain()).await }));
    let (returned, settled) = join(returned, timeout(deadline, settled)).await;
    let late = |what: String| {
        let message = format!("{what} within {deadline:?}: drain after the last request, or wait longer");
        Error::new(ErrorKind::StoreTimeout, message)
    };
    let returned = returned.ok().and_then(Result::ok);
    let returned = returned.unwrap_or_else(|| Err(late("the leases were not returned".to_owned())));
    match settled {
        Ok(()) => returned,
        Err(_) if decider.background.unfinished() == 0 => {
            Err(late("what was admitted or refunded in an outage was not sent".to_owned()))
        }
        Err(_) => Err(late(format!(
            "{} reservations, refunds and releases of permits did not end",
            decider.background.unfinished()
        ))),
    }
}
