//! [`LivePolicies`]: the handle on policies that change while the service runs.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;
use tower_ratelimit::{
    Error, Policy, PolicySource,
    policy::{Enforcement, EnforcementSwitch},
};

use super::{
    file::PolicyFile,
    follow::{Follower, Target as _, runtime},
    history::PolicyChange,
    set::Set,
};
#[cfg(feature = "redis")]
use super::{
    follow::Origin,
    hash::{ENFORCEMENT, MOVED},
    parsed::Parsed,
};
#[cfg(feature = "redis")]
use tower_ratelimit::store::RedisHash;

/// Named policies that change while the service runs, from a file or from Redis. Cloning gives another handle
/// on them.
///
/// [`file`](Self::file) reads a file in TOML, JSON or YAML. `LivePolicies::redis` reads a hash in Redis, shared by all
/// instances. For policies from elsewhere, such as a configuration service, use [`PolicySource::watched`].
///
/// # What happens to a change
///
/// * **All or nothing.** If one policy of the file or the hash is invalid, all stay as they are, and the
///   layers keep using them. [`last_error`](Self::last_error) and a warning in the log state the policy, the
///   entry and what to write. The warning is logged once per error, not once per read.
/// * **Policies in use cannot disappear.** If a policy used by a layer or a [`PolicySource`] is missing, the
///   change is invalid: it may be a typing error or half a file, and requests must not become unlimited.
///   Policies that are not in use can be removed.
/// * **The switch always moves.** The field `@enforcement` of a hash takes effect even if other fields are
///   invalid or wait for a version. A file must be valid as a whole.
/// * **Every change is logged**, as old and new values: at info, or at warn if the switch moves or a hash is
///   gone.
/// * **Counts** are kept if the quota changes, and start again if the algorithm changes: [all
///   changes](tower_ratelimit::policy#what-happens-to-the-counts).
/// * **A request reads each policy once.** If several policies change together, a request may still see the
///   old version of some.
///
/// The file or the hash is read until the last handle, [`PolicySource`] and layer made from it is dropped, or
/// the runtime is shut down.
///
/// # Example
///
/// ```
/// use std::{fs, time::Duration};
/// use tower_ratelimit::{Key, MemoryStore, Quota, RateLimitLayer};
/// use tower_ratelimit_operate::live::LivePolicies;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("live-policies-{}.toml", std::process::id()));
/// fs::write(&path, "
///     [[policies]]
///     name = 'api'
///     quota = '5/min'
/// ")?;
/// let mut live = LivePolicies::file(&path)?.poll_every(Duration::from_millis(50));
/// let layer = RateLimitLayer::new(MemoryStore::new(), live.get("api")?, Key::new("all"))
///     .enforcement(live.enforcement());
///
/// fs::write(&path, "
///     [[policies]]
///     name = 'api'
///     quota = '10/min burst 20'
/// ")?;
/// live.changed().await;
/// assert_eq!(live.current()[0].quota(), Quota::per_minute(10).burst(20));
/// assert_eq!((live.version(), live.last_error().is_none()), (1, true));
///
/// let error = live.get("apl").unwrap_err().to_string();
/// assert!(error.ends_with("has no policy `apl`: it has `api`"), "{error}");
/// # drop(layer);
/// # fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LivePolicies {
    set: Arc<Set>,
    versions: watch::Receiver<u64>,
    /// Where operators change them for all instances.
    #[cfg(feature = "redis")]
    pub(super) hash: Option<RedisHash>,
}

impl LivePolicies {
    /// Reads policies from the file at `path`, and reads it again every 500 ms, or at the interval of
    /// [`poll_every`](Self::poll_every).
    ///
    /// The file is JSON if its name ends with `.json`, YAML if it ends with `.yaml` or `.yml`, which requires
    /// the feature `yaml`, and otherwise TOML.
    ///
    /// The policies are tables `[[policies]]`, as in [any configuration file](crate::config#entries).
    /// `enforcement`, above them, sets the [switch](Self::enforcement): `"on"`, the default, `"report-only"`
    /// or `"off"`.
    ///
    /// ```toml
    /// enforcement = "on"
    ///
    /// [[policies]]
    /// name = "login"
    /// quota = "5/min"
    /// algorithm = "sliding-log"
    /// failure_mode = "closed"
    ///
    /// [[policies]]
    /// name = "api"
    /// quota = "10/s burst 20"
    /// ```
    ///
    /// The same in YAML:
    ///
    /// ```yaml
    /// enforcement: "on"
    /// policies:
    ///   - { name: login, quota: 5/min, algorithm: sliding-log, failure_mode: closed }
    ///   - { name: api, quota: 10/s burst 20 }
    /// ```
    ///
    /// Changes are found by content, so Kubernetes ConfigMaps, symbolic links and editors that rename files
    /// work. If the file is missing for a while, the policies stay. A file is used when two reads 50 ms apart
    /// agree, so a half-written file is not used, even when the service starts. If your program writes more
    /// slowly, let it write another file and rename it. Files are read and parsed outside the runtime's
    /// worker threads, and an invalid file is parsed once. A file system that does not answer for five
    /// seconds is an error.
    ///
    /// This call blocks while it reads the file twice, for 50 ms or more.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](tower_ratelimit::ErrorKind::InvalidConfig): the file cannot be read, is larger than
    ///   1 MiB, has more than 64 lists and tables in each other, has no entries, changes all the time,
    ///   or is invalid. The message names the line, the policy and the entry.
    /// * [`MissingSetup`](tower_ratelimit::ErrorKind::MissingSetup): no Tokio runtime runs here.
    pub fn file(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let runtime = runtime("policies")?;
        let (file, content) = PolicyFile::open(path.into())?;
        let set = Arc::new(Set::new(file.name(), file.parse(&content)?));
        let policies = Self::of(set.clone());
        runtime.spawn(Follower::new(file, Some(content)).run(set));
        Ok(policies)
    }

    /// Policies of `origin`, which is read once before this returns. Until it is read without an error, the
    /// policies of `first` apply.
    #[cfg(feature = "redis")]
    pub(crate) async fn following<O: Origin<Update = Parsed>>(
        name: String,
        first: Parsed,
        origin: O,
    ) -> Result<Self, Error> {
        let runtime = runtime("policies")?;
        let set = Arc::new(Set::new(name, first));
        let policies = Self::of(set.clone());
        let mut follower = Follower::new(origin, None);
        follower.poll(&*set).await;
        runtime.spawn(follower.run(set));
        Ok(policies)
    }

    fn of(set: Arc<Set>) -> Self {
        Self {
            versions: set.versions(),
            set,
            #[cfg(feature = "redis")]
            hash: None,
        }
    }

    /// A source of the policy `name`, for a layer or a rule. It follows every change.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](tower_ratelimit::ErrorKind::InvalidConfig) if there is no such policy. The message
    /// lists those that there are.
    pub fn get(&self, name: &str) -> Result<PolicySource, Error> {
        self.set.follow(name).map(PolicySource::watched)
    }

    /// The policy `name` as it is now, for decisions without a layer. Call this for each decision.
    ///
    /// This does not count as a use of the policy: if the file or the hash removes it, this fails. To prevent
    /// that, hold a source from [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// The same as [`get`](Self::get).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Decision, Error, Key, Limiter};
    /// use tower_ratelimit_operate::live::LivePolicies;
    ///
    /// async fn may_send(limiter: &Limiter, live: &LivePolicies, tenant: &Key) -> Result<Decision, Error> {
    ///     limiter.check(&live.policy("mails")?, tenant, 1).await
    /// }
    /// ```
    pub fn policy(&self, name: &str) -> Result<Policy, Error> {
        self.set.policy(name)
    }

    /// The active policies, by name.
    #[must_use]
    pub fn current(&self) -> Vec<Policy> {
        self.set.policies()
    }

    /// The number of changes that were applied since the first read of a file, or since the defaults of a
    /// hash. If the first read of a hash changes the defaults, that is the first change. Writing a file or a
    /// hash again with the same content is not a change.
    #[must_use]
    pub fn version(&self) -> u64 {
        *self.versions.borrow()
    }

    /// The latest 100 changes that were applied, the latest first.
    #[must_use]
    pub fn recent_changes(&self) -> Vec<PolicyChange> {
        self.set.recent_changes()
    }

    /// Why the policies stay as they are: the file or the hash is invalid or cannot be read, the hash has
    /// changed but its `@version` has not, or the runtime that read it was shut down. `None` once that is
    /// over. The metric `ratelimit_failed_policy_sources` counts these.
    ///
    /// Use it in a health check or an administration page. It shows no password.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        self.set.health().error()
    }

    /// Waits for a change that this handle has not waited for yet. A new handle has seen what its original
    /// has. If the first read of a hash changed the defaults, the first call returns immediately.
    ///
    /// The future can be dropped at any time. It never completes once the runtime that made the policies is
    /// shut down.
    pub async fn changed(&mut self) {
        // The sender lives as long as this handle.
        let _ = self.versions.changed().await;
    }

    /// Moves the [switch](Self::enforcement). With policies in Redis, the fields `@enforcement` and `@moved` are
    /// written, and all instances follow within a second, even one whose switch was moved alone; this one does so
    /// immediately. With a file, only this process moves, until the value in the file changes.
    ///
    /// The Redis user needs `+hset`, which is part of [`acl_rule`](tower_ratelimit::RedisStore::acl_rule).
    ///
    /// # Errors
    ///
    /// Redis could not be written to: no instance moves. While it is unavailable, move the switch of each
    /// instance.
    pub async fn set_enforcement(&self, enforcement: Enforcement) -> Result<(), Error> {
        #[cfg(feature = "redis")]
        if let Some(hash) = &self.hash {
            let mark = format!("{:016x}", fastrand::u64(..));
            hash.set(&[(ENFORCEMENT, &enforcement.to_string()), (MOVED, &mark)]).await?;
        }
        self.enforcement().set(enforcement);
        Ok(())
    }

    /// Whether [`set_enforcement`](Self::set_enforcement) moves the switch of all instances.
    #[must_use]
    pub const fn moves_all_instances(&self) -> bool {
        #[cfg(feature = "redis")]
        let is_shared = self.hash.is_some();
        #[cfg(not(feature = "redis"))]
        let is_shared = false;
        is_shared
    }

    /// The switch that the file or the hash moves. Give it to layers with
    /// [`RateLimitLayer::enforcement`](tower_ratelimit::RateLimitLayer::enforcement).
    ///
    /// If you move it, it stays there until the value in the file or the hash changes, or
    /// [`set_enforcement`](Self::set_enforcement) moves all instances.
    #[must_use]
    pub fn enforcement(&self) -> &EnforcementSwitch {
        self.set.enforcement()
    }

    /// Sets the time between two reads, for all handles. Defaults to 500 ms; at least 10 ms. Each pause is up
    /// to a tenth shorter or longer, so that instances do not read together. Takes effect after the current
    /// pause.
    #[must_use]
    pub fn poll_every(self, interval: Duration) -> Self {
        self.set.health().set_interval(interval);
        self
    }
}

impl fmt::Debug for LivePolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LivePolicies")
            .field("policies", &self.current())
            .field("version", &self.version())
            .field("enforcement", &self.enforcement().get())
            .field("last_error", &self.last_error())
            .finish()
    }
}
