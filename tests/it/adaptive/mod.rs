//! Quotas that follow a signal.

mod meter;
mod overload;
mod shared;
mod signal;
