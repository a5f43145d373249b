//! The options of the command.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{NonEmptyStringValueParser, RangedU64ValueParser},
};
use tower_ratelimit::FailureMode;
use tower_ratelimit_operate::cli::RedisOptions;

/// Answers Envoy's rate limit calls with the limits of a directory of files, which envoyproxy/ratelimit can read too.
#[derive(Debug, Parser)]
#[command(
    name = "ratelimit-server",
    version,
    after_help = "Exit codes: 0 done, 1 an address or the server of Redis cannot be used, 2 the options or the configuration are invalid."
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answers calls until it gets SIGTERM or SIGINT.
    Serve(Box<Serve>),
    /// Reads a configuration, and lists its limits and what is probably a mistake.
    Check(Source),
    /// Shows which limit a descriptor has, and the policy and the key that are charged.
    Match {
        #[command(flatten)]
        source: Source,
        /// The domain of Envoy's filter.
        domain: String,
        /// The entries of a descriptor, in their order: `message_type=marketing to_number=2061111111`.
        #[arg(required = true, value_name = "KEY=VALUE")]
        entries: Vec<String>,
    },
}

/// The configuration.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// The directory with the files, which end with .yaml or .yml.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// A file with policies, in TOML, JSON or YAML, for limits with `policy: NAME`: see the README.
    #[arg(long, env = "RATELIMIT_POLICIES", value_name = "FILE")]
    pub(crate) policies: Option<PathBuf>,
    /// What happens if Redis does not answer, for limits without a policy: `local` counts in this process, and divides the limit by
    /// the number of servers, `local/4` by 4; `open` admits; `closed` answers that the limit is exceeded.
    #[arg(long, default_value = "local", value_name = "MODE")]
    pub(crate) failure_mode: FailureMode,
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The policies of the hash PREFIX:policies in Redis, which operators change for all instances. The policies of --policies, as they
    /// are when the server starts, apply where the hash has none, and while Redis has not been seen.
    #[arg(long)]
    pub(crate) live: bool,
    #[command(flatten)]
    pub(crate) redis: RedisOptions,
    /// Counts in this process, without Redis.
    #[arg(long, conflicts_with_all = ["live", "cluster", "sentinel"])]
    pub(crate) memory: bool,
    /// The connections to each server of Redis.
    #[arg(long, default_value_t = 8, value_name = "CONNECTIONS")]
    pub(crate) pool_size: u32,
    #[command(flatten)]
    pub(crate) calls: Calls,
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// The address for operators, with /ready, /metrics, /config and /limits.
    #[arg(long, env = "RATELIMIT_OPERATORS", default_value = "127.0.0.1:8082", value_name = "ADDRESS")]
    pub(crate) operators: SocketAddr,
    /// What /config and /limits require as `authorization: Bearer TOKEN`. Required unless --operators is a loopback address.
    #[arg(long, env = "RATELIMIT_TOKEN", hide_env_values = true, value_name = "TOKEN", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) token: Option<String>,
    /// The secret of the hashes of keys in logs and traces.
    #[arg(long, env = "RATELIMIT_DIGEST_SECRET", hide_env_values = true, value_name = "SECRET")]
    pub(crate) digest_secret: Option<String>,
    /// After a signal to stop, health checks fail for this time while calls are answered, so that callers leave first.
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "TIME")]
    pub(crate) shutdown_delay: Duration,
    /// The format of the log on stderr. The variable RUST_LOG selects what is logged.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log: LogFormat,
}

/// What is answered, and to whom.
#[derive(Args, Clone, Debug)]
pub(crate) struct Calls {
    /// The address for calls and health checks.
    #[arg(long, env = "RATELIMIT_LISTEN", default_value = "127.0.0.1:8081", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// After this time, or three quarters of the call's own deadline, the failure mode decides. Envoy waits for 20 ms
    /// unless its filter sets `timeout`.
    #[arg(long, default_value = "15ms", value_parser = duration, value_name = "TIME")]
    pub(crate) deadline: Duration,
    /// Adds `RateLimit`, `RateLimit-Policy` and `Retry-After` to the response of the client. Envoy adds `X-RateLimit-*` itself
    /// if its filter sets `enable_x_ratelimit_headers`.
    #[arg(long)]
    pub(crate) headers: bool,
    /// Gives denied requests a body of `application/problem+json`, and `Retry-After`.
    #[arg(long)]
    pub(crate) problem_body: bool,
    /// More connections are closed. The memory that hostile callers can take is at most about the product of this number, of the
    /// calls of a connection and of the size of a call, whose descriptors take up to 30 times as much while it is decided.
    #[arg(long, default_value_t = 256, value_parser = number(1, 1 << 20))]
    pub(crate) max_connections: usize,
    /// More calls of one connection wait.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_calls_per_connection: u32,
    /// Larger calls are rejected.
    #[arg(long, default_value_t = 32_768, value_name = "BYTES", value_parser = number(1, 1 << 30))]
    pub(crate) max_call_size: usize,
    /// Calls with more descriptors are rejected. At most 256 are decided in one step.
    #[arg(long, default_value_t = 64, value_parser = number(1, 256))]
    pub(crate) max_descriptors: usize,
    /// Connections are closed after about this time, so that callers find new instances.
    #[arg(long, default_value = "1h", value_parser = duration, value_name = "TIME")]
    pub(crate) max_connection_age: Duration,
}

/// How callers connect.
#[derive(Args, Debug)]
pub(crate) struct Tls {
    /// A PEM file with the certificate of this server. Without it, calls are not encrypted.
    #[arg(long, requires = "key", value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// The PEM file of its key.
    #[arg(long, requires = "certificate", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Only callers with a certificate signed by one of this PEM file may call.
    #[arg(long, requires = "certificate", value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

fn number(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}: write a time such as 15ms, 5s or 1h"))
}
