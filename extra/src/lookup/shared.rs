//! The values of a lookup and the lookups that run.

use std::{borrow::Borrow, collections::HashMap, hash::Hash, sync::Arc, time::Duration};

use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::{
    runtime::{Handle, Id},
    sync::watch,
    time::{Instant, timeout},
};
use tower_ratelimit::{Answer, Error, ErrorKind};

use super::settings::Settings;
use crate::{
    outage::Outage,
    panics::{caught, caught_in},
};

/// The shortest time from a background lookup that failed to the next one of the same key.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The cache rejects a longer lifetime than a thousand years.
const MAX_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

pub(super) struct Shared<K, V> {
    pub(super) find: Arc<dyn Fn(K) -> Answer<V> + Send + Sync>,
    pub(super) settings: Settings,
    /// The found values, at most a fixed number. Expiry is decided in this file, because a test cannot pause
    /// the clock of the cache: the cache only drops values that no request needs.
    values: Cache<K, Found<V>>,
    /// The keys that have no value, apart, so that guessed keys displace no values.
    misses: Cache<K, Missed>,
    /// The lookups that run, by runtime: one that is blocked or not driven delays no other. They are not in
    /// the cache, which may drop its entries at any time. Locked only if there is no fresh value.
    running: Mutex<HashMap<Id, HashMap<K, Running<V>>>>,
    outage: Outage,
}

#[derive(Clone)]
struct Missed {
    error: Error,
    at: Instant,
}

#[derive(Clone)]
struct Found<V> {
    value: V,
    at: Instant,
    /// No lookup in the background before that.
    next_try: Instant,
}

/// `None` until the lookup has ended. Closed without a result if its runtime ended.
type Running<V> = watch::Receiver<Option<Result<V, Error>>>;

enum Ask<V> {
    Known(V),
    Wait(Running<V>),
}

impl<K, V> Shared<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new(find: Arc<dyn Fn(K) -> Answer<V> + Send + Sync>, settings: Settings) -> Self {
        let values = Cache::builder()
            .max_capacity(u64::try_from(settings.capacity).unwrap_or(u64::MAX))
            .time_to_live(settings.lifetime().min(MAX_LIFETIME))
            .build();
        let misses = Cache::builder()
            .max_capacity(u64::try_from(settings.misses).unwrap_or(u64::MAX))
            .time_to_live(settings.ttl.min(MAX_LIFETIME))
            .build();
        Self { find, settings, values, misses, running: Mutex::default(), outage: Outage::default() }
    }

    pub(super) fn get<Q>(self: &Arc<Self>, key: &Q) -> Answer<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(found) = self.values.get(key) {
            let now = Instant::now();
            let age = now.saturating_duration_since(found.at);
            if age >= self.settings.ttl && age < self.settings.lifetime() && now >= found.next_try {
                // The old value serves, even if the lookup fails.
                let _ = self.ask(&key.to_owned());
            }
            if age < self.settings.lifetime() {
                return Answer::ready(Ok(found.value));
            }
        }
        if let Some(error) = self.missed(key) {
            return Answer::ready(Err(error));
        }
        // The lookup starts when the answer is awaited, because a layer may not need the answer.
        Answer::pending(self.clone().wait(key.to_owned()))
    }

    /// The error of `key`, if it has no value.
    fn missed<Q>(&self, key: &Q) -> Option<Error>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.misses
            .get(key)
            .filter(|missed| missed.at.elapsed() < self.settings.ttl)
            .map(|missed| missed.error)
    }

    /// The result of the lookup of `key` that runs, or of a new one.
    async fn wait(self: Arc<Self>, key: K) -> Result<V, Error> {
        // Once more if one ended without a result: its runtime may have ended, and this one has not.
        for _ in 0..2 {
            match self.ask(&key)? {
                Ask::Known(value) => return Ok(value),
                Ask::Wait(running) => {
                    if let Some(result) = result_of(running).await {
                        return result;
                    }
                }
            }
        }
        Err(Error::new(ErrorKind::IdentityUnavailable, "the runtime of the lookup ended"))
    }

    /// The lookup of `key` that runs, or else a new one.
    fn ask(self: &Arc<Self>, key: &K) -> Result<Ask<V>, Error> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::MissingSetup, "a `Lookup` needs a Tokio runtime: await it inside of one")
        })?;
        let (sender, running) = {
            let mut all = self.running.lock();
            let all = all.entry(runtime.id()).or_default();
            if let Some(running) = all.get(key) {
                return Ok(Ask::Wait(running.clone()));
            }
            // A lookup may have ended since `key` was not found.
            if let Some(found) = self.values.get(key)
                && found.at.elapsed() < self.settings.ttl
            {
                return Ok(Ask::Known(found.value));
            }
            if let Some(error) = self.missed(key) {
                return Err(error);
            }
            if all.len() >= self.settings.capacity.max(1) {
                return Err(Error::new(
                    ErrorKind::IdentityUnavailable,
                    "too many concurrent lookups: see `Lookup::capacity`",
                ));
            }
            let (sender, running) = watch::channel(None);
            all.insert(key.clone(), running.clone());
            (sender, running)
        };
        // The lock is free here, because a runtime that ends drops the task in this call.
        let lookup = OneLookup { shared: self.clone(), runtime: runtime.id(), key: key.clone(), sender };
        runtime.spawn(lookup.run());
        Ok(Ask::Wait(running))
    }

    /// Keeps the result of a lookup.
    fn ended(&self, key: &K, result: &Result<V, Error>) {
        let now = Instant::now();
        match result {
            Ok(_) if self.settings.capacity == 0 => {}
            Ok(value) => {
                self.misses.invalidate(key);
                self.values.insert(key.clone(), Found { value: value.clone(), at: now, next_try: now });
            }
            Err(error) if is_clients(error.kind()) => {
                self.values.invalidate(key);
                if self.settings.misses > 0 {
                    self.misses.insert(key.clone(), Missed { error: error.clone(), at: now });
                }
            }
            Err(error) => {
                if let Some(old) = self.values.get(key) {
                    self.values.insert(key.clone(), Found { next_try: now + RETRY_AFTER, ..old });
                }
                if self.outage.failed() {
                    log!(warn, error = %error, "outage of a lookup; old values serve as long as `stale_for` allows");
                }
                let _ = error;
            }
        }
    }
}

/// Whether the client sent what cannot be looked up.
const fn is_clients(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::MissingIdentity | ErrorKind::InvalidIdentity | ErrorKind::UnknownIdentity)
}

/// The result of a lookup. `None` if it ended without one.
async fn result_of<V: Clone>(mut running: Running<V>) -> Option<Result<V, Error>> {
    running.wait_for(Option::is_some).await.ok()?.clone()
}

/// A lookup that runs.
struct OneLookup<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    shared: Arc<Shared<K, V>>,
    runtime: Id,
    key: K,
    sender: watch::Sender<Option<Result<V, Error>>>,
}

impl<K, V> OneLookup<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    async fn run(self) {
        let limit = self.shared.settings.timeout;
        let failed = |message| Err(Error::new(ErrorKind::IdentityUnavailable, message));
        let panicked = || failed("the lookup panicked".to_owned());
        let found = caught_in(async { timeout(limit, (self.shared.find)(self.key.clone())).await }).await;
        let late = |_| failed(format!("the lookup took longer than {limit:?}: see `Lookup::timeout`"));
        let mut result = found.map_or_else(panicked, |found| found.unwrap_or_else(late));
        // The clone of a value may panic, too.
        if caught(|| self.shared.ended(&self.key, &result)).is_none() {
            result = panicked();
        }
        self.sender.send_replace(Some(result));
    }
}

/// Runs even if the runtime ends, which is not a failure: another runtime tries again immediately.
impl<K, V> Drop for OneLookup<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        let all = &mut *self.shared.running.lock();
        if let Some(running) = all.get_mut(&self.runtime) {
            running.remove(&self.key);
            if running.is_empty() {
                all.remove(&self.runtime);
            }
        }
    }
}
