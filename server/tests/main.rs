//! The command `ratelimit-server` as operators run it, and its answers to calls, on a real Redis.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod configuration;
mod documented;
#[allow(dead_code, reason = "of other programs too")]
mod envoy;
mod examples;
mod operation;
#[allow(dead_code, reason = "of other programs too")]
mod process;
mod protocol;
mod with_envoy;
