//! Decides while the store fails, and charges the store afterwards.
//!
//! The [`FailureMode`](crate::FailureMode) of each policy defines how. Policies that are
//! [`Local`](crate::FailureMode::Local) are counted in a store in this process, at this instance's share.
//! When the store answers again, what was admitted during the outage and still counts is charged to it, and
//! counts here only if the store had no room for it. So no number of outages adds up to a second quota.
//! Refunded units are not charged, or are refunded to the store if it was already charged.
//!
//! The units owed for a key are a `Reconciliation` (`decision/local.rs`), which the outcomes of their
//! decisions share.

mod counts;
mod decide;
mod reconcile;

pub(crate) use self::{
    counts::LocalCounts,
    decide::{is_local, is_mistake, mode},
    reconcile::{reconcile, start_reconciling},
};
