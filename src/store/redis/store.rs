use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    builder::RedisStoreBuilder,
    script::{Script, Scripts},
    shortcut::{DenyCache, DenyWatch, LeaseStatus, LeaseWatch, Leases},
    transport::{Link, in_time, too_late},
    wire::{Job, Observer, write_key},
};
use crate::{
    answer::Answer,
    decision::{Charge, Decision},
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
    store::{Action, ManualClock, Store},
};

/// Counts in Redis 6.2 or later, or Valkey, shared by every instance of a service. Cloning gives
/// another handle on the same connections. What follows is about one server; for a Redis Cluster, with the feature
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
/// A decision is sent at once if one of four lanes is free; a connection carries one call at a time. While all lanes
/// are in use, decisions wait for the next call and share it as a batch. Each is still all or nothing, has its own
/// error and its own deadline, and can be dropped. A batch has up to 128 decisions, and no more than take about
/// 2 milliseconds of Redis, so no policy delays others for longer. So one Redis makes more decisions a second the
/// more are waiting, and a pool of eight connections is enough.
///
/// An exhausted key is denied without a call, see [`deny_cache`](RedisStoreBuilder::deny_cache), and a hot key can be
/// admitted without one, see [`Policy::leased`].
///
/// A connection that was closed while it was idle fails nothing but a refund, which is never sent twice. One that
/// breaks while a call is under way fails the decisions of that call. It is then replaced, whatever the pool's own
/// settings, and the idle connections are checked. A decision takes at most the
/// [`deadline`](RedisStoreBuilder::deadline), including the wait for a connection. A call without a reply by then may
/// have charged; it is never sent again.
///
/// A decision that cannot be sent within the deadline because Redis is busy goes by its policy's
/// [`FailureMode`](crate::FailureMode), with a [`StoreBusy`](ErrorKind::StoreBusy) error.
///
/// With the feature `tracing`, one line at warn marks the start of an outage, and one at info its end, after five
/// seconds without a failure.
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
/// // On every instance:
/// assert!(limiter.check(&login, &Key::new("alice"), 1).await?.is_allowed());
/// assert!(!limiter.check(&login, &Key::new("alice"), 1).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    pub(super) link: Arc<dyn Link>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) prefix: Arc<str>,
    pub(super) deadline: Duration,
    pub(super) clock: Option<ManualClock>,
    pub(super) denied: Option<Arc<DenyCache>>,
    pub(super) leases: Arc<Leases>,
}

impl RedisStore {
    /// The settings of a new store: its prefix, deadline, deny cache and clock.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }

    /// Connects to the server at `url`, such as `redis://user:password@127.0.0.1:6379/0`, with the default settings.
    ///
    /// Fails if the server cannot be reached or does not accept the script, so a mistake shows when the service starts.
    /// To start without the server, use [`connect_lazy`](Self::connect_lazy). Each step takes half a second at most. If
    /// the server evicts keys in an order that forgets limits, see [Eviction](Self#eviction), a line at warn says so;
    /// for that the Redis user needs `+info`.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](ErrorKind::InvalidConfig): `url` is malformed.
    /// * [`StoreUnreachable`](ErrorKind::StoreUnreachable): no server answers there, or not with this password.
    /// * [`StoreFailed`](ErrorKind::StoreFailed): the server does not let this user load scripts.
    ///
    /// None of them shows the URL's password.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// A store for the server at `url` that connects when it is first used, with the default settings.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if `url` is malformed. The message does not show its password.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn connect_lazy(url: &str) -> Result<Self, Error> {
        Self::builder().connect_lazy(url)
    }

    /// Connects to the Redis or Valkey Cluster that the servers at `urls` belong to, with the default settings. The
    /// first ones that answer name the others.
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
    /// # Differences from one server
    ///
    /// * All policies of one identity are in one slot and are decided in one atomic step. A decision over several
    ///   identities, such as an address and an API key, is made one identity after the other, in the order of the
    ///   rules. If one denies, what was charged before is refunded. So never more is admitted than the limits allow,
    ///   and until the refund other requests may be denied. Put the rule first that denies most.
    /// * Each decision is a call of its own. The calls to one node are pipelined.
    /// * A decision whose connection breaks is sent again, on the connection that replaces it or to the node that took
    ///   over. If the first call had been carried out, it is charged twice and admitted once. A refund, and a decision
    ///   over [`Concurrency`](crate::algorithm::Concurrency) or [leased](Policy::leased) units, is not sent again but
    ///   fails. So there are two connections to each node.
    /// * While a slot migrates, its keys are followed. A decision over several policies of one identity fails until
    ///   all of its keys are on one side, including keys that were never charged: that is how Redis answers for
    ///   several keys. While a node is down, its decisions fail by the policy's [`FailureMode`](crate::FailureMode) and
    ///   the other nodes' keys are decided as usual; but if it hangs with its connections open, other nodes' keys may
    ///   wait for up to half a second when slots migrate elsewhere or this process starts. When a replica takes over,
    ///   what had not reached it is lost: that much can be admitted again.
    /// * Time is each node's own clock. If a slot migrates to a node whose clock is ahead, its keys are that much
    ///   further on.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). A Cluster some of whose nodes are down can be connected to.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub async fn connect_cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder().connect_cluster(urls).await
    }

    /// A store for the Redis Cluster of the servers at `urls` that connects when it is first used, with the default
    /// settings. See [`connect_cluster`](Self::connect_cluster).
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if a URL is malformed, there is none, or they differ in more than the
    /// address.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn connect_cluster_lazy<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder().connect_cluster_lazy(urls)
    }

    /// A store on your own pool of connections to one server, with the default settings: bb8-redis' pool, or any bb8
    /// pool of redis-rs connections.
    ///
    /// Turn bb8's `test_on_check_out` off, or every call costs a PING. Up to four connections are used at once, and
    /// others while broken ones are replaced.
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
    ///
    /// # Panics
    ///
    /// If the connections are to a Redis Cluster: use `new_cluster`.
    #[must_use]
    #[track_caller]
    pub fn new<M>(pool: Pool<M>) -> Self
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Sync,
    {
        match Self::builder().build(pool) {
            Ok(store) => store,
            Err(error) => panic!("{error}"),
        }
    }

    /// A store on your own pool of `ClusterConnection`s, with the default settings, such as one whose manager is
    /// redis-rs' `ClusterClient`. Give the client a response timeout. It sends again whatever was under way when a
    /// connection broke, so units that were refunded then may be refunded twice.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    #[must_use]
    pub fn new_cluster<M>(pool: Pool<M>) -> Self
    where
        M: ManageConnection<Connection = redis::cluster_async::ClusterConnection, Error = RedisError>,
    {
        match Self::builder().build_cluster(pool) {
            Ok(store) => store,
            Err(error) => unreachable!("the default settings are valid: {error}"),
        }
    }

    /// Makes one decision under `policy` on a key of its own, including the charge, and removes the key: so a mistake in
    /// your own [`Algorithm`](crate::algorithm::Algorithm) shows when the service starts.
    ///
    /// # Errors
    ///
    /// [`StoreFailed`](ErrorKind::StoreFailed) with what Redis says of the Lua file, and everything a
    /// decision can fail with.
    pub async fn try_out(&self, policy: &Policy) -> Result<(), Error> {
        static TRIES: AtomicU64 = AtomicU64::new(0);
        let unique = format!("%try-out:{}:{}", std::process::id(), TRIES.fetch_add(1, Ordering::Relaxed));
        let key = Key::new(unique);
        let tried = self.decide(Action::Charge, &[Charge::new(policy, &key, 1)]).await;
        self.reset(policy, &key).await?;
        tried.map(|_| ())
    }

    /// Returns all units on [lease](Policy::leased). Await it when a service shuts down, after its last request, or
    /// other instances miss them for as long as [`Policy::lease_bound`] says.
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
    /// It takes a second at most, whatever the [`deadline`](RedisStoreBuilder::deadline) of a decision, and waits for
    /// leases that are being returned already.
    ///
    /// # Errors
    ///
    /// What a decision can fail with: then some were not returned, and are not tried again.
    pub async fn return_leases(&self) -> Result<(), Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::new(ErrorKind::StoreUnreachable, "no Tokio runtime runs here"));
        };
        // A lease that is under way would be missed.
        self.leases.settled().await;
        // All at once, so that they share calls.
        let jobs = self.leases.take_all_back();
        let calls: Vec<_> = jobs.into_iter().map(|job| self.leases.spawn(job, &runtime)).collect();
        let mut result = Ok(());
        for call in calls {
            let ended = Error::new(ErrorKind::StoreUnreachable, "the Tokio runtime was shut down");
            result = result.and(call.await.unwrap_or(Err(ended)));
        }
        // Each of them ends by its own deadline.
        self.leases.settled().await;
        result
    }

    /// What this store has on [lease](Policy::leased) now. It is out of date at once where requests are being served.
    #[must_use]
    pub fn lease_status(&self) -> LeaseStatus {
        self.leases.status()
    }

    /// The least a Redis user needs for this store, in the words of `ACL SETUSER`: keys under the
    /// [prefix](RedisStoreBuilder::prefix) and the commands that the built-in algorithms use. An algorithm of your own
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
    /// let store = RedisStore::builder().prefix("shop").connect_lazy("redis://127.0.0.1:6379")?;
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

    /// Decides here, where what is known here is enough, or asks Redis.
    fn evaluate(&self, action: Action, charges: Vec<Charge>) -> Answer<Decision> {
        let hot = match (action, &*charges) {
            (Action::Charge, [charge]) if charge.policy().most_leased() > 0 && charge.cost() > 0 => {
                Some(charge)
            }
            _ => None,
        };
        if let Some((decision, low)) = hot.and_then(|charge| self.leases.spend(charge)) {
            if low && let (Ok(runtime), [charge]) = (Handle::try_current(), &*charges) {
                self.lease_ahead(charge, &runtime);
            }
            return Answer::ready(Ok(decision));
        }
        let asked = match (action, &self.denied) {
            (Action::Charge, Some(denied)) => match denied.look(&charges) {
                Ok(decision) => return Answer::ready(Ok(decision)),
                Err(asked) => Some((denied, asked)),
            },
            (Action::Refund | Action::ChargeUpTo, Some(denied)) => Some((denied, denied.asked())),
            _ => None,
        };
        let script = match self.scripts.that_knows(&charges) {
            Ok(script) => script,
            Err(error) => return Answer::ready(Err(error)),
        };
        let (lease, leases) = hot.and_then(|charge| self.leases.fetch(charge, false)).unzip();
        let frees = leases.as_ref().is_some_and(LeaseWatch::frees_some);
        let denials = asked.map(|(denied, asked)| DenyWatch::new(denied, asked, action, frees));
        let observer: Option<Box<dyn Observer>> = match (leases, denials) {
            (None, None) => None,
            (None, Some(denials)) => Some(Box::new(denials)),
            both => Some(Box::new(both)),
        };
        let job = Job { lease, observer, ..self.job(action, charges, script) };
        if action == Action::Refund { self.refund(job) } else { self.link.clone().decide(job) }
    }

    fn job(&self, action: Action, charges: Vec<Charge>, script: Arc<Script>) -> Job {
        Job {
            action,
            charges,
            prefix: self.prefix.clone(),
            time: self.clock.as_ref().map(ManualClock::micros),
            script,
            deadline: self.deadline,
            lease: None,
            observer: None,
        }
    }

    /// Leases more before what is on lease runs out.
    fn lease_ahead(&self, charge: &Charge, runtime: &Handle) {
        if let Some((lease, watch)) = self.leases.fetch(charge, true) {
            let nothing = Charge::new(charge.policy(), charge.key(), 0);
            let job = self.job(Action::Charge, vec![nothing], Script::built_in());
            self.leases.spawn(Job { lease: Some(lease), observer: Some(Box::new(watch)), ..job }, runtime);
        }
    }

    /// What was spent of a lease can be refunded once Redis knows of it, so the lease is returned first.
    fn refund(&self, job: Job) -> Answer<Decision> {
        let (link, leases) = (self.link.clone(), self.leases.clone());
        if job.charges.iter().all(|charge| charge.policy().most_leased() == 0) {
            return link.decide(job);
        }
        Answer::pending(async move {
            let (allowed, deadline) = (job.deadline, in_time(job.deadline));
            for charge in &job.charges {
                if let Some(first) = leases.take_back(charge.policy(), charge.key()) {
                    // A refund that is dropped or comes too late does not drop it. If it fails, the lease's end settles
                    // it.
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
        self.evaluate(action, charges.to_vec())
    }

    fn decide_one(&self, action: Action, charge: Charge) -> Answer<Decision> {
        self.evaluate(action, vec![charge])
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let mut of = String::new();
        write_key(&mut of, &self.prefix, policy, key);
        let mut command = redis::cmd("DEL");
        command.arg(of);
        let reply = self.link.clone().run(command, self.deadline);
        let (denied, leases) = (self.denied.clone(), self.leases.clone());
        let (policy, key) = (policy.clone(), key.clone());
        let forget = move || {
            leases.forget(&policy, &key);
            denied.iter().for_each(|denied| denied.forget(&policy, &key));
        };
        // Before it as well, in case the caller does not wait for the reply.
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
