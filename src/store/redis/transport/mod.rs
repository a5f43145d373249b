//! Carries jobs to Redis and replies back: connections, batches, one server or a Cluster.

mod background;
mod breaker;
mod checkout;
#[cfg(feature = "cluster")]
pub(super) mod cluster;
mod commit;
mod connections;
mod deadline;
mod health;
mod lane;
mod link;
mod probe;
mod queue;
mod scan;
mod script;
mod server;
mod single;
mod socket;
mod target;
mod watch;

pub(super) use self::{
    deadline::{CONNECT_TIMEOUT, PROBE_TIMEOUT, deadline_in, slow_text, timed_out},
    health::{ConnectErrors, Health},
    link::Link,
    scan::Scan,
    single::Single,
    socket::tcp_settings,
};
