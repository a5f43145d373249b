//! The tests of the crate on a Redis server: one module per concern. What needs none is in `memory`, and what other programs
//! share with them is in the package `support`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod bad_input;
mod calendar;
mod cancellation;
mod clock_at_zero;
mod concurrency_policy;
mod connect_errors;
mod costs;
mod credentials;
mod criticality;
mod custom_algorithm;
mod custom_twin;
mod debits;
mod decorated_store;
mod degrading;
mod denials;
mod deny_cache;
mod differential;
#[path = "../each_store/mod.rs"]
mod each_store;
mod exact_limit;
mod examples;
mod failure_ladder;
mod foreign_code;
mod foreign_values;
mod hash;
mod hostile;
mod kept_futures;
mod leases;
mod logs;
mod lost_permits;
mod memory_store;
mod model;
mod on_decision;
mod pairs;
mod penalties;
mod policy_changes;
mod policy_sources;
mod preflight;
mod probe;
mod quickstart;
mod refunds;
mod releases;
mod reservations;
mod resets;
mod routes;
mod runtimes;
mod scripts;
mod settled_requests;
mod settlement;
mod settlement_tokens;
mod several_units;
mod shadow;
mod shaping;
mod silent_connections;
mod sliding_window;
mod spans;
mod store_failure;
mod stored_states;
mod stores;
mod thresholds;
mod user_programs;
mod waits;
mod what_clients_see;
