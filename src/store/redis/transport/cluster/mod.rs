//! A link to a Redis Cluster, through redis-rs' cluster client. The client knows which node has a key, follows
//! migrating slots, and keeps one connection to each node.
//!
//! All keys of a call must be in one of the 16,384 slots. So identities are grouped into shards, and all keys of a
//! shard are in one slot. Each shard has a queue and lanes, as a single server has.
//!
//! A decision over several slots is made slot by slot. If one slot denies or fails, the charges before it are
//! refunded. So never more is admitted than by one script call; until the refund, less may be.

mod clients;
mod clustered;
mod evaluate;
mod node;
mod nodes;
mod pool;
mod several_slots;
mod shard;
mod silent;

pub(crate) use self::{
    clients::{CONNECTIONS, Clients, clients, is_clustered},
    clustered::Clustered,
    pool::ClusterManager,
};
