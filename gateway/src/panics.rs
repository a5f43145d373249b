//! Calls functions of others whose panics must not spread.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// The result of `call`. `None` if it panics. What the panic was made with is never dropped, because that may panic too.
#[allow(dead_code, reason = "a build without logs and metrics may call nothing")]
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).ok()
}
