//! A link to a Redis Cluster, through redis-rs' cluster client. The client knows which node has a key,
//! follows migrating slots, and keeps one connection to each node.
//!
//! All keys of a call must be in one of the 16,384 slots. So identities are grouped into shards, and all keys
//! of a shard are in one slot. Each shard has a queue and lanes, as a single server has.
//!
//! A decision over several shards is made shard by shard. If one denies or fails, the charges before it are
//! refunded. So never more is admitted than by one script call; until the refund, less may be.

mod clients;
mod link;
mod node;
mod nodes;
mod several_shards;

pub(crate) use self::{
    clients::{CONNECTIONS, clients, is_clustered},
    link::ClusterLink,
};
