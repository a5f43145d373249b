//! Quotas that follow a signal.

mod meter;
mod shared;
mod signal;
