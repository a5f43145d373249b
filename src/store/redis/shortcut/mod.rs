//! What is answered without Redis: keys that are known to be exhausted, and units on lease.
//!
//! Both observe what is sent and what is replied.

mod clock;
mod deny_cache;
mod lease;
mod leases;

pub use self::leases::LeaseStatus;
pub(super) use self::{
    deny_cache::{DenyCache, DenyWatch},
    leases::{LeaseWatch, Leases},
};
