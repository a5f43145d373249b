//! Carries jobs to Redis and replies back: connections, batches, one server or a Cluster.

mod breaker;
#[cfg(feature = "cluster")]
pub(super) mod cluster;
mod connections;
mod deadline;
mod health;
mod lane;
mod link;
mod lone;
mod queue;
mod runtimes;
mod server;
mod silence;
mod span;
mod target;

#[cfg(feature = "sentinel")]
pub(super) use self::deadline::CONNECT_TIMEOUT;
pub(super) use self::{
    deadline::{PROBE_TIMEOUT, answered, deadline_in, slow_text},
    health::{ConnectErrors, Health},
    link::{Found, Link, Scan},
    runtimes::{current, in_task},
    server::{COMMANDS, ServerLink},
    silence::{LastUse, Silence},
};
