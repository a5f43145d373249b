//! The options of the command.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use crate::{formats::Format, policies::Shape};

/// Shows which past requests one or several policies would have denied, before you turn them on.
#[derive(Parser)]
#[command(after_help = "\
KEYS are parts joined by `+`; after a `|` comes what to use where a part is missing:
  address        the client's address; IPv6 by its /64 network, or by /N with address/N
  path, path:N   the path without its query, or its first N segments
  method, host, user, user-agent
  field:NAME     a named part of an ALB line, such as target or domain_name, or a path into a JSON line,
                 such as field:request.headers.X-Api-Key.0
  key            `key` of a JSON line
  all            one key for all requests
COSTS are a number, field:NAME, or bytes: one unit, and at the end the bytes of the response, as
`Rule::response_bytes` charges them.")]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// A file of policies, decided together, all or nothing: TOML with tables `[[policies]]`, as
    /// `LivePolicies` reads it, or the same as JSON.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["limit", "period", "algorithm", "burst", "segments", "max_wait", "delay_after", "refill_every", "initial", "aligned"])]
    pub(crate) policies: Option<PathBuf>,
    /// What identifies a client, for all policies or for one: KEY or POLICY=KEY. Defaults to `address`, and to
    /// `key` for JSON lines.
    #[arg(long, value_name = "[POLICY=]KEY")]
    pub(crate) key: Vec<String>,
    /// What a request costs, for all policies or for one. Defaults to 1, and to `cost` of a JSON line.
    #[arg(long, value_name = "[POLICY=]COST")]
    pub(crate) cost: Vec<String>,
    /// The format of the input. Detected from the first lines if left out.
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// `memory`, or a Redis URL.
    #[arg(long, default_value = "memory")]
    pub(crate) store: String,
    /// Print the verdict on each request, one JSON object a line.
    #[arg(long)]
    pub(crate) verdicts: bool,
    /// Write a report as one HTML file, without references to others.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Show identities in the report. Otherwise they are hashed with a secret that is new in each run.
    #[arg(long)]
    pub(crate) show_keys: bool,
    /// Find the smallest limit that denies few clients, for the algorithm and period given, or for this policy
    /// of the file.
    #[arg(long, value_name = "POLICY", num_args = 0..=1, require_equals = true, default_missing_value = "",
        conflicts_with_all = ["limit", "verdicts", "report"])]
    pub(crate) suggest: Option<String>,
    /// The share of clients that the suggested limit may deny.
    #[arg(long, value_name = "SHARE", default_value_t = 0.001, value_parser = share)]
    pub(crate) suggest_share: f64,
    /// The most keys whose counts are kept for each policy. The counts of more keys are evicted, those that
    /// reset first before others.
    #[arg(long, value_name = "KEYS", default_value_t = 1_000_000)]
    pub(crate) max_keys: usize,
    /// How long a request may have lasted at most for its line to be sorted by its arrival.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(crate) reorder: Duration,
    /// The file to read, which may be compressed by gzip; defaults to stdin.
    pub(crate) file: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| "the share must be a number from 0 to below 1, such as 0.001".to_owned())
}
