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
mod lone;
mod probe;
mod queue;
mod runtimes;
mod scan;
mod script;
mod server;
mod single;
mod socket;
mod target;
mod waiting;

#[cfg(feature = "sentinel")]
pub(super) use self::deadline::CONNECT_TIMEOUT;
pub(super) use self::{
    deadline::{PROBE_TIMEOUT, answered, deadline_in, slow_text, timed_out},
    health::{ConnectErrors, Health},
    link::Link,
    runtimes::current,
    scan::Scan,
    single::Single,
    socket::tcp_settings,
};
