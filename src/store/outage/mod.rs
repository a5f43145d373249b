//! What decides while the store fails, and what the store is charged afterwards.
//!
//! The [`FailureMode`](crate::FailureMode)s of the policies define it. Policies that are
//! [`Local`](crate::FailureMode::Local) are counted in a store in this process, at this instance's share. When the store
//! answers again, what was admitted during the outage and still counts is charged to it, and counts here only if the store
//! had no room for it. So neither one outage nor several are a second quota. Units that are refunded are not charged, or
//! refunded to the store.
//!
//! The units of each key that is owed (`Reconciliation`) are shared with the outcomes that they belong to, in
//! `decision/local.rs`.

mod counts;
mod decide;
mod reconcile;

pub(crate) use self::{
    counts::LocalCounts,
    decide::{is_local, is_mistake, mode},
    reconcile::{reconcile, start_reconciling},
};
