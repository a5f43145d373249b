//! Administers the limits in a Redis: shows a client's state, resets and refunds it, bans it, and lists keys and bans.
//!
//! ```text
//! export REDIS_URL=redis://user:password@127.0.0.1:6379
//! cargo run --release -p tools --bin ratelimit-admin -- --policies limits.toml show login alice
//! ```
//!
//! The policies are read from the TOML file of the service, as `LivePolicies::file` reads it. Values in Redis are decoded by
//! the crate: the script that makes the decisions reads them, and charges nothing.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod commands;
mod connect;
mod failure;
mod options;
mod span;
mod stored;
mod table;

use std::process::ExitCode;

use clap::Parser as _;

use crate::{failure::without_passwords, options::Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        // `--help` goes to stdout, and is no error.
        Err(message) if !message.use_stderr() => {
            print!("{}", message.render());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprint!("{}", without_passwords(&error.render().to_string()));
            return ExitCode::from(2);
        }
    };
    match commands::run(options).await {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.code()
        }
    }
}
