//! The options of the command.

use std::{path::PathBuf, time::Duration};

use clap::{Args, CommandFactory as _, Error, FromArgMatches as _, Parser, Subcommand, parser::ValueSource};
use tower_ratelimit_operate::cli::RedisOptions;

use crate::encoded::encoded;

/// Administers the limits in a Redis, a Redis Cluster, or the primary that sentinels name; or asks the routers for
/// operators of running instances.
#[derive(Parser)]
#[command(
    name = "ratelimit-admin",
    after_help = "KEY is the identity of a client, such as 203.0.113.7, or a key as `keys` prints it: `%(acme%|alice%)` is \
                  the key of a tenant and a user, and `%*` begins a hash. Write `%25` for a percent sign.\n\n\
                  Exit codes: 0 done, 1 Redis did not do it, Redis or an instance did not answer (the message says whether the change may have been made) or cannot make decisions, or what was read cannot be printed, 2 the options, the policies, the URL or the key are invalid."
)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) redis: RedisOptions,
    /// The URL of an instance's router for operators, such as http://10.0.0.7:3001/limits. Repeat it, or write commas,
    /// for several instances. With `why`, `top`, `recent`, `policies`, `unlock`, `block`, `unblock`, `blocklist`, `acl` and
    /// `probe`, it gets requests in the place of Redis. The other commands ignore the variable.
    #[arg(long, env = "RATELIMIT_URL", value_delimiter = ',', global = true, value_name = "URL")]
    pub(crate) url: Vec<String>,
    /// A header for the routers, such as `authorization: Bearer ..`. Prefer the variable: other users of this machine
    /// see the arguments of a command.
    #[arg(long, env = "RATELIMIT_HEADER", hide_env_values = true, global = true, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// The longest time for each command of Redis, and for each answer of a router.
    #[arg(long, default_value = "2s", value_parser = duration, value_name = "TIME")]
    pub(crate) deadline: Duration,
    /// The TOML file of the policies. Not needed with --url, nor for `acl`, `probe` and the
    /// commands about blocked networks.
    #[arg(long, env = "RATELIMIT_POLICIES", value_name = "FILE")]
    pub(crate) policies: Option<PathBuf>,
    /// The policies as the hash PREFIX:policies in Redis changes them.
    #[arg(long)]
    pub(crate) live: bool,
    /// The secret of the digests of keys, if the service sets one.
    #[arg(long, env = "RATELIMIT_DIGEST_SECRET", hide_env_values = true, value_name = "SECRET")]
    pub(crate) digest_secret: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Lists the policies. Needs no Redis, except with --live.
    Policies,
    /// Prints the permissions that the Redis user of the service needs, for ACL SETUSER. Asks no server.
    /// With --live, also those for what services share in hashes: live policies, a blocklist and adaptive quotas.
    /// `keys` and `bans` need +scan too.
    Acl,
    /// Checks whether Redis can make the decisions, and prints what to change. Needs no policies. The exit code is 1
    /// if it cannot.
    Probe,
    /// Shows why a client is denied: its key under all policies, or a request, now and lately.
    Why(Question),
    /// Lists the keys that the instances have denied most often. Needs --url.
    Top(Filter),
    /// Lists the keys that the instances have denied lately, the latest first. Needs --url.
    Recent(Filter),
    /// Shows the state of a key, and what a request would get now.
    Show {
        policy: String,
        #[arg(allow_hyphen_values = true)]
        key: String,
        /// The units of the request.
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// Unlocks a client that was locked out by mistake: resets its key, and ends the ban.
    Unlock {
        policy: String,
        #[arg(allow_hyphen_values = true)]
        key: String,
    },
    /// Gives a key its whole quota again. A ban stays.
    Reset {
        policy: String,
        #[arg(allow_hyphen_values = true)]
        key: String,
    },
    /// Refunds the latest units of a key.
    Refund {
        policy: String,
        #[arg(allow_hyphen_values = true)]
        key: String,
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 44))]
        units: u64,
    },
    /// Bans a key for a time from now, in place of the ban that it has. The policy needs a penalty.
    Ban {
        policy: String,
        #[arg(allow_hyphen_values = true)]
        key: String,
        /// Such as 90s, 10min or 1day.
        #[arg(value_parser = duration)]
        time: Duration,
    },
    /// Ends the ban of a key. What it was charged stays, so its next request may be denied.
    Unban {
        policy: String,
        #[arg(allow_hyphen_values = true)]
        key: String,
    },
    /// Lists the keys that are banned, the longest ban first: of each policy the 10,000 longest. Looks at all
    /// keys of Redis.
    Bans {
        /// Only keys of this policy.
        policy: Option<String>,
    },
    /// Blocks a network, whose requests all instances then reject, in the place of the block that it has. Needs no
    /// policies. The service needs a blocklist (`Blocklist::redis`).
    Block {
        /// Such as 203.0.113.0/24, 2001:db8::/32 or an address.
        network: String,
        /// Such as 90s, 10min or 1day. Without it, until `unblock`.
        #[arg(value_parser = duration)]
        time: Option<Duration>,
        /// Why, for other operators.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Removes a network from the blocklist.
    Unblock { network: String },
    /// Lists the networks that are blocked.
    Blocklist,
    /// Lists the keys that are charged or banned now, with their state.
    Keys {
        /// Only keys of this policy.
        policy: Option<String>,
        /// Look at about this many keys of each server, of any program.
        #[arg(long, default_value_t = 100_000, value_name = "KEYS")]
        scan: usize,
        /// Show the state of at most this many.
        #[arg(long, default_value_t = 1_000, value_name = "KEYS")]
        limit: usize,
    },
}

impl Options {
    /// The options of this process. The variable of routers is ignored if the command works on Redis.
    pub(crate) fn of_process() -> Result<Self, Error> {
        let matches = Self::command().try_get_matches()?;
        let mut options = Self::from_arg_matches(&matches)?;
        if !options.command.asks_routers() && matches.value_source("url") == Some(ValueSource::EnvVariable) {
            options.url.clear();
        }
        Ok(options)
    }
}

/// Which client `why` asks about.
#[derive(Args)]
pub(crate) struct Question {
    /// Its identity, or its key.
    #[arg(allow_hyphen_values = true, required_unless_present = "request")]
    pub(crate) key: Option<String>,
    /// A request in its place, such as "GET /search". Needs --url, and layers in the router.
    #[arg(long, conflicts_with = "key", value_name = "METHOD PATH")]
    pub(crate) request: Option<String>,
    /// A header of the request.
    #[arg(short = 'H', requires = "request", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// The address from which the request comes.
    #[arg(long, requires = "request", value_name = "ADDRESS")]
    pub(crate) address: Option<String>,
    /// The units of the request, for a key.
    #[arg(long, default_value_t = 1, conflicts_with = "request")]
    pub(crate) cost: u64,
}

/// Which denials are listed.
#[derive(Args)]
pub(crate) struct Filter {
    /// Only under this policy.
    pub(crate) policy: Option<String>,
    /// At most this many.
    #[arg(long, default_value_t = 20, value_name = "KEYS")]
    pub(crate) limit: usize,
}

impl Filter {
    /// The route of `list`.
    pub(crate) fn path(&self, list: &str, limit: usize) -> String {
        let policy = self.policy.as_ref().map(|policy| format!("&policy={}", encoded(policy)));
        format!("/denials/{list}?limit={limit}{}", policy.unwrap_or_default())
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write a time such as 90s, 10min or 1day"))
}

impl Command {
    /// Whether the command sends requests to routers, if they are named.
    pub(crate) const fn asks_routers(&self) -> bool {
        use Command::{Acl, Block, Blocklist, Policies, Probe, Recent, Top, Unblock, Unlock, Why};
        matches!(
            self,
            Why(_)
                | Top(_)
                | Recent(_)
                | Policies
                | Unlock { .. }
                | Block { .. }
                | Unblock { .. }
                | Blocklist
                | Acl
                | Probe
        )
    }

    /// Whether the command changes a value in Redis.
    pub(crate) const fn is_change(&self) -> bool {
        use Command::{Ban, Block, Refund, Reset, Unban, Unblock, Unlock};
        matches!(
            self,
            Unlock { .. }
                | Reset { .. }
                | Refund { .. }
                | Ban { .. }
                | Unban { .. }
                | Block { .. }
                | Unblock { .. }
        )
    }
}
