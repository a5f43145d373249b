//! Decisions without Redis: from the deny cache, and from leases.
//!
//! Both observe the jobs that are sent and their replies.

mod clock;
mod deny_cache;
mod lease;
mod leases;

pub use self::lease::LeaseStatus;
pub(super) use self::{
    deny_cache::{DenyCache, DenyObserver},
    leases::{LeaseObserver, Leases},
};
