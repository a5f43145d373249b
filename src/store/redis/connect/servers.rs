//! Which servers a store connects to.

use std::fmt;

#[cfg(feature = "sentinel")]
use redis::RedisConnectionInfo;

/// Which servers a [`RedisStore`](crate::RedisStore) connects to: one, a Redis Cluster (`cluster`), or the
/// primary of Redis Sentinel (`sentinel`). A plain URL means a single server.
///
/// | URL | |
/// |---|---|
/// | `redis://user:password@host:6379/0` | the user, the password, the port and the database are optional |
/// | `rediss://host:6379` | with TLS, which requires the feature `tls-rustls` |
/// | `redis+unix:///run/redis.sock?user=u&pass=p&db=0` | a Unix socket |
///
/// Special characters in the user and the password must be percent-encoded. URLs are checked when the store
/// is made.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{RedisStore, store::Servers};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder().connect_lazy("redis://127.0.0.1:6379")?;
/// let same = RedisStore::builder().connect_lazy(Servers::from("redis://127.0.0.1:6379"))?;
/// assert_eq!(store.acl_rule(), same.acl_rule());
///
/// let error = RedisStore::builder().connect_lazy("redis://127.0.0.1:port").unwrap_err();
/// assert!(error.to_string().starts_with("the Redis URL is invalid"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Servers(pub(super) Topology);

#[derive(Clone)]
pub(super) enum Topology {
    One(String),
    #[cfg(feature = "cluster")]
    Cluster(Vec<String>),
    #[cfg(feature = "sentinel")]
    Sentinel {
        urls: Vec<String>,
        primary: String,
        /// The user and the password that the sentinels require.
        credentials: RedisConnectionInfo,
    },
}

impl Servers {
    /// The Redis or Valkey Cluster of the servers at `urls`. One server that answers is enough: it lists the
    /// others.
    ///
    /// ```no_run
    /// use tower_ratelimit::{RedisStore, store::Servers};
    ///
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// let nodes = Servers::cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]);
    /// let store = RedisStore::connect(nodes).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The URLs must have the same user, password and database. Connecting succeeds even if some nodes are
    /// down.
    ///
    /// # Differences from one server
    ///
    /// * Identities are grouped into [shards](crate::store::RedisStoreBuilder::cluster_shards), and all keys
    ///   of a shard are in one hash slot: `prefix:policy:algorithm:{shard}:identity`. Each shard has its own
    ///   lanes and batches, so decisions of one shard share calls.
    /// * **Atomic per identity.** All policies of one identity are decided in one atomic step. A decision
    ///   over identities of several shards, such as an address and an API key, is made one shard after the
    ///   other, in the order of the rules. If one denies, the charges before it are refunded. So the limits
    ///   are never exceeded, but other requests may be denied until the refund. Put the rule that denies most
    ///   often first. A denial that a [penalty](crate::Policy::penalty) counts may take one more round trip.
    /// * **Connections.** Each runtime has two connections to each node: one for the first attempt, and one
    ///   that follows moved slots. All shards share them. If one breaks, the decisions under way on it fail,
    ///   because they may have been charged.
    /// * **Slot migrations.** While a slot migrates, its decisions are sent one by one. A decision on several
    ///   keys fails until all of them, including keys not yet created, are on one node.
    /// * **Failures.** While a node is down, decisions on its keys fail, and the policy's
    ///   [`FailureMode`](crate::FailureMode) applies; other nodes' keys are decided as usual. If a node
    ///   hangs, decisions on other nodes' keys stall for up to 40 ms and some round trips whenever a slot has
    ///   moved; if its host is lost, once for up to a quarter of a second. What is not decided by its
    ///   deadline then fails too. When a replica takes over, charges that were not replicated are lost, and
    ///   that much can be admitted again.
    /// * **Clocks.** Each node uses its own clock. If a slot migrates to a node whose clock is ahead, its
    ///   keys replenish earlier by that difference.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    #[must_use]
    pub fn cluster(urls: impl IntoIterator<Item: AsRef<str>>) -> Self {
        Self(Topology::Cluster(urls.into_iter().map(|url| url.as_ref().to_owned()).collect()))
    }

    /// The server that the Redis or Valkey sentinels at `urls` monitor under the name `primary`. List all
    /// sentinels, although one that answers is enough to start.
    ///
    /// `primary` is the first argument of `sentinel monitor` in sentinel.conf. The user, the password and the
    /// database in the URLs are for the primary and its replicas, and must be the same in all URLs; for the
    /// sentinels, use [`sentinel_credentials`](Self::sentinel_credentials). With `rediss://`, both are
    /// reached with TLS. The certificates must then be valid for what the sentinels announce: addresses, or
    /// host names with `sentinel announce-hostnames`.
    ///
    /// ```no_run
    /// use tower_ratelimit::{RedisStore, store::Servers};
    ///
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let store = RedisStore::connect(Servers::sentinel(sentinels, "mymaster")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Failover
    ///
    /// All sentinels are queried for the primary whenever a connection is made, and once a second while there
    /// is traffic. The store follows the majority of those that answer, if at least two agree or only one is
    /// listed; a connection is made even if only one answers. A server that they name must confirm with
    /// `ROLE` that it is a primary, so [`acl_rule`](crate::RedisStore::acl_rule) includes `+role`. A user of
    /// the sentinels needs `+sentinel|get-master-addr-by-name` and `+sentinel|masters`.
    ///
    /// When another primary is named, connections to the old one are replaced, even if the old one still
    /// accepts writes, as it does for seconds after `SENTINEL FAILOVER`. The same happens if the primary
    /// breaks its connections, hangs for a second or answers `READONLY`. Until then, decisions that fail take
    /// the policy's [`FailureMode`](crate::FailureMode). Charges that were not replicated to the new primary
    /// are lost, and that much can be admitted again. That includes what the old primary admits before the
    /// store switches over. If the old primary is cut off from its replicas and the sentinels while the store
    /// still reaches it, `min-replicas-to-write` bounds what it admits.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    #[must_use]
    pub fn sentinel(urls: impl IntoIterator<Item: AsRef<str>>, primary: impl Into<String>) -> Self {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let credentials = RedisConnectionInfo::default();
        Self(Topology::Sentinel { urls, primary: primary.into(), credentials })
    }

    /// Sets the user and the password that the sentinels require. Defaults to none. If the sentinels have a
    /// password but no users, pass `default` or an empty `user`. Has no effect on servers other than
    /// [`sentinel`](Self::sentinel).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{RedisStore, store::Servers};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let servers = Servers::sentinel(sentinels, "limits").sentinel_credentials("", "a password");
    /// assert!(!format!("{servers:?}").contains("a password"));
    /// let store = RedisStore::builder().connect_lazy(servers)?;
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    #[must_use]
    pub fn sentinel_credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        if let Topology::Sentinel { credentials, .. } = &mut self.0 {
            let user = Some(user.into()).filter(|user| !user.is_empty());
            let user = user.unwrap_or_else(|| "default".to_owned());
            *credentials = RedisConnectionInfo::default().set_username(user).set_password(password.into());
        }
        self
    }
}

impl<T: AsRef<str>> From<T> for Servers {
    fn from(url: T) -> Self {
        Self(Topology::One(url.as_ref().to_owned()))
    }
}

/// Shows no URL, because a URL may have a password.
impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Topology::One(_) => "Servers::from(..)",
            #[cfg(feature = "cluster")]
            Topology::Cluster(_) => "Servers::cluster(..)",
            #[cfg(feature = "sentinel")]
            Topology::Sentinel { .. } => "Servers::sentinel(..)",
        })
    }
}
