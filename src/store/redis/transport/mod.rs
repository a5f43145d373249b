//! How calls get to Redis and replies come back: connections, batches, one server or a Cluster.

mod background;
mod checkout;
#[cfg(feature = "cluster")]
pub(super) mod cluster;
mod connections;
mod deadline;
mod health;
mod link;
mod queue;
mod script;
mod single;

pub(super) use self::{
    deadline::{PATIENCE, in_time, too_late},
    health::{ConnectErrors, Health},
    link::Link,
    single::Single,
};
