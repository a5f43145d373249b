//! A blocklist in a hash of Redis, which all instances read.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::{JoinHandle, spawn_blocking};
use tower_ratelimit::{
    Error, RedisStore,
    key::Network,
    store::{HashContent, RedisHash},
};

use super::{
    blocklist::{Active, Blocklist, Update, full},
    network::{BlockedNetwork, Entry, invalid, parsed},
    table::{Clock, MOST, Table},
};
use crate::live::follow::{Follower, Origin, runtime};

/// The field that changes with the others.
const VERSION: &[u8] = b"@version";

/// The time after which the hash is read even if its mark is the same: a value was changed without the version.
const READ_EVERY: Duration = Duration::from_secs(10);
/// A hash with more fields is probably of another program. Those that have ended are removed when a network is blocked.
const MOST_FIELDS: usize = 2 * MOST;
/// The most ended fields that are removed when a network is blocked, so that Redis does little else.
const MOST_REMOVED: usize = 1_000;
/// The longest field, and the longest value, that are read.
const MOST_BYTES: usize = 4_096;
/// The longest time of a command: it may have to connect, and the fields may have megabytes. No request waits for it.
const PATIENCE: Duration = Duration::from_millis(1_500);

type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

impl Blocklist {
    /// A list that all instances share, in one hash of Redis. Its key is the
    /// [prefix](tower_ratelimit::store::RedisStoreBuilder::prefix) and `:blocklist`, so `rl:blocklist` with the
    /// default prefix.
    ///
    /// A field is a network, and its value is a JSON object whose entries are optional: `until`, in seconds since
    /// 1970; `reason`; and `who`. [`block`](Self::block) and `ratelimit-admin block` write it, and so can you:
    ///
    /// ```text
    /// redis-cli HSET rl:blocklist 203.0.113.0/24 '{"until":1764283200,"reason":"a scraper"}' @version 7
    /// redis-cli HSET rl:blocklist 2001:db8::/32 '{}' @version 8      # until it is removed
    /// redis-cli HDEL rl:blocklist 203.0.113.0/24
    /// ```
    ///
    /// An instance reads the fields if their number or the field `@version` has changed, which [`block`](Self::block)
    /// and [`unblock`](Self::unblock) set, and otherwise every 10 seconds. So set `@version` to another text with each
    /// change by hand that instances shall follow within a second.
    ///
    /// A block ends by the clock of Redis. [`block`](Self::block) removes fields whose time has ended.
    ///
    /// # How instances follow
    ///
    /// Each instance looks at the hash every 500 ms, or at the interval of [`poll_every`](Self::poll_every), on the
    /// connections of this store. No request waits for it. While Redis is unavailable, the list stays as it is, its
    /// entries end in time, and it cannot be changed. A Redis without persistence loses the list in a restart; a
    /// warning is logged.
    ///
    /// A field that is not a network, or has too short a prefix, is ignored. A network whose value is invalid is blocked
    /// until the value is corrected. [`last_error`](Self::last_error) names the first such field, and a warning is logged;
    /// all others apply. A hash with more than 20,000 fields changes nothing. If Redis cannot be read when this
    /// function is called, the list is empty until it can. This call, and each read, takes at most a second and a half. On
    /// a single server, a read without a reply in that time counts for the circuit breaker, like a call for decisions.
    ///
    /// The permissions are part of [`acl_rule`](RedisStore::acl_rule), also the ones of [`block`](Self::block); with
    /// `redis-cli`, operators need `+hset +hdel ~rl:blocklist`. Anyone who can write the hash can reject all clients.
    ///
    /// # Errors
    ///
    /// [`MissingSetup`](tower_ratelimit::ErrorKind::MissingSetup): no Tokio runtime runs here.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use tower_ratelimit::{ClientIp, Policy, Quota, RateLimitLayer, RedisStore, key::TrustedProxies};
    /// use tower_ratelimit_operate::live::Blocklist;
    ///
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
    /// let blocklist = Blocklist::redis(&store).await?;
    /// let client = ClientIp::behind(TrustedProxies::hops(1));
    ///
    /// let policy = Policy::new("per-ip", Quota::per_second(10));
    /// let layer = RateLimitLayer::new(store, policy, client.clone())
    ///     .block_if(client.matching(blocklist.matcher()));
    /// # drop(layer);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub async fn redis(store: &RedisStore) -> Result<Self, Error> {
        let runtime = runtime("blocklists")?;
        let hash = store.hash("blocklist").timeout(PATIENCE);
        let (active, table) = Active::new(format!("the Redis hash `{}`", hash.key()));
        let active = Arc::new(active);
        let origin = InRedis { hash: hash.clone(), active: active.clone(), latest: None };
        let mut follower = Follower::new(origin, None);
        follower.poll(&*active).await;
        runtime.spawn(follower.run(active.clone()));
        Ok(Self::of(active, table, hash))
    }

    pub(super) async fn block_in(&self, hash: &RedisHash, network: BlockedNetwork) -> Result<(), Error> {
        // An invalid one is an error even if Redis is unavailable.
        let (net, _) = network.clone().checked(0.0)?;
        let fields = self.fields(hash).await?;
        let now = self.active.clock.now();
        let (_, entry) = network.checked(now)?;
        let value = serde_json::to_string(&entry).map_err(|error| invalid(error.to_string()))?;
        let (mut removed, mut others) = (Vec::new(), 0);
        for (field, value) in fields {
            match parsed_field(&field, &value) {
                // Perhaps written in another way.
                Ok((same, ..)) if same == net => removed.push((field, value)),
                Ok((_, entry, _)) if !entry.is_active(now) => {
                    if removed.len() < MOST_REMOVED {
                        removed.push((field, value));
                    }
                }
                _ => others += 1,
            }
        }
        if others >= MOST {
            return Err(full());
        }
        hash.change(&removed, &[(&net.to_string(), &value)]).await?;
        self.active.change(|table| table.insert(net, entry));
        Ok(())
    }

    pub(super) async fn unblock_in(&self, hash: &RedisHash, network: Network) -> Result<bool, Error> {
        let fields = self.fields(hash).await?;
        let now = self.active.clock.now();
        let (mut removed, mut was_blocked) = (Vec::new(), false);
        for (field, value) in fields {
            if let Ok((same, entry, _)) = parsed_field(&field, &value)
                && same == network
            {
                was_blocked |= entry.is_active(now);
                removed.push((field, value));
            }
        }
        if !removed.is_empty() {
            hash.change(&removed, &[]).await?;
        }
        self.active.change(|table| {
            table.remove(&network, now);
        });
        Ok(was_blocked)
    }

    /// The fields that Redis has now.
    async fn fields(&self, hash: &RedisHash) -> Result<Fields, Error> {
        let (_, fields) = read(hash, &self.active.clock, &[]).await?;
        Ok(fields.unwrap_or_default())
    }
}

/// The mark of `hash`, and its fields unless the mark is `known`. Sets `clock`.
async fn read(hash: &RedisHash, clock: &Clock, known: &[u8]) -> Result<(Vec<u8>, Option<Fields>), Error> {
    let HashContent { time, mark, mut fields, .. } = hash.read(known, MOST_FIELDS).await?;
    clock.set(time);
    if let Some(fields) = &mut fields {
        fields.remove(VERSION);
    }
    Ok((mark, fields))
}

struct InRedis {
    hash: RedisHash,
    active: Arc<Active>,
    latest: Option<Latest>,
}

/// What was read.
struct Latest {
    mark: Vec<u8>,
    fields: Arc<Fields>,
    time: Instant,
}

/// The fields of a hash, and what was known when they were read.
#[derive(PartialEq)]
struct Content {
    fields: Arc<Fields>,
    is_missing: bool,
    /// The number of changes that this process had made before.
    changes: u64,
}

impl Origin for InRedis {
    type Content = Content;
    type Update = Update;

    async fn read(&mut self) -> Result<Content, Error> {
        let changes = self.active.changes();
        let known = self.latest.as_ref().filter(|latest| latest.time.elapsed() < READ_EVERY);
        let known = known.map_or(&[][..], |latest| &latest.mark);
        let (mark, fields) = read(&self.hash, &self.active.clock, known).await.map_err(|error| {
            let message = format!("{} cannot be read: {error}", self.active.health.origin());
            Error::new(error.kind(), message).with_source(error)
        })?;
        let is_missing = mark == b"0:";
        let fields = match (fields, &self.latest) {
            (None, Some(latest)) => latest.fields.clone(),
            (fields, _) => {
                let fields = Arc::new(fields.unwrap_or_default());
                self.latest = Some(Latest { mark, fields: fields.clone(), time: Instant::now() });
                fields
            }
        };
        Ok(Content { fields, is_missing, changes })
    }

    fn parse(&self, content: Arc<Content>) -> JoinHandle<Result<Update, Error>> {
        let active = self.active.clone();
        spawn_blocking(move || Ok(parse(active.health.origin(), &content)))
    }
}

/// The table of the valid fields, and the error of the first invalid one.
fn parse(name: &str, content: &Content) -> Update {
    let (mut table, mut first) = (Table::default(), None);
    for (field, value) in &*content.fields {
        let problem = match parsed_field(field, value) {
            Ok((network, entry, problem)) => {
                table.insert_longest(network, entry);
                problem
            }
            Err(problem) => Some(format!("it is ignored: {problem}")),
        };
        if let Some(problem) = problem {
            first.get_or_insert_with(|| {
                let field = &field[..field.len().min(64)];
                invalid(format!("{name}, field `{}`: {problem}", field.escape_ascii()))
            });
        }
    }
    let Content { is_missing, changes, .. } = *content;
    Update { table: Arc::new(table), changes, is_missing, error: first }
}

/// The network of a field and its entry, and what is wrong with its value: the network is then blocked without an end,
/// because its writer wanted to block it. An error if the field is not a network.
fn parsed_field(field: &[u8], value: &[u8]) -> Result<(Network, Entry, Option<String>), String> {
    if field.len().max(value.len()) > MOST_BYTES {
        return Err(format!("it is longer than {MOST_BYTES} bytes: remove it with HDEL"));
    }
    let text = |bytes| str::from_utf8(bytes).map_err(|_| "it is not UTF-8: remove it with HDEL".to_owned());
    let network = parsed(text(field)?).map_err(|error| error.to_string())?;
    Ok(match text(value).and_then(Entry::parse) {
        Ok(entry) => (network, entry, None),
        Err(problem) => {
            let problem =
                format!("its value is invalid, so the network is blocked until it is corrected: {problem}");
            (network, Entry::default(), Some(problem))
        }
    })
}
