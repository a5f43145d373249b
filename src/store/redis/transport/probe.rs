//! Finds out whether a server answers again whose breaker is open.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::{
    breaker::{is_silence, says_nothing},
    target::Target,
};

/// Starts a probe of `target` if it is time for one. `key` is one of the target's keys.
pub(super) fn probe<T: Target>(target: &Arc<T>, key: impl FnOnce() -> String) {
    let Ok(runtime) = Handle::try_current() else { return };
    let Some(probe) = target.breaker().next_probe() else { return };
    let (target, key) = (target.clone(), key());
    runtime.spawn(async move {
        match target.ping(key).await {
            Err(cause) if is_silence(&cause) || says_nothing(&cause) => {
                target.health().failed_again(&cause);
            }
            // An error is an answer too.
            _ => target.breaker().close(),
        }
        drop(probe);
    });
}
