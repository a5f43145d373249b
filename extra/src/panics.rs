//! Calls functions of others whose panics must not spread.

#![allow(dead_code, reason = "each function is for some of the features")]

use std::{
    future::{Future, poll_fn},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

/// The result of `call`. `None` if it panics. What the panic was made with is never dropped, because that may panic too.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).ok()
}

/// The output of `future`. `None` if it panics.
pub(crate) async fn caught_in<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| caught(|| future.as_mut().poll(cx)).map_or(Poll::Ready(None), |polled| polled.map(Some)))
        .await
}
