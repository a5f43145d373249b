//! Carries jobs to Redis and replies back: connections, batches, one server or a Cluster.

mod breaker;
#[cfg(feature = "cluster")]
pub(super) mod cluster;
mod connections;
mod deadline;
mod health;
mod lane;
mod link;
mod probe;
mod queue;
mod runtimes;
mod server;
mod single;
mod target;
mod waiting;

pub(super) use self::{
    connections::tcp_settings,
    deadline::{CONNECT_TIMEOUT, PROBE_TIMEOUT, deadline_in, slow_text, timed_out},
    health::{ConnectErrors, Health},
    link::{Link, Scan},
    runtimes::current,
    single::Single,
};
