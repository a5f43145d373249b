//! What holds for each store. Two programs compile these tests: `it` runs them in process and on one Redis server,
//! `net` on a Redis Cluster. Each has its own module `stores`.

mod all_or_nothing;
mod debits;
pub(crate) mod guarantees;
pub(crate) mod kept_futures;
pub(crate) mod penalties;
mod shadow;
mod waits;
