//! Administers the limits in a Redis: shows a client's state, resets and refunds it, bans it, and lists keys
//! and bans. Or asks the routers for operators of running instances why a client is denied.
//!
//! ```text
//! export REDIS_URL=redis://user:password@127.0.0.1:6379
//! cargo run --release -p ratelimit-admin -- --policies limits.toml show login alice
//! ```
//!
//! The policies are read from the TOML file of the service, as `LivePolicies::file` reads it. Values in Redis
//! are decoded by the crate: the script that makes the decisions reads them, and charges nothing.

mod blocklist;
mod client;
mod commands;
mod connect;
mod encoded;
mod failure;
mod instances;
mod lists;
mod merged;
mod options;
mod printed;
mod routers;
mod span;
mod stored;
mod table;
mod time;
mod tls;

use std::{
    io::{self, ErrorKind, Write as _},
    process::ExitCode,
};

use crate::{failure::without_passwords, options::Options, printed::legible};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::of_process() {
        Ok(options) => options,
        // `--help` goes to stdout, and is not an error.
        Err(message) if !message.use_stderr() => return print(&message.render().to_string(), false),
        Err(error) => {
            complain(&error.render().to_string());
            return ExitCode::from(2);
        }
    };
    let is_change = options.command.is_change();
    match commands::run(options).await {
        Ok(printed) => {
            complain(&printed.complaints);
            let code = print(&printed.text, is_change);
            if printed.is_failed { ExitCode::from(1) } else { code }
        }
        Err(failure) => {
            complain(&format!("error: {failure}\n"));
            failure.code()
        }
    }
}

/// Prints the result of a command, and returns its exit code.
fn print(text: &str, is_change: bool) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(legible(text).as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_change => {
            complain(&format!("the change was made; its result cannot be printed: {error}\n"));
            ExitCode::SUCCESS
        }
        // The reader has seen enough, as `head` has.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: the result cannot be printed: {error}\n"));
            ExitCode::from(1)
        }
    }
}

/// Prints a message on stderr, if that can be written.
fn complain(message: &str) {
    drop(io::stderr().write_all(legible(&without_passwords(message)).as_bytes()));
}
