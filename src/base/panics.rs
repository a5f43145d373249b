//! Calls functions of others whose panics must not spread: into the answers that they only observe, or into the
//! background work of other requests.
//!
//! What a panic leaves is consistent, because no change of this crate is half done while such a function runs.

use std::{
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

use futures_util::future::FutureExt as _;

use super::{Answer, Error, ErrorKind};

/// The result of `call`. `None` if it panics.
#[inline]
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(discard).ok()
}

/// Calls an observer, such as "the function of `on_decision`", and logs its first panic.
pub(crate) fn observe(has_panicked: &AtomicBool, observer: &'static str, call: impl FnOnce()) {
    if caught(call).is_none() && is_first(has_panicked) {
        log!(
            error,
            "{observer} panicked; requests go on as if it had returned, and further panics are not logged here: \
             standard error has their messages"
        );
    }
}

/// The output of `future`. `None` if it panics.
pub(crate) async fn caught_in<T>(future: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(discard).ok()
}

/// The answer of a store to a call that no request waits for. A panic is an error after which it is unknown
/// whether the call was carried out.
pub(crate) async fn answer_of<T>(ask: impl FnOnce() -> Answer<T>) -> Result<T, Error> {
    caught_in(async { ask().await }).await.unwrap_or_else(|| Err(panicked()))
}

/// The answer that `ask` begins. A panic of `ask` itself is an error; the answer may panic later.
pub(crate) fn begun<T>(ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
    caught(ask).unwrap_or_else(|| Answer::ready(Err(panicked())))
}

#[cold]
fn panicked() -> Error {
    Error::new(ErrorKind::StoreReply, "the store panicked: standard error has the message")
}

/// Whether this is the first call for `flag`.
pub(crate) fn is_first(flag: &AtomicBool) -> bool {
    // Usually, this is one load.
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

/// Drops what a panic was made with, whose destructor may panic too.
#[cold]
fn discard<T>(payload: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
    // Nothing bounds how often that goes on.
    mem::forget(dropped);
}
