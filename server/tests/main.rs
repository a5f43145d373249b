//! The command `ratelimit-server` as operators run it, and its answers to calls, on a real Redis.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod configuration;
mod envoy;
mod examples;
mod operation;
mod process;
mod protocol;
mod with_envoy;
