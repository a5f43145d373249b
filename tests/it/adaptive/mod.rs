//! Quotas that follow a signal.

mod attacks;
mod meter;
mod shared;
mod signal;
