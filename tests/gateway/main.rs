//! The tests of `tower-ratelimit-gateway`: one module per concern.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod body;
mod examples;
mod logs;
mod prices;
