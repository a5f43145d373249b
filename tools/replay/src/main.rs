//! Shows which past requests one or several policies would have denied, before you turn them on.
//!
//! Run with
//!
//! ```text
//! cargo run --release -p replay -- --limit 5 --period 1s access.log
//! cargo run --release -p replay -- --policies limits.toml --key plan=user --report out.html access.log.gz
//! cargo run --release -p replay -- --suggest --period 1min access.log
//! ```
//!
//! It reads a file or stdin: an access log of nginx, Apache, Caddy or an AWS Application Load Balancer, or JSON
//! lines. The requests' timestamps drive the clock, so a year of them takes seconds, and the library decides:
//! several policies all or nothing, with debts, penalties, shadows, calendar periods, and permits that are held
//! as long as the request took. A summary goes to stderr; with `--verdicts`, the verdict on each line goes to
//! stdout. `docs/replay.md` has an example for each format, and the fields of JSON lines.
//!
//! The input is streamed. Memory holds at most the counts of `--max-keys` keys for each policy, the lines that
//! wait to be sorted, and the permits in use. `--suggest` keeps 32 bytes of each request.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod commands;
mod engine;
mod formats;
mod input;
mod keys;
mod notes;
mod options;
mod order;
mod policies;
mod report;
mod request;
mod rules;
mod run;
mod source;
mod suggest;
mod summary;
mod tally;
mod timeline;
mod verdicts;

use std::error::Error;

use clap::Parser as _;

use self::{
    formats::{Format, detect},
    input::Input,
    options::Options,
};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = replay(Options::parse()).await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn replay(options: Options) -> Result<(), Box<dyn Error>> {
    let setup = run::policies(&options)?;
    let mut input = Input::open(options.file.as_deref())?;
    let format = match options.format {
        Some(format) => format,
        None => {
            let lines = input.sample()?;
            let found = detect(&lines);
            if let Some(format) = found.filter(|format| *format != Format::Jsonl) {
                eprintln!("the format of the input is {}", format.name());
            }
            // Without lines, the format does not matter.
            found
                .or_else(|| lines.is_empty().then_some(Format::Jsonl))
                .ok_or("the format is not recognized: set `--format`")?
        }
    };
    if options.suggest.is_some() {
        return suggest::suggest(&options, &setup, input, format).await;
    }
    run::run(&options, &setup, input, format).await
}
