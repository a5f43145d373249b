//! Counts in Redis, shared by every instance.

mod call;
mod clock;
#[cfg(feature = "cluster")]
mod cluster;
mod denied;
mod error;
mod health;
mod leases;
mod link;
mod queue;
mod reply;
mod scripts;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bb8_redis::{
    RedisConnectionManager,
    bb8::{ManageConnection, Pool},
};
use redis::{RedisError, aio::ConnectionLike};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout, timeout_at},
};

#[cfg(feature = "cluster")]
use self::cluster::Clustered;
use self::{
    call::Job,
    denied::Denied,
    health::{ConnectErrors, Health},
    leases::{Leases, Terms},
    link::{Link, Pooled, in_time, too_late},
    scripts::Scripts,
};
use super::{Answer, Store};
use crate::{Action, Charge, Decision, Error, ErrorKind, Key, ManualClock, Policy, script::Script};

/// Counts in Redis 6.2 or later, or Valkey, shared by every instance of a service. Cloning gives
/// another handle on the same pool. What follows is about one server; for a Redis Cluster, with the feature
/// `cluster`, see `connect_cluster`.
///
/// Every decision is made in one `EVALSHA` of one script, so it is atomic, and by the server's clock, so
/// instances whose clocks differ agree. Nothing else is sent: no PING before it, no second command after
/// it. When the server has lost its scripts, by a restart or `SCRIPT FLUSH`, the first decision to notice
/// loads them again and none fails.
///
/// # Keys
///
/// `prefix:policy:algorithm:{identity}`, each with a TTL. The braces are the Redis Cluster hash tag.
///
/// A key that holds a value of another program is an error, and is never overwritten or removed, except by a
/// [reset](crate::Limiter::reset), which removes what is there.
///
/// # Eviction
///
/// Clients that can invent identities can fill Redis with keys. `maxmemory-policy` decides what happens when its
/// memory is full:
///
/// | policy | what happens |
/// |---|---|
/// | `volatile-ttl` | **Use this one.** The keys nearest to their reset go first, which lose the least |
/// | `noeviction` | decisions that need a new key fail, and go by their policy's [`FailureMode`](crate::FailureMode) |
/// | `allkeys-*`, `volatile-lru`, `volatile-lfu`, `volatile-random` | exhausted keys are forgotten, and their clients are admitted again |
///
/// Give the limits a Redis of their own, or the limiter competes with what else is stored. And limit what clients
/// can invent, such as an API key that is not checked yet, together with what they cannot, such as their address:
/// policies are decided all or nothing, so a request that the address' policy denies makes no key for any other.
///
/// # Connections
///
/// A decision is sent at once where one of four lanes is free; a connection carries one call at a time. While
/// all are in use, decisions gather and go together in the next call: each is still all or nothing, has its own
/// error and its own deadline, and can be dropped. A call carries up to 128 decisions, and no more than take about
/// 2 milliseconds of Redis, so that no policy keeps others waiting. So one Redis makes more decisions the more are asked for at once, and a pool of eight connections is plenty.
///
/// A key that has nothing left is refused without a call, see [`deny_cache`](Self::deny_cache), and a hot one
/// can be admitted without one, see [`Policy::leased`].
///
/// A connection that was closed while it was idle fails nothing but a refund, which is never sent twice. One that
/// breaks while a call is under way
/// fails that call's decisions. It is then replaced, whatever the pool's own settings, and the idle ones are
/// checked. A decision takes at most the [`deadline`](Self::deadline), in which waiting for a connection is
/// included. What was sent and not answered by then may have been charged; it is never sent again.
///
/// What cannot be sent within the deadline because Redis is busy is decided by its policy's
/// [`FailureMode`](crate::FailureMode), with a [`StoreBusy`](ErrorKind::StoreBusy) error.
///
/// With the feature `tracing`, one line at warn says when trouble with the server began, and one at info
/// when it has been over for five seconds.
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::{Key, Limiter, Policy, Quota, RedisStore};
///
/// # async fn example() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?.prefix("shop");
/// let limiter = Limiter::new(store);
/// let login = Policy::new("login", Quota::per_hour(1));
///
/// // Whichever instance asks:
/// assert!(limiter.check(&login, &Key::new("alice"), 1).await?.is_allowed());
/// assert!(!limiter.check(&login, &Key::new("alice"), 1).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<dyn Link>,
    scripts: Arc<Scripts>,
    prefix: Arc<str>,
    deadline: Duration,
    clock: Option<ManualClock>,
    denied: Option<Arc<Denied>>,
    /// How long a refusal is remembered.
    remembering: Duration,
    leases: Arc<Leases>,
}

const DEFAULT_PREFIX: &str = "rl";
const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);
const DEFAULT_REMEMBERING: Duration = Duration::from_secs(1);
/// More than there are lanes, for those that are being replaced.
const POOL_SIZE: u32 = 8;
/// bb8 waits at most half of this between two attempts to connect.
const POOL_PATIENCE: Duration = Duration::from_millis(500);

impl RedisStore {
    /// Connects to the server at `url`, such as `redis://user:password@127.0.0.1:6379/0`, with a pool
    /// of up to 8 connections.
    ///
    /// Fails where the server cannot be reached or does not accept the script, so a mistake shows when
    /// the service starts. To start without the server, see [`connect_lazy`](Self::connect_lazy). Each step takes half a
    /// second at most. Where the server evicts keys in an order that forgets limits, see
    /// [Eviction](Self#eviction), a line at warn says so; for that the Redis user needs `+info`.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](ErrorKind::InvalidConfig): `url` is malformed.
    /// * [`StoreUnreachable`](ErrorKind::StoreUnreachable): nobody listens there, or not with this
    ///   password.
    /// * [`StoreRefused`](ErrorKind::StoreRefused): the server does not let this user load scripts.
    ///
    /// None of them shows the URL's password.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let (manager, address) = manager(url)?;
        let unreachable = |cause: RedisError| error::unreachable(&format!(" at {address}"), &cause);
        let health = Arc::new(Health::default());
        let pool = pool(&health, POOL_SIZE).build(manager).await.map_err(unreachable)?;
        let store = Self::over(Arc::new(Pooled::new(pool.clone(), health)));
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(Script::built_in().text());
        // A server that wants a password cuts off who sends it so much without one, and says so to PING.
        for command in [redis::cmd("PING"), load] {
            store.link.clone().run(command, POOL_PATIENCE).await?;
        }
        warn_of_eviction(&pool).await;
        Ok(store)
    }

    /// A store for the server at `url` that connects when it is first asked.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where `url` is malformed. The message does not show
    /// its password.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn connect_lazy(url: &str) -> Result<Self, Error> {
        let (manager, _) = manager(url)?;
        let health = Arc::new(Health::default());
        Ok(Self::over(Arc::new(Pooled::new(pool(&health, POOL_SIZE).build_unchecked(manager), health))))
    }

    /// Connects to the Redis Cluster, or Valkey's, that the servers at `urls` belong to. The first ones that
    /// answer name the others.
    ///
    /// ```no_run
    /// use tower_ratelimit::RedisStore;
    ///
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// let store = RedisStore::connect_cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # What differs from one server
    ///
    /// * All policies of one identity are in one slot, and decided in one atomic step. A decision over
    ///   several identities, such as an address and an API key, is made one identity after the other, in the
    ///   order of the rules. Where one refuses, what those before it took is given back. So never more is
    ///   admitted than the limits say, and for the moment between the two somebody else may be refused. Put first
    ///   what refuses most.
    /// * Each decision is a call of its own. The calls to one node are pipelined.
    /// * A decision whose connection breaks is asked again, on the connection that replaces it or on the node that
    ///   took over. If the first one had been carried out, it is charged twice; it is admitted once. What gives
    ///   units back, and a decision over [`Concurrency`](crate::Concurrency) or [leased](Policy::leased) units,
    ///   is not asked again but fails. So there are two connections to each node.
    /// * While a slot moves its keys are followed. A decision over several policies of one identity fails until
    ///   all of its keys are on one side, a key that was never charged included: that is how Redis answers for
    ///   several keys. While a node is down, what it decides fails by the policy's
    ///   [`FailureMode`](crate::FailureMode), and the others' keys are decided as ever; unless it hangs, with its
    ///   connections open, while slots move elsewhere or when this process starts: then others' keys may wait for
    ///   up to half a second too. When a replica takes over, what had not reached it is forgotten: that much can
    ///   be admitted again.
    /// * Time is each node's own clock. Where a slot moves to a node whose clock is ahead, its keys
    ///   are that much further on.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). A cluster some of whose nodes are down can be connected to.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub async fn connect_cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        let clients = cluster::clients(urls)?;
        let health = Arc::new(Health::default());
        let unreachable =
            |cause: RedisError| error::unreachable(&format!(" at {}", clients.addresses), &cause);
        let usual = pool(&health, cluster::CONNECTIONS).build(clients.usual).await.map_err(unreachable)?;
        let once = pool(&health, cluster::CONNECTIONS).build_unchecked(clients.once);
        let link = Arc::new(Clustered::new(usual, Some(once), health));
        link.load(&Script::built_in()).await?;
        Ok(Self::over(link))
    }

    /// A store for the Redis Cluster of the servers at `urls` that connects when it is first asked, see
    /// [`connect_cluster`](Self::connect_cluster).
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where a URL is malformed, there is none, or they differ in
    /// more than the address.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn connect_cluster_lazy<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        let clients = cluster::clients(urls)?;
        let health = Arc::new(Health::default());
        let pool = |client| pool(&health, cluster::CONNECTIONS).build_unchecked(client);
        let (usual, once) = (pool(clients.usual), pool(clients.once));
        Ok(Self::over(Arc::new(Clustered::new(usual, Some(once), health))))
    }

    /// A store on a pool of your own: bb8-redis', or any bb8 pool of redis-rs connections. With the feature
    /// `cluster`, a pool of `ClusterConnection`s too, such as one whose manager is redis-rs' `ClusterClient`; give
    /// that one a response timeout. It asks again whatever was under way when a connection broke, so units that
    /// were given back then may be given back twice.
    ///
    /// Turn bb8's `test_on_check_out` off, or every call costs a PING. Up to four connections are used at once,
    /// and others while broken ones are replaced.
    ///
    /// ```no_run
    /// use tower_ratelimit::{RedisStore, bb8_redis::{RedisConnectionManager, bb8::Pool}};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = Pool::builder()
    ///     .max_size(8)
    ///     .test_on_check_out(false)
    ///     .build(RedisConnectionManager::new("redis://127.0.0.1:6379")?)
    ///     .await?;
    /// let store = RedisStore::new(pool);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new<M>(pool: Pool<M>) -> Self
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Sync,
    {
        #[cfg(feature = "cluster")]
        if cluster::is_clustered(&pool) {
            return Self::over(Arc::new(Clustered::new(pool, None, Arc::default())));
        }
        Self::over(Arc::new(Pooled::new(pool, Arc::default())))
    }

    fn over(link: Arc<dyn Link>) -> Self {
        let prefix: Arc<str> = DEFAULT_PREFIX.into();
        Self {
            leases: Arc::new(Leases::new(link.clone(), prefix.clone(), None, None)),
            link,
            scripts: Arc::default(),
            prefix,
            deadline: DEFAULT_DEADLINE,
            clock: None,
            denied: None,
            remembering: DEFAULT_REMEMBERING,
        }
        .remembering_anew()
    }

    /// With nothing remembered, and nothing on lease, of what was asked under another prefix or clock.
    fn remembering_anew(mut self) -> Self {
        self.denied = (!self.remembering.is_zero())
            .then(|| Arc::new(Denied::new(self.remembering, self.clock.clone())));
        let (link, prefix) = (self.link.clone(), self.prefix.clone());
        self.leases = Arc::new(Leases::new(link, prefix, self.clock.clone(), self.denied.clone()));
        self
    }

    /// Makes one decision under `policy` on a key that nobody has, charge and all, and forgets it: so that
    /// a mistake in an [`Algorithm`](crate::Algorithm) of your own shows when the service starts.
    ///
    /// # Errors
    ///
    /// [`StoreRefused`](ErrorKind::StoreRefused) with what Redis says of the Lua file, and everything a
    /// decision can fail with.
    pub async fn try_out(&self, policy: &Policy) -> Result<(), Error> {
        static TRIES: AtomicU64 = AtomicU64::new(0);
        let nobody = format!("%try-out:{}:{}", std::process::id(), TRIES.fetch_add(1, Ordering::Relaxed));
        let charge = Charge::new(policy, &Key::new(nobody), 1);
        let tried = self.decide(Action::Take, std::slice::from_ref(&charge)).await;
        self.reset(policy, &charge.key).await?;
        tried.map(|_| ())
    }

    /// What every key starts with, before a colon. Defaults to `rl`. Services that share a server and
    /// not their limits need different ones.
    ///
    /// # Panics
    ///
    /// If `prefix` is empty, longer than 64 bytes, or has a brace, a space, or anything else than
    /// printable ASCII in it: braces would move the keys to another Cluster slot.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        assert!(
            (1..=64).contains(&prefix.len())
                && prefix.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'{' && byte != b'}'),
            "a Redis key prefix must have 1 to 64 printable ASCII characters, without spaces and braces"
        );
        self.prefix = prefix.into();
        self.remembering_anew()
    }

    /// How long one decision may take, waiting for a connection and the reply included. Defaults to
    /// 50 milliseconds. What happens then is the policy's [`FailureMode`](crate::FailureMode).
    ///
    /// Redis connections give up on a reply after 500 ms by themselves, so a longer deadline only
    /// lengthens the wait for a connection.
    ///
    /// # Panics
    ///
    /// If `deadline` is zero.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        assert!(!deadline.is_zero(), "a deadline of zero lets no decision be made");
        self.deadline = deadline;
        self
    }

    /// How long a refusal may be answered from this process's memory before Redis is asked again. Defaults to
    /// one second; zero turns it off.
    ///
    /// A key that has nothing left is refused here, without Redis, until it has something again: the same
    /// verdict and the wait that is left. It holds the refusals of up to 4096 keys, some 270
    /// bytes each, for requests of one unit.
    ///
    /// What else may end a refusal early is honoured at once where it happens through this store or its
    /// clones, and within this time where another instance does it: a [reset](crate::Limiter::reset), a
    /// [refund](crate::Limiter::refund_latest), units on [lease](Policy::leased) that are returned, a higher limit
    /// under the same name. Where a request is counted by several policies, what is said of those that did not
    /// refuse it may be as old as this too.
    #[must_use]
    pub fn deny_cache(mut self, longest: Duration) -> Self {
        self.remembering = longest;
        self.remembering_anew()
    }

    /// Gives back all units on [lease](Policy::leased). To be awaited when a service shuts down, after its last
    /// request, or others miss them for as long as [`Policy::lease_bound`] says.
    ///
    /// ```no_run
    /// # async fn example(store: tower_ratelimit::RedisStore) -> Result<(), Box<dyn std::error::Error>> {
    /// # let (listener, app) = (tokio::net::TcpListener::bind("0.0.0.0:3000").await?, axum::Router::new());
    /// axum::serve(listener, app).with_graceful_shutdown(async { /* the signal to stop */ }).await?;
    /// store.return_leases().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It takes half a second at most, whatever the [`deadline`](Self::deadline) of a decision.
    ///
    /// # Errors
    ///
    /// What a decision can fail with: then some were not given back, and are not tried again.
    pub async fn return_leases(&self) -> Result<(), Error> {
        // All at once, so that they share calls.
        let back: Vec<_> = self
            .leases
            .take_all_back()
            .into_iter()
            .map(|job| tokio::spawn(self.link.clone().decide(job)))
            .collect();
        let mut result = Ok(());
        for back in back {
            let ended = Error::new(ErrorKind::StoreUnreachable, "the Tokio runtime was shut down");
            result = result.and(back.await.unwrap_or(Err(ended)).map(|_| ()));
        }
        result
    }

    /// Takes the time from `clock`. Defaults to the Redis server's clock.
    ///
    /// For tests. Keys written so live for an hour, as this clock does not move with the server's.
    #[must_use]
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self.remembering_anew()
    }

    /// The least a Redis user needs for this store, in the words of `ACL SETUSER`: keys under the
    /// [prefix](Self::prefix) and the commands that the built-in algorithms use. An algorithm of your own
    /// may need more.
    ///
    /// For Redis 7 and later; Redis 6 wants `+script` in place of `+script|load`.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::RedisStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let store = RedisStore::connect_lazy("redis://127.0.0.1:6379")?.prefix("shop");
    /// // ACL SETUSER limiter on >password ~shop:* -@all ...
    /// assert!(store.acl_rule().starts_with("~shop:* -@all +evalsha +script|load +ping "));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn acl_rule(&self) -> String {
        let mut prefix = String::new();
        for character in self.prefix.chars() {
            // The pattern is a glob.
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
                prefix.push('\\');
            }
            prefix.push(character);
        }
        let mut rule = format!("~{prefix}:* -@all");
        let ours = self.link.commands().iter().map(|&command| command.to_owned());
        for command in ours.chain(Script::built_in().commands()) {
            rule.push_str(" +");
            rule.push_str(&command);
        }
        rule
    }

    fn evaluate(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        let hot = match (action, charges) {
            (Action::Take, [charge]) if charge.policy.most_leased() > 0 && charge.cost > 0 => Some(charge),
            _ => None,
        };
        if let Some((decision, low)) = hot.and_then(|charge| self.leases.spend(charge)) {
            if low && let (Ok(runtime), [charge]) = (Handle::try_current(), charges) {
                self.lease_ahead(charge, &runtime);
            }
            return Answer::ready(Ok(decision));
        }
        let denied = match (action, &self.denied) {
            (Action::Take, Some(denied)) => match denied.look(charges) {
                Ok(decision) => return Answer::ready(Ok(decision)),
                Err(asked) => Some((denied.clone(), asked)),
            },
            (Action::Refund | Action::TakeUpTo, Some(denied)) => Some((denied.clone(), denied.asked())),
            _ => None,
        };
        let script = match self.scripts.that_knows(charges) {
            Ok(script) => script,
            Err(error) => return Answer::ready(Err(error)),
        };
        let lease = hot.and_then(|charge| self.leases.fetch(charge, false));
        let job = Job { denied, ..self.job(action, charges.to_vec(), script, lease) };
        if action == Action::Refund {
            return self.refund(job);
        }
        Answer::from_boxed(self.link.clone().decide(job))
    }

    fn job(&self, action: Action, charges: Vec<Charge>, script: Arc<Script>, lease: Option<Terms>) -> Job {
        Job {
            action,
            charges,
            prefix: self.prefix.clone(),
            time: self.clock.as_ref().map(ManualClock::micros),
            script,
            deadline: self.deadline,
            denied: None,
            lease,
        }
    }

    /// Asks for more before what is on lease runs out.
    fn lease_ahead(&self, charge: &Charge, runtime: &Handle) {
        if let Some(lease) = self.leases.fetch(charge, true) {
            let nothing = Charge::new(&charge.policy, &charge.key, 0);
            let job = self.job(Action::Take, vec![nothing], Script::built_in(), Some(lease));
            self.leases.spawn(job, runtime);
        }
    }

    /// What was spent of a lease can be given back once Redis knows of it.
    fn refund(&self, job: Job) -> Answer<Decision> {
        let (link, leases) = (self.link.clone(), self.leases.clone());
        if job.charges.iter().all(|charge| charge.policy.most_leased() == 0) {
            return Answer::from_boxed(link.decide(job));
        }
        Answer::pending(async move {
            let (allowed, deadline) = (job.deadline, in_time(job.deadline));
            for charge in &job.charges {
                if let Some(first) = leases.take_back(&charge.policy, &charge.key) {
                    // It takes its time, and no refund that was dropped or came too late drops it. Where it fails, the
                    // lease's end settles it.
                    let sent = leases.spawn(first, &Handle::current());
                    if timeout_at(deadline, sent).await.is_err() {
                        return Err(too_late(allowed));
                    }
                }
            }
            // What is left of the deadline is for the refund itself.
            let deadline = deadline.saturating_duration_since(Instant::now());
            link.decide(Job { deadline: deadline.max(Duration::from_millis(1)), ..job }).await
        })
    }
}

impl Store for RedisStore {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        self.evaluate(action, charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let mut of = String::new();
        call::write_key(&mut of, &self.prefix, policy, key);
        let mut command = redis::cmd("DEL");
        command.arg(of);
        let reply = self.link.clone().run(command, self.deadline);
        let (denied, leases) = (self.denied.clone(), self.leases.clone());
        let (policy, key) = (policy.clone(), key.clone());
        let forget = move || {
            leases.forget(&policy, &key);
            denied.iter().for_each(|denied| denied.forget(&policy, &key));
        };
        // Before it, in case nobody waits for the end of it.
        forget();
        Answer::pending(async move {
            let reply = reply.await;
            forget();
            reply.map(|_| ())
        })
    }

    fn accept(&self, policy: &Policy) -> Result<(), Error> {
        self.scripts.learn(policy)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("leases", &self.leases)
            .finish_non_exhaustive()
    }
}

/// The manager for `url`, and where it connects to, without the password.
fn manager(url: &str) -> Result<(RedisConnectionManager, String), Error> {
    let info = error::connection_info(url)?;
    let address = info.addr().to_string();
    Ok((RedisConnectionManager::new(info).map_err(|cause| error::malformed_by(&cause))?, address))
}

/// Says so where the server would evict the counts of exhausted keys. A user that may not ask is not told.
async fn warn_of_eviction(pool: &Pool<RedisConnectionManager>) {
    let asked = async {
        let mut connection = pool.get().await.ok()?;
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut *connection).await.ok()?;
        Some(info)
    };
    let Ok(Some(info)) = timeout(POOL_PATIENCE, asked).await else { return };
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    let (limited, policy) = (field("maxmemory"), field("maxmemory_policy"));
    if limited.is_none_or(|bytes| bytes == "0") {
        return;
    }
    const FORGETTING: [&str; 6] =
        ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random"];
    if let Some(policy) = FORGETTING.iter().find(|known| policy.as_deref() == Some(**known)) {
        log!(
            warn,
            maxmemory_policy = %policy,
            "Redis evicts keys in an order that forgets exhausted limits when its memory is full; set maxmemory-policy to \
             volatile-ttl, and give the limits a Redis of their own"
        );
        let _ = policy;
    }
}

fn pool<M>(health: &Arc<Health>, size: u32) -> bb8_redis::bb8::Builder<M>
where
    M: ManageConnection<Error = RedisError>,
{
    Pool::builder()
        .max_size(size)
        .min_idle(1)
        .max_lifetime(None)
        .test_on_check_out(false)
        .connection_timeout(POOL_PATIENCE)
        .error_sink(Box::new(ConnectErrors(Arc::downgrade(health))))
}
