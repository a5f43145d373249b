//! Finds out whether a server answers again whose breaker is open.

use std::sync::Arc;

use tokio::{runtime::Handle, time::sleep};

use super::{
    breaker::{is_silence, says_nothing},
    deadline::slow,
    target::{Sender, Target},
};
use crate::base::Error;

/// How many PINGs in a row Redis must answer in time: enough that few probes succeed if half of the answers are late, and
/// most if one in twenty is.
const PINGS: u32 = 8;
/// The same if it answered a probe before and then a decision was late again.
const MORE_PINGS: u32 = 16;

/// Starts a probe of `target` if it is time for one. `key` is one of the target's keys.
pub(super) fn probe<S: Sender>(target: &Arc<Target<S>>, key: impl FnOnce() -> String) {
    let Ok(runtime) = Handle::try_current() else { return };
    let Some(probe) = target.breaker.next_probe() else { return };
    let (target, key) = (target.clone(), key());
    runtime.spawn(async move {
        let is_back = match is_back(&*target, key).await {
            Ok(is_back) => is_back,
            Err(cause) => {
                target.breaker.failed_again(&cause);
                target.health.failed_again(&cause);
                return;
            }
        };
        target.breaker.close();
        drop(probe);
        if !is_back {
            return;
        }
        if let Some((recovered, pause)) = target.health.answered_probe() {
            // The store may be dropped.
            let target = Arc::downgrade(&{ target });
            sleep(pause).await;
            if let Some(target) = target.upgrade() {
                target.health.end(recovered);
            }
        }
    });
}

/// Whether the server has answered all PINGs, each within the deadline of a decision.
///
/// # Errors
///
/// Why the breaker stays open. An error of the server is an answer, so it closes the breaker too.
async fn is_back<S: Sender>(target: &Target<S>, key: String) -> Result<bool, Error> {
    match pings(target, &key).await {
        Ok(()) => Ok(true),
        Err(cause) if is_silence(&cause) || says_nothing(&cause) => Err(cause),
        Err(_) => Ok(false),
    }
}

async fn pings<S: Sender>(target: &Target<S>, key: &str) -> Result<(), Error> {
    let (allowed, mut slot) = (target.breaker.deadline(), None);
    // The first one may have to wait for a connection.
    target.sender.ping(&mut slot, key).await?;
    for _ in 0..if target.breaker.has_opened_again() { MORE_PINGS } else { PINGS } {
        let round_trip = target.sender.ping(&mut slot, key).await?;
        if round_trip > allowed {
            return Err(slow(round_trip, allowed));
        }
    }
    Ok(())
}
