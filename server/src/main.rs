//! A rate limit service in Envoy's protocol: see the README.

mod answer;
mod config;
mod decide;
mod failure;
mod listen;
mod listing;
mod operators;
mod options;
mod plan;
mod serve;
mod service;
mod telemetry;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tower_ratelimit_operate::live::LivePolicies;

use crate::{
    config::{Config, Settings, read},
    failure::Failure,
    options::{Command, Options, Source},
};

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Options::parse().command {
        Command::Serve(options) => serve::serve(*options).await,
        Command::Check(source) => load(&source).and_then(|config| print(&listing::of_config(&config))),
        Command::Match { source, domain, entries } => {
            described(&source, &domain, &entries).and_then(|text| print(&text))
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            // It may be closed.
            drop(writeln!(io::stderr(), "error: {message}"));
            code.into()
        }
    }
}

fn described(source: &Source, domain: &str, entries: &[String]) -> Result<String, Failure> {
    let entry = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok(Entry { key: key.to_owned(), value: value.to_owned() }),
        None => Err(Failure::usage(format!("`{text}` is not KEY=VALUE"))),
    };
    let entries = entries.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    Ok(listing::of_descriptor(&load(source)?, domain, &entries))
}

/// Reads the configuration once.
fn load(source: &Source) -> Result<Config, Failure> {
    let policies = match &source.policies {
        Some(path) => LivePolicies::file(path)?.current(),
        None => Vec::new(),
    };
    read(&source.directory, &Settings { failure_mode: source.failure_mode, policies }).map_err(Failure::usage)
}

fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    Ok(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())?)
}
