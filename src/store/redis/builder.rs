use std::time::Duration;

use crate::{error::Error, store::ManualClock};

/// Settings of a [`RedisStore`](crate::RedisStore), from [`RedisStore::builder`](crate::RedisStore::builder).
///
/// Its last call names the server, or the pool, and checks the settings: so each can come from a configuration.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::RedisStore;
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
/// let error = RedisStore::builder().prefix("sh{o}p").connect_lazy("redis://127.0.0.1:6379").unwrap_err();
/// assert!(error.to_string().starts_with("a Redis key prefix must have 1 to 64 printable ASCII characters"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until it is told where Redis is"]
pub struct RedisStoreBuilder {
    pub(super) prefix: String,
    pub(super) deadline: Duration,
    pub(super) pool_size: u32,
    pub(super) deny_cache: Duration,
    pub(super) clock: Option<ManualClock>,
}

const DEFAULT_PREFIX: &str = "rl";
const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);
const DEFAULT_DENY_CACHE: Duration = Duration::from_secs(1);
/// More than there are lanes, for connections that are being replaced.
const DEFAULT_POOL_SIZE: u32 = 8;

impl RedisStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            deadline: DEFAULT_DEADLINE,
            pool_size: DEFAULT_POOL_SIZE,
            deny_cache: DEFAULT_DENY_CACHE,
            clock: None,
        }
    }

    /// What every key starts with, before a colon: 1 to 64 printable ASCII characters without spaces and braces.
    /// Defaults to `rl`. Services that share a server and not their limits need different prefixes.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long one decision may take, including the wait for a connection. Above zero. Defaults to 50 milliseconds.
    /// After it, the policy's [`FailureMode`](crate::FailureMode) decides.
    ///
    /// Connections give up on a reply after 500 ms, so a longer deadline only allows a longer wait for a connection.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The most connections of the pool that the store makes to one server: at least 1. Defaults to 8; four are used at
    /// once, and the others while broken ones are replaced. A Redis Cluster has one connection to each node, or two.
    pub const fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// How long a denial may be repeated from this process' memory before Redis is asked again. Defaults to one second;
    /// zero turns the cache off.
    ///
    /// A key that is exhausted is denied here, without Redis, until its wait is over: the same verdict, with the wait
    /// that is left. The cache holds the denials of up to 4096 keys, some 270 bytes each, for requests of one unit.
    ///
    /// What ends a denial early takes effect at once where it happens through this store or its clones, and within this
    /// time where another instance does it: a [reset](crate::Limiter::reset), a [refund](crate::Limiter::refund_latest),
    /// [leased](crate::Policy::leased) units that are returned, a higher limit under the same name. Where a request is
    /// counted by several policies, what is reported of those that did not deny it may be as old as this too.
    pub const fn deny_cache(mut self, longest: Duration) -> Self {
        self.deny_cache = longest;
        self
    }

    /// Takes the time from `clock`. Defaults to the Redis server's clock.
    ///
    /// For tests. Keys written under a manual clock live for an hour, as it does not move with the server's.
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Whether a store can work with these settings.
    pub(super) fn check(&self) -> Result<(), Error> {
        let printable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(printable) {
            return Err(Error::invalid(
                "a Redis key prefix must have 1 to 64 printable ASCII characters, without spaces and braces",
            ));
        }
        if self.deadline.is_zero() {
            return Err(Error::invalid("a deadline must be above zero, or no decision can be made"));
        }
        if self.pool_size == 0 {
            return Err(Error::invalid("a pool must have at least 1 connection"));
        }
        Ok(())
    }
}
