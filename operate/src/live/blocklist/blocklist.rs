//! [`Blocklist`]: the handle on the blocked networks.

use std::{
    fmt, iter,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
#[cfg(feature = "redis")]
use tower_ratelimit::store::RedisHash;
use tower_ratelimit::{Error, key::Network};

use super::{
    network::{BlockedNetwork, invalid, parsed},
    table::{Clock, MOST, Table},
};
use crate::live::{follow::Target, health::Health};

/// Networks whose clients are rejected, which operators change while the service runs. Cloning gives another handle
/// on them.
///
/// Give [`matcher`](Self::matcher) to [`RateLimitLayer::block_if`](tower_ratelimit::RateLimitLayer::block_if), through
/// the extractor that knows the client's address. A blocked request is rejected before it is charged, without a call
/// to the store: with 429 and no `Retry-After`. To ban one client under a policy, see
/// [`Operator::ban`](tower_ratelimit::Operator::ban).
///
/// `Blocklist::redis` shares the list between all instances. [`new`](Self::new) makes a list for this process.
/// [`block`](Self::block) fills a list up to 10,000 networks. The shortest prefix is /8, or /16 for IPv6, so that a
/// typing error does not reject all clients.
///
/// The whole address is looked up, as in [`PeerIp::within`](tower_ratelimit::PeerIp::within), and also the IPv4 address
/// that an IPv6 address stands for (mapped, compatible, NAT64, 6to4, Teredo), because the
/// [key](tower_ratelimit::PeerIp) of such a client is the IPv4 address. A list that is not given to `block_if` blocks
/// nothing.
///
/// # Example
///
/// ```
/// use std::{net::SocketAddr, time::Duration};
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{MemoryStore, PeerIp, Policy, Quota, RateLimitLayer};
/// use tower_ratelimit_operate::live::{BlockedNetwork, Blocklist};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let blocklist = Blocklist::new();
/// let policy = Policy::new("api", Quota::per_second(10));
/// let layer = RateLimitLayer::new(MemoryStore::new(), policy, PeerIp::new())
///     .block_if(PeerIp::new().matching(blocklist.matcher()));
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
/// let request = || {
///     let peer: SocketAddr = ([203, 0, 113, 7], 4711).into();
///     Request::get("/").extension(peer).body(String::new())
/// };
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
///
/// let hour = Duration::from_secs(3_600);
/// blocklist.block(BlockedNetwork::new("203.0.113.0/24").blocked_for(hour).reason("a scraper")).await?;
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 429);
///
/// blocklist.unblock("203.0.113.0/24").await?;
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Blocklist {
    pub(super) active: Arc<Active>,
    table: watch::Receiver<Arc<Table>>,
    /// Where all instances read it.
    #[cfg(feature = "redis")]
    pub(super) hash: Option<RedisHash>,
}

/// The networks that are blocked now. The handles are the receivers.
pub(super) struct Active {
    pub(super) health: Health,
    table: watch::Sender<Arc<Table>>,
    pub(super) clock: Clock,
    /// The number of changes that this process has made. Changes only in a change of the table.
    changes: AtomicU64,
    /// Whether a layer, or another part of the service, may reject what is blocked.
    is_consulted: AtomicBool,
}

/// A table that was read.
#[derive(Clone)]
pub(super) struct Update {
    pub(super) table: Arc<Table>,
    /// The changes of this process before it was read.
    pub(super) changes: u64,
    /// Whether Redis has no list, not even an empty one.
    pub(super) is_missing: bool,
    /// What is wrong with an entry.
    pub(super) error: Option<Error>,
}

impl Target for Active {
    type Update = Update;

    fn health(&self) -> &Health {
        &self.health
    }

    fn is_used(&self) -> bool {
        self.table.receiver_count() > 0
    }

    /// Applies what is valid: an invalid entry must not keep another one from being followed.
    fn apply(&self, update: Update) -> Result<(), Error> {
        let before = self.table.borrow().clone();
        let is_applied = *before != *update.table
            && self.table.send_if_modified(|table| {
                // What was read before this process has changed the list may lack that change. The next read has it.
                let is_current = update.changes == self.changes();
                if is_current {
                    table.clone_from(&update.table);
                }
                is_current
            });
        if is_applied && update.is_missing {
            log!(
                warn,
                "{} is gone: no network is blocked; if Redis lost its data, block the networks again",
                self.health.origin()
            );
        } else if is_applied {
            log!(info, origin = %self.health.origin(), networks = update.table.len(), "the blocklist changed");
        }
        update.error.map_or(Ok(()), Err)
    }
}

impl Blocklist {
    /// An empty list of this process. It ends with the process.
    #[must_use]
    pub fn new() -> Self {
        let (active, table) = Active::new("the blocklist of this process".to_owned());
        Self {
            active: Arc::new(active),
            table,
            #[cfg(feature = "redis")]
            hash: None,
        }
    }

    /// A list that `active` keeps equal to a hash.
    #[cfg(feature = "redis")]
    pub(super) const fn of(active: Arc<Active>, table: watch::Receiver<Arc<Table>>, hash: RedisHash) -> Self {
        Self { active, table, hash: Some(hash) }
    }

    /// Whether `address` is blocked now.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        if !self.is_consulted() {
            self.active.is_consulted.store(true, Ordering::Relaxed);
        }
        let table = self.table.borrow();
        // The clock is read only for an address that is in the list.
        let is_blocked = |address: Network| {
            let mut entries = table.entries_containing(address);
            entries.any(|(_, entry)| entry.is_active(self.active.clock.now()))
        };
        let address = Network::from(address);
        is_blocked(address) || address.translated().is_some_and(is_blocked)
    }

    /// [`contains`](Self::contains) as a function, for [`PeerIp::matching`](tower_ratelimit::PeerIp::matching) and
    /// [`ClientIp::matching`](tower_ratelimit::ClientIp::matching).
    pub fn matcher(&self) -> impl Fn(IpAddr) -> bool + Send + Sync + 'static {
        self.active.is_consulted.store(true, Ordering::Relaxed);
        let list = self.clone();
        move |address| list.contains(address)
    }

    /// The networks that are blocked now, in their order.
    #[must_use]
    pub fn networks(&self) -> Vec<BlockedNetwork> {
        let table = self.table.borrow().clone();
        table.active(self.active.clock.now())
    }

    /// The blocked networks that contain `network`, an address or a network, the widest first. Empty for any other
    /// text.
    #[must_use]
    pub fn networks_containing(&self, network: &str) -> Vec<BlockedNetwork> {
        let Ok(inner) = network.parse::<Network>() else { return Vec::new() };
        let (table, now) = (self.table.borrow().clone(), self.active.clock.now());
        let entries =
            iter::once(inner).chain(inner.translated()).flat_map(|inner| table.entries_containing(inner));
        entries.filter_map(|(network, entry)| entry.shown(&network, now)).collect()
    }

    /// Blocks a network, in the place of the entry that it has. With a list in Redis, all instances follow within a
    /// second, and this one immediately.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](tower_ratelimit::ErrorKind::InvalidConfig): the network, its time, or a text is invalid, or
    ///   10,000 networks are blocked.
    /// * The failure of Redis. The list is unchanged, unless
    ///   [`may_have_charged`](tower_ratelimit::ErrorKind::may_have_charged) is true for the error's kind.
    pub async fn block(&self, network: BlockedNetwork) -> Result<(), Error> {
        #[cfg(feature = "redis")]
        if let Some(hash) = &self.hash {
            return self.block_in(hash, network).await;
        }
        let now = self.active.clock.now();
        let (network, entry) = network.checked(now)?;
        let mut is_full = false;
        self.active.table.send_modify(|table| {
            let table = Arc::make_mut(table);
            table.remove_ended(now);
            table.remove(&network, now);
            is_full = table.len() >= MOST;
            if !is_full {
                table.insert(network, entry);
            }
        });
        if is_full { Err(full()) } else { Ok(()) }
    }

    /// Removes the entry of `network`. Returns whether it was blocked. An entry of another network that contains it
    /// still blocks it.
    ///
    /// # Errors
    ///
    /// The same as [`block`](Self::block).
    pub async fn unblock(&self, network: &str) -> Result<bool, Error> {
        let network = parsed(network)?;
        #[cfg(feature = "redis")]
        if let Some(hash) = &self.hash {
            return self.unblock_in(hash, network).await;
        }
        let (mut was_blocked, now) = (false, self.active.clock.now());
        self.active.table.send_modify(|table| was_blocked = Arc::make_mut(table).remove(&network, now));
        Ok(was_blocked)
    }

    /// Whether all instances share the list.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        #[cfg(feature = "redis")]
        let is_shared = self.hash.is_some();
        #[cfg(not(feature = "redis"))]
        let is_shared = false;
        is_shared
    }

    /// Whether [`contains`](Self::contains) or [`matcher`](Self::matcher) was called.
    pub(crate) fn is_consulted(&self) -> bool {
        self.active.is_consulted.load(Ordering::Relaxed)
    }

    /// What keeps the list from being as Redis has it: Redis cannot be read, or a field is invalid. `None` once that is
    /// over, and for a list of this process. The metric `ratelimit_failed_policy_sources` counts such lists too.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        self.active.health.error()
    }

    /// Sets the time between two reads of Redis, for all handles. Defaults to 500 ms; at least 10 ms. Each pause is up
    /// to a tenth shorter or longer. Takes effect after the current pause.
    #[must_use]
    pub fn poll_every(self, interval: Duration) -> Self {
        self.active.health.set_interval(interval);
        self
    }
}

impl Active {
    pub(super) fn new(origin: String) -> (Self, watch::Receiver<Arc<Table>>) {
        let health = Health::new(origin, "blocklists", "the blocklist differs from its hash").with_clients();
        let (sender, receiver) = watch::channel(Arc::default());
        (
            Self {
                health,
                table: sender,
                clock: Clock::new(),
                changes: AtomicU64::new(0),
                is_consulted: AtomicBool::new(false),
            },
            receiver,
        )
    }

    /// The number of changes that this process has made.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Changes the table as this process has changed the hash, before it is read again.
    #[cfg(feature = "redis")]
    pub(super) fn change(&self, change: impl FnOnce(&mut Table)) {
        self.table.send_modify(|table| {
            change(Arc::make_mut(table));
            self.changes.fetch_add(1, Ordering::Release);
        });
    }
}

pub(super) fn full() -> Error {
    invalid(format!(
        "the blocklist has {MOST} networks, the most that it can have: unblock some, or block a wider network"
    ))
}

impl Default for Blocklist {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Blocklist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The networks may be the addresses of persons.
        f.debug_struct("Blocklist")
            .field("networks", &self.table.borrow().len())
            .field("is_shared", &self.is_shared())
            .field("last_error", &self.last_error().map(|error| error.kind()))
            .finish()
    }
}
