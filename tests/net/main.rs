//! The tests that need a Redis Cluster, Sentinel, TLS, gRPC or a client library, and the tests of outages in real time.
//! The tests of this workspace's programs are in their packages: `tools/*`, `examples/tonic`, `examples/client_retry` and
//! `examples/observed`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod adaptive_attacks;
mod body;
mod buffered_retry;
mod calendar;
mod cluster;
mod cluster_faults;
mod credentials;
#[path = "../each_store/mod.rs"]
mod each_store;
#[path = "../each_store/explanations.rs"]
mod explanations;
mod grpc;
mod grpc_programs;
mod hanging;
mod http2;
mod kept_futures;
mod keys;
mod metrics;
mod outages;
mod protocol;
mod retry_apis;
mod retry_policy;
mod sentinel;
mod settlement_tokens;
mod silent_connections;
mod slow_redis;
mod stores;
mod tls;
mod topologies;
mod under_load;
