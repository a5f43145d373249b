//! Denials without Redis: the deny cache, and the clock that it has in common with the [leases](super::lease).

mod clock;
mod deny_cache;

pub(super) use self::{
    clock::Clock,
    deny_cache::{DenyCache, DenyObserver},
};
