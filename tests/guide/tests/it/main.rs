//! What the guides say beside their programs: `cargo test -p tests-guide --test it`.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod nginx;
mod pages;
