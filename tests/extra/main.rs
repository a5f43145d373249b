//! The tests of `tower-ratelimit-extra`: one module per concern.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod adaptive;
mod api;
mod credentials;
mod examples;
mod lookup;
mod seats;
mod twin_test;
mod unidentified;
