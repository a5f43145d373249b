//! Finds out at start-up whether a server can make decisions, and what an operator should change.

mod report;
mod run;
mod server;

pub use self::report::ProbeReport;
