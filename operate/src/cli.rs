//! [`RedisOptions`]: the options of a command that uses the limits in Redis, such as `ratelimit-admin` and `ratelimit-server`.

use std::{env, fs, path::PathBuf};

use clap::Args;
use tower_ratelimit::{
    Error, ErrorKind,
    store::{RedisStoreBuilder, Servers},
};

/// The servers of Redis, how to trust them, and the prefix of the keys. For [`clap`], with `#[command(flatten)]`.
///
/// # Example
///
/// ```
/// use clap::Parser;
/// use tower_ratelimit_operate::{cli::RedisOptions, tower_ratelimit::RedisStore};
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     redis: RedisOptions,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit_operate::tower_ratelimit::Error> {
/// let Options { redis } = Options::parse_from(["jobs", "--redis", "redis://127.0.0.1:6379", "--prefix", "jobs"]);
/// let store = redis.settings(RedisStore::builder())?.connect_lazy(redis.servers()?)?;
/// assert_eq!(store.prefix(), "jobs");
///
/// let Options { redis } = Options::parse_from(["jobs", "--redis", "redis://one,redis://two"]);
/// assert!(redis.servers().unwrap_err().to_string().contains("add --cluster or --sentinel"));
/// # Ok(())
/// # }
/// ```
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct RedisOptions {
    /// The URL of the server; of several nodes or sentinels with a comma between them. Prefer the variable: other
    /// users of this machine see the arguments of a command, with the password.
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_delimiter = ',', value_name = "URL")]
    pub redis: Vec<String>,
    /// The URLs are of nodes of a Redis Cluster.
    #[arg(long, conflicts_with = "sentinel")]
    pub cluster: bool,
    /// The number of shards, the same for all programs that share the counts.
    #[arg(long, requires = "cluster", default_value_t = 8)]
    pub cluster_shards: u16,
    /// The URLs are of sentinels, which name the primary so.
    #[arg(long, value_name = "PRIMARY")]
    pub sentinel: Option<String>,
    /// The user that the sentinels require, by default `default`. Its password is read from the variable
    /// SENTINEL_PASSWORD.
    #[arg(long, requires = "sentinel", value_name = "USER")]
    pub sentinel_user: Option<String>,
    /// Trusts only the certificates in this PEM file to sign the certificate of a server. Without it, the system's certificates
    /// are trusted.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// A PEM file with the certificate of this client, for a server that requires one.
    #[arg(long, requires = "client_key", value_name = "FILE")]
    pub client_certificate: Option<PathBuf>,
    /// The PEM file of its key.
    #[arg(long, requires = "client_certificate", value_name = "FILE")]
    pub client_key: Option<PathBuf>,
    /// The prefix of the keys, the same for all programs that share the counts.
    #[arg(long, env = "RATELIMIT_PREFIX", default_value = "rl")]
    pub prefix: String,
}

impl RedisOptions {
    /// The servers. With sentinels, reads their password from the variable `SENTINEL_PASSWORD`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): no server is named, or the options do not fit together. The message says
    /// which option to write.
    pub fn servers(&self) -> Result<Servers, Error> {
        let urls: Vec<&str> = self.redis.iter().map(|url| url.trim()).filter(|url| !url.is_empty()).collect();
        let invalid = |message: &'static str| Err(Error::new(ErrorKind::InvalidConfig, message));
        let password = env::var("SENTINEL_PASSWORD").ok().filter(|password| !password.is_empty());
        match (&self.sentinel, &urls[..]) {
            (_, []) => {
                invalid("name the server with --redis redis://host:6379, or in the variable REDIS_URL")
            }
            _ if self.cluster => Ok(Servers::cluster(urls)),
            (Some(primary), _) => match (&self.sentinel_user, password) {
                (user, Some(password)) => {
                    let user = user.as_deref().unwrap_or_default();
                    Ok(Servers::sentinel(urls, primary).sentinel_credentials(user, password))
                }
                (Some(_), None) => {
                    invalid("--sentinel-user needs its password in the variable SENTINEL_PASSWORD")
                }
                (None, None) => Ok(Servers::sentinel(urls, primary)),
            },
            (None, [url]) => Ok(Servers::from(*url)),
            (None, _) => invalid(
                "several URLs are of nodes of a Redis Cluster or of sentinels: add --cluster or --sentinel <PRIMARY>, or \
                 write a comma in a password as %2C",
            ),
        }
    }

    /// `settings` with the prefix, the certificates and the number of shards.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): a file cannot be read. The message has its path.
    pub fn settings(&self, settings: RedisStoreBuilder) -> Result<RedisStoreBuilder, Error> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|error| {
                Error::new(ErrorKind::InvalidConfig, format!("cannot read {}: {error}", path.display()))
            })
        };
        let mut settings = settings.prefix(&self.prefix);
        if self.cluster {
            settings = settings.cluster_shards(self.cluster_shards);
        }
        if let Some(path) = &self.ca {
            settings = settings.tls_ca_certificate(read(path)?);
        }
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            settings = settings.tls_client_certificate(read(certificate)?, read(key)?);
        }
        Ok(settings)
    }
}
