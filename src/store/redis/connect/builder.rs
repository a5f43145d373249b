//! The settings of a store in Redis.

use std::{sync::Arc, time::Duration};

use super::tls::TlsSettings;
#[cfg(feature = "cluster")]
use crate::store::redis::job::Shards;
use crate::{
    base::Error,
    store::{
        ManualClock,
        redis::credentials::{Authenticator, CredentialsProvider},
    },
};

/// The settings of a [`RedisStore`](crate::RedisStore), from
/// [`RedisStore::builder`](crate::RedisStore::builder).
///
/// Finish with [`connect`](Self::connect), [`connect_lazy`](Self::connect_lazy) or [`build`](Self::build).
/// They validate every setting and return an error, so values can come from configuration.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{RedisStore, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder()
///     .prefix("shop")
///     .deadline(Duration::from_millis(20))
///     .deny_cache(Duration::ZERO)
///     .connect_lazy("redis://127.0.0.1:6379")?;
/// assert!(store.acl_rule().starts_with("~shop:*"));
///
/// // For tests that use a real Redis without sleeping.
/// let clock = ManualClock::new();
/// let settings = RedisStore::builder().pool_size(4).manual_clock(clock.clone());
/// let store = settings.connect_lazy("redis://127.0.0.1:6379")?;
/// # drop(store);
///
/// let error = RedisStore::builder().prefix("sh{o}p").connect_lazy("redis://127.0.0.1:6379").unwrap_err();
/// assert!(error.to_string().starts_with("a Redis key prefix must have 1 to 64 printable ASCII characters"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until `connect` or `build` is called"]
pub struct RedisStoreBuilder {
    pub(super) prefix: String,
    pub(super) deadline: Duration,
    pub(super) pool_size: u32,
    pub(super) deny_cache: Duration,
    pub(super) check_idle_after: Duration,
    #[cfg(feature = "cluster")]
    pub(super) cluster_shards: u16,
    pub(super) clock: Option<ManualClock>,
    pub(super) tls: TlsSettings,
    pub(super) authenticator: Option<Arc<Authenticator>>,
}

impl RedisStoreBuilder {
    pub(in crate::store::redis) fn new() -> Self {
        Self {
            prefix: "rl".to_owned(),
            deadline: Duration::from_millis(50),
            // More than the lanes: the rest is for connections that are being replaced.
            pool_size: 8,
            deny_cache: Duration::from_secs(1),
            check_idle_after: Duration::from_secs(30),
            #[cfg(feature = "cluster")]
            cluster_shards: 8,
            clock: None,
            tls: TlsSettings::default(),
            authenticator: None,
        }
    }

    /// The prefix of every key, followed by a colon: 1 to 64 printable ASCII characters without spaces and
    /// braces. Defaults to `rl`. Services that share a server but not their limits need different prefixes.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The longest time for one decision, including the wait for a connection. After it, the policy's
    /// [`FailureMode`](crate::FailureMode) decides. Must be above zero. Defaults to 50 milliseconds.
    ///
    /// Time in which the runtime is too busy to poll the decision does not count, so CPU starvation is not
    /// taken for a slow Redis. In a Redis Cluster, it does count.
    ///
    /// The deadline must be longer than a round trip to Redis. [`connect`](Self::connect) and
    /// [`probe`](crate::RedisStore::probe) compare the two.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The maximum number of connections to one server in the pool of each
    /// [runtime](crate::RedisStore#runtimes). Must be at least 1. Defaults to 8. Decisions use three
    /// connections, or six over a slow network, and other commands one more; the others are spares while
    /// broken ones are replaced. With a Redis Cluster, each runtime always has two connections to each node.
    pub const fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// The time without traffic after which a connection is checked before its next use. Defaults to 30
    /// seconds.
    ///
    /// NAT gateways, firewalls and load balancers forget connections that are silent for some minutes, and
    /// report it to neither side. So the first decision after such a pause sends a `PING` first, which costs
    /// one round trip. If the reply does not come within an eighth of the
    /// [deadline](Self::deadline), and 20 milliseconds at most, another connection is opened in the meantime,
    /// and the decision is made over the one that is ready first. It fails only if none is ready within its
    /// deadline.
    ///
    /// Set it below the time after which a device in your network forgets connections. The sockets also have
    /// TCP keepalive, at 15 seconds, which keeps most devices from that. [`Duration::MAX`] turns the check
    /// off. An idle store sends no command.
    ///
    /// It applies to each connection to a server, a sentinel or a node of a Cluster. The connections of
    /// [your pool](Self::build) are not checked.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::RedisStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// // A firewall forgets connections after ten seconds.
    /// let settings = RedisStore::builder().check_idle_after(Duration::from_secs(5));
    /// let store = settings.connect_lazy("redis://127.0.0.1:6379")?;
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn check_idle_after(mut self, silence: Duration) -> Self {
        self.check_idle_after = silence;
        self
    }

    /// The longest time for which the store repeats a denial without asking Redis again. Defaults to one
    /// second. Zero turns this deny cache off.
    ///
    /// Until its wait is over, an exhausted key is denied from memory, with the same verdict and the
    /// remaining wait. The cache holds denials of requests that cost one unit, for up to 4096 keys, at about
    /// 270 bytes each. Denials that an automatic [penalty](crate::policy#penalties) must count are not
    /// cached; denials of a banned key are.
    ///
    /// A [reset](crate::Operator::reset), a [refund](crate::Operator::refund_latest), returned
    /// [leased](crate::Policy::max_lease) units and a higher limit under the same name can end a denial
    /// early. They take effect immediately if they happen through this store or its clones. If they happen on
    /// another instance, this store may keep denying for up to `longest`. If several policies decide a
    /// request, the remaining units reported for the policies that would admit may be out of date by up to
    /// `longest`.
    pub const fn deny_cache(mut self, longest: Duration) -> Self {
        self.deny_cache = longest;
        self
    }

    /// The number of shards into which the identities of a Redis Cluster are grouped, 1 to 1024. The default
    /// is 8; a single server ignores it.
    ///
    /// All keys of a shard are in one hash slot, so that its decisions can share calls. The slots of the
    /// shards are evenly spaced. With fewer shards, batches are larger, so a decision costs the servers less.
    /// With more shards, more primaries can share the load. Use two to four for each primary, in a multiple
    /// of the number of primaries.
    ///
    /// **All instances need the same number.** The shard is part of the key, so changing the number resets
    /// every limit once; the old keys expire. Until all instances have the new number, the old and the new
    /// ones have separate limits.
    ///
    /// Redis moves slots between nodes and cannot split them, so one primary decides for a whole shard. If a
    /// shard is busier than a primary can serve, raise the number. If a single key is, use
    /// [leases](crate::Policy::max_lease).
    ///
    /// ```
    /// use tower_ratelimit::{RedisStore, store::Servers};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let nodes = Servers::cluster(["redis://10.0.0.1:6379"]);
    /// let store = RedisStore::builder().cluster_shards(24).connect_lazy(nodes.clone())?;
    ///
    /// let store = RedisStore::builder().cluster_shards(2_000).connect_lazy(nodes);
    /// assert!(store.unwrap_err().to_string().starts_with("a Redis Cluster can have 1 to 1024 shards"));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub const fn cluster_shards(mut self, shards: u16) -> Self {
        self.cluster_shards = shards;
        self
    }

    /// Trusts the certificates that `pem` contains, and no others, to sign the certificate of a server with a
    /// `rediss://` URL. Defaults to the certificates that the operating system trusts.
    ///
    /// Set it if the server's certificate comes from a private authority. The server's certificate must be
    /// valid for the host of the URL. The operating system's certificates are then not read, except for a
    /// Redis Cluster: redis-rs opens those connections and reads the system's certificates first, so the
    /// system must have some.
    ///
    /// ```no_run
    /// use tower_ratelimit::RedisStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let certificate = std::fs::read("/etc/redis/client.pem")?;
    /// let key = std::fs::read("/etc/redis/client.key")?;
    /// let store = RedisStore::builder()
    ///     .tls_ca_certificate(std::fs::read("/etc/redis/ca.pem")?)
    ///     .tls_client_certificate(certificate, key)
    ///     .connect("rediss://:password@redis.internal:6379")
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # The crypto provider
    ///
    /// With the feature `tls-rustls`, the store uses the [`CryptoProvider`](rustls::crypto::CryptoProvider)
    /// that the program has installed. Without one, it installs ring for the process. To use another
    /// provider, install it before you build the store. The feature `tls-rustls-no-provider` does not compile
    /// ring and installs nothing.
    #[cfg(feature = "tls-rustls-no-provider")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls-rustls")))]
    pub fn tls_ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.ca = Some(pem.into());
        self
    }

    /// Presents a certificate to a server with a `rediss://` URL: the certificate, followed by its
    /// intermediate ones, and its private key, both in PEM. Defaults to none. Redis requires one unless its
    /// `tls-auth-clients` is `no` or `optional`.
    ///
    /// [`tls_ca_certificate`](Self::tls_ca_certificate) has an example.
    #[cfg(feature = "tls-rustls-no-provider")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls-rustls")))]
    pub fn tls_client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        private_key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.tls.client = Some((certificate_pem.into(), private_key_pem.into()));
        self
    }

    /// Logs in with the credentials that `provider` returns, which may change while the store runs. Defaults to
    /// the user and the password of the URL, which must then have none.
    ///
    /// It applies to one server, a Redis Cluster, and the primary that sentinels name. The sentinels have
    /// `Servers::sentinel_credentials`.
    ///
    /// * **Rotation.** Each open connection is authenticated again before its credentials
    ///   [end](crate::store::Credentials::valid_until). If the server does not accept the newer ones, they are
    ///   sent again until then.
    /// * **The end.** Nothing is sent over a connection whose credentials have ended. It is replaced, and its
    ///   next call is sent over another connection.
    /// * **A password that changes unannounced.** If the server does not accept the credentials of a new
    ///   connection, the provider is called again, once a second at most.
    /// * **A provider that fails, panics or hangs.** The store uses the credentials that it has until they end. From
    ///   then on Redis is unavailable: each decision takes the policy's [`FailureMode`](crate::FailureMode)
    ///   within the deadline, and the log, [`probe`](crate::RedisStore::probe) and the decision's
    ///   [failure](crate::Decision::failure) report the provider's error.
    ///
    /// [`connect`](Self::connect) waits up to ten seconds for the first credentials. A connection that is opened
    /// later, or by a [lazy](Self::connect_lazy) store, waits a fifth of a second, and the next attempt finds the
    /// answer of a slower provider.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use tower_ratelimit::{RedisStore, store::Credentials};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// // Stands for a request to the identity service.
    /// let token = async || Ok("a token");
    /// let provider = move || async move {
    ///     let end = SystemTime::now() + Duration::from_secs(15 * 60);
    ///     Ok(Credentials::new("limits", token().await?).valid_until(end))
    /// };
    /// let store = RedisStore::builder().credentials(provider).connect_lazy("redis://127.0.0.1:6379")?;
    ///
    /// let twice = RedisStore::builder().credentials(provider).connect_lazy("redis://:password@127.0.0.1");
    /// assert!(twice.unwrap_err().to_string().starts_with("the URL has a user or a password"));
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.authenticator = Some(Arc::new(Authenticator::new(provider)));
        self
    }

    /// Takes the time from `clock`. Defaults to the clock of the Redis server.
    ///
    /// For tests. Keys written under a manual clock expire after an hour of the server's time.
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Checks the settings.
    pub(super) fn check(&self) -> Result<(), Error> {
        let printable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        ensure!(
            (1..=64).contains(&self.prefix.len()) && self.prefix.bytes().all(printable),
            "a Redis key prefix must have 1 to 64 printable ASCII characters, without spaces and braces"
        );
        ensure!(!self.deadline.is_zero(), "a deadline must be above zero: every decision would time out");
        ensure!(self.pool_size > 0, "a pool must have at least 1 connection");
        #[cfg(feature = "cluster")]
        if !(1..=Shards::MAX).contains(&self.cluster_shards) {
            return Err(Error::invalid(
                "a Redis Cluster can have 1 to 1024 shards; two to four for each primary are best",
            ));
        }
        Ok(())
    }
}
