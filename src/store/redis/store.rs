//! [`RedisStore`]: its parts, and what a program calls in addition to decisions.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    connect::{RedisStoreBuilder, Servers},
    deny_cache::DenyCache,
    hash::RedisHash,
    instances::Instances,
    job::KeyNames,
    lease::{LeaseStatus, Leases},
    script::{Script, Scripts},
    transport::{Link, PROBE_TIMEOUT},
};
use crate::{
    base::Error,
    store::{LocalCounts, Store, StoreClock, StoreIdentity},
};

/// A store that keeps the counts in Redis (6.2 or later, 64-bit) or Valkey, shared by all instances of a
/// service. Cloning gives another handle on the same connections.
///
/// This page is about one server. For a Redis Cluster, use the feature `cluster` and `Servers::cluster`; for
/// Redis Sentinel, the feature `sentinel` and `Servers::sentinel`. For TLS, use the feature `tls-rustls` and
/// a `rediss://` URL. The guide [Redis](crate::guide::redis) has settings, sizes and permissions.
///
/// A decision is one `EVALSHA`, alone or together with others, so it is atomic. It uses the server's clock,
/// so the clocks of instances may differ. If the server lost its scripts, by a restart or `SCRIPT FLUSH`, the
/// first call is repeated as `EVAL` with the script's text, and no decision fails. In addition, while there
/// are decisions, each instance announces itself every 5 seconds, and the store checks connections with
/// `PING`.
///
/// # Keys
///
/// Keys have the form `prefix:policy:algorithm:{identity}`, or `prefix:policy:algorithm:{shard}:identity` in
/// a Cluster. Each has a TTL. A [reset](crate::Operator::reset) leaves one with `algorithm%reset` in the place of
/// `algorithm`. If the server's clock is set back, keys that are not used again expire later by
/// that difference.
///
/// If a key holds another program's value, decisions on it fail with
/// [`ForeignValue`](crate::ErrorKind::ForeignValue), and the value is never overwritten. Only a
/// [reset](crate::Operator::reset) removes it.
///
/// # Eviction
///
/// Clients that can invent identities can fill Redis with keys. `maxmemory-policy` determines what happens
/// when its memory is full:
///
/// | policy | what happens |
/// |---|---|
/// | `volatile-ttl` | **Recommended.** Evicts the keys nearest to their reset, which loses the least |
/// | `noeviction` | Every charge fails, and its policy's [`FailureMode`](crate::FailureMode) applies. Denials still work |
/// | `allkeys-*`, `volatile-lru`, `volatile-lfu`, `volatile-random` | Can evict exhausted keys, whose clients are then admitted again |
///
/// Use a separate Redis for the limits, or they compete for memory with other data. If clients can invent an
/// identity, such as an API key that is not verified yet, add a policy on one that they cannot invent, such
/// as their address. Policies are decided all or nothing, so a request denied because of its address creates
/// no other keys.
///
/// # Connections
///
/// A *lane* carries one batch of decisions at a time to Redis. There are three lanes, and six over a slow
/// network. A decision is sent immediately if a lane is free. While all lanes are in use, decisions wait and
/// share the next batch, so throughput grows with load, and eight connections are enough. A batch has up to
/// 128 decisions and blocks Redis for at most about 2 ms, even with slow algorithms. Each decision in it is
/// all or nothing, has its own error and deadline, and can be dropped.
///
/// Some decisions need no call: an exhausted key is denied from the
/// [`deny_cache`](RedisStoreBuilder::deny_cache), and a hot key can be charged from units on
/// [lease](crate::Policy::max_lease).
///
/// # Failures
///
/// A decision takes at most the [`deadline`](RedisStoreBuilder::deadline), including the wait for a
/// connection. A batch without a reply by then may have charged, and is never sent again. If Redis is so busy
/// that a decision cannot be sent within the deadline, it fails with
/// [`StoreBusy`](crate::ErrorKind::StoreBusy); if Redis answers nothing in that time, with
/// [`StoreUnreachable`](crate::ErrorKind::StoreUnreachable). When a decision fails, its policy's
/// [`FailureMode`](crate::FailureMode) applies.
///
/// If a connection breaks during a batch, the decisions of that batch fail. The store replaces the connection
/// and checks the idle ones. If Redis had closed an idle connection, the batch is sent again on another one,
/// except for decisions that lease units and refunds that would return units twice, which are never sent twice.
///
/// With the feature `tracing`, the store logs the start of an outage at warn and its end at info, with its
/// length.
///
/// # Runtimes
///
/// A store can be used in several Tokio runtimes, one after the other or at the same time: in a `static`,
/// with one runtime for each core, or in a second runtime for background work.
///
/// * Each runtime has its own connections, up to [`pool_size`](RedisStoreBuilder::pool_size), and its own
///   lanes, probes and timers. The first decision in a runtime opens its first connection. When the runtime
///   ends, they are dropped.
/// * Runtimes share the state of the circuit breaker, leases, the deny cache, and the units to be charged
///   after an outage.
/// * A runtime that is blocked, idle or shut down does not delay another runtime's decisions, except with
///   [your own pool](RedisStoreBuilder::build), whose connections belong to the runtimes that made them.
/// * A decision that is polled and then not polled again, as in `buffer_unordered` or `select!`, does not
///   delay others.
/// * An answer belongs to the runtime in which it is first polled. Time in which that runtime is blocked does
///   not count against its deadline, except in a Cluster. A permit is renewed by the runtime of its decision:
///   if that runtime is blocked or idle for longer than two thirds of the period, the permit may expire.
/// * A decision that is polled outside a runtime fails with [`MissingSetup`](crate::ErrorKind::MissingSetup).
///   A runtime without timers panics at the first use of the store: build it with `enable_all`.
/// * Under a paused clock (`start_paused`), deadlines pass before Redis answers. Test with
///   [`MemoryStore::with_clock`](crate::MemoryStore::with_clock) instead.
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::{Key, Limiter, Policy, Quota, RedisStore};
///
/// # async fn example() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder().prefix("shop").connect("redis://127.0.0.1:6379").await?;
/// let limiter = Limiter::new(store);
/// let login = Policy::new("login", Quota::per_hour(1));
///
/// // Over all instances:
/// assert!(limiter.check(&login, &Key::new("alice"), 1).await?.is_admitted());
/// assert!(!limiter.check(&login, &Key::new("alice"), 1).await?.is_admitted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    pub(super) link: Arc<dyn Link>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) names: KeyNames,
    pub(super) deadline: Duration,
    pub(super) clock: StoreClock,
    pub(super) deny_cache: Option<Arc<DenyCache>>,
    pub(super) leases: Arc<Leases>,
    pub(super) local: Arc<LocalCounts<dyn Store>>,
    /// Counts the instances; `None` with a manual clock.
    pub(super) instances: Option<Arc<Instances>>,
    pub(super) identity: Arc<StoreIdentity>,
    /// Whether a hash was made.
    pub(super) has_hashes: Arc<AtomicBool>,
}

impl RedisStore {
    /// A builder, to set the prefix, the deadline, the deny cache and the clock.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }

    /// Connects to the server at a URL, such as `redis://user:password@127.0.0.1:6379/0`, or to other
    /// [servers](Servers), with the default settings.
    ///
    /// Fails if no server can be reached, or if Redis cannot make decisions, so configuration errors show
    /// when the service starts. To find them, it runs a [probe](Self::probe), and logs other findings at
    /// warn, such as an [eviction policy](Self#eviction) that loses exhausted limits. Each step takes at most
    /// a second and a half.
    ///
    /// Most services should exit if this fails. To start without Redis, use
    /// [`connect_lazy`](RedisStoreBuilder::connect_lazy): until Redis answers, each policy's
    /// [`FailureMode`](crate::FailureMode) applies.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](crate::ErrorKind::InvalidConfig): a URL is malformed or missing, or the URLs of a
    ///   Redis Cluster or of sentinels differ in more than the address.
    /// * [`StoreUnreachable`](crate::ErrorKind::StoreUnreachable): no server answers, or it does not accept
    ///   the password.
    /// * [`StoreFailed`](crate::ErrorKind::StoreFailed): the probe found that decisions fail. The message
    ///   states what to change.
    ///
    /// No message shows a password.
    pub async fn connect(servers: impl Into<Servers>) -> Result<Self, Error> {
        Self::builder().connect(servers).await
    }

    /// The units on [lease](crate::Policy::max_lease) in this store now. Under traffic, the value may be
    /// stale immediately.
    ///
    /// After [`Limiter::drain`](crate::Limiter::drain), no units are on lease unless it failed.
    #[must_use]
    pub fn lease_status(&self) -> LeaseStatus {
        self.leases.status()
    }

    /// A hash on this Redis, for what instances share in addition to counts. Its key is the
    /// [prefix](RedisStoreBuilder::prefix), a colon and `name`. From then on, [`acl_rule`](Self::acl_rule) includes its
    /// commands.
    ///
    /// A name with braces is a key of a limit. Choose one without.
    #[must_use]
    pub fn hash(&self, name: &str) -> RedisHash {
        self.has_hashes.store(true, Ordering::Relaxed);
        let key = format!("{}:{name}", self.names.prefix()).into();
        RedisHash { link: self.link.clone(), key, timeout: self.deadline.min(PROBE_TIMEOUT) }
    }

    /// The [prefix](RedisStoreBuilder::prefix) of every key.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.names.prefix()
    }

    /// The number of instances that use the limits of this prefix, as last seen: those that had traffic in
    /// the last 15 seconds. `None` until Redis has reported it: to [`connect`](Self::connect), or to the
    /// first announcement, when the store is 5 seconds old.
    ///
    /// While it charges, each instance announces itself in Redis every 5 seconds, and reads how many others
    /// have. [`FailureMode::Local`](crate::FailureMode::Local) divides limits by this number, which does not
    /// change while Redis is unavailable. With a [manual clock](RedisStoreBuilder::manual_clock), instances
    /// are not counted.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// let store = tower_ratelimit::RedisStore::connect("redis://127.0.0.1:6379").await?;
    /// // Until this instance has traffic, it counts only the others. At least 1.
    /// assert!(store.instances() >= Some(1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn instances(&self) -> Option<u32> {
        Some(self.local.instances()).filter(|instances| *instances > 0)
    }

    /// The minimum permissions that a Redis user needs for this store, as arguments of `ACL SETUSER`: keys
    /// under the [prefix](RedisStoreBuilder::prefix), and the commands of the store and the built-in
    /// algorithms, with `+select` if the URL has a database other than 0, and with the commands of
    /// [hashes](Self::hash) once one was made. Your own algorithm may need more, a list of keys or bans needs
    /// `+scan`, and [`probe`](Self::probe) needs `+info` to see the eviction policy.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let store = RedisStore::builder().prefix("shop").connect_lazy("redis://127.0.0.1:6379")?;
    /// // ACL SETUSER limiter on >password ~shop:* -@all ...
    /// assert!(store.acl_rule().starts_with("~shop:* -@all +evalsha +eval +ping "));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn acl_rule(&self) -> String {
        let mut rule = format!("~{} -@all", self.names.pattern_of_all());
        let store_commands = self.link.commands().iter().map(|command| (*command).to_owned());
        let commands = Script::built_in().commands();
        let has_hashes = self.has_hashes.load(Ordering::Relaxed);
        let of_hashes = super::hash::COMMANDS.into_iter().filter(|_| has_hashes);
        // Only a reset calls it.
        let others = of_hashes.chain(["pttl"]).map(ToOwned::to_owned);
        for command in store_commands.chain(others).chain(commands) {
            rule.push_str(" +");
            rule.push_str(&command);
        }
        rule
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.names.prefix())
            .field("deadline", &self.deadline)
            .field("leases", &self.leases.status())
            .finish_non_exhaustive()
    }
}
