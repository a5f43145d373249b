//! The tests of `tower-ratelimit-operate`: one module per concern.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod admin;
mod blocklist;
mod config;
mod examples;
#[path = "../each_store/explanations.rs"]
mod explanations;
mod live_policies;
mod live_prices;
mod logs;
mod playground;
#[allow(dead_code, reason = "the explanations use a part")]
#[path = "../it/stores.rs"]
mod stores;
mod usage;
