//! The stores of a run, and the switch that makes them fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use tokio::runtime::Handle;
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, Key, Limiter, MemoryStore, Policy, RedisStore,
    store::{Action, ManualClock, Store},
};

use super::{
    Playground,
    setup::{Invalid, Kept, Setup, Time},
};

/// The limiters of a run.
#[derive(Debug)]
pub(crate) struct Stores {
    /// For each side of the page, one for each instance.
    pub(crate) limiters: Vec<Vec<Limiter>>,
    /// The clock of the stores, in simulated time.
    pub(crate) clock: Option<ManualClock>,
    /// Whether the run has an outage.
    has_outage: Arc<AtomicBool>,
    is_failing: Arc<AtomicBool>,
}

impl Stores {
    pub(super) async fn open(setup: &Setup, sides: usize, playground: &Playground) -> Result<Self, Invalid> {
        let clock = (setup.time != Time::Real).then(ManualClock::new);
        let has_outage = Arc::default();
        let instances = setup.traffic.instances();
        let memory = || clock.clone().map_or_else(MemoryStore::new, MemoryStore::with_clock);
        let mut limiters = Vec::new();
        for _ in 0..sides {
            let (shared, prefix) = (memory(), format!("playground-{:x}", fastrand::u64(..)));
            let mut side = Vec::new();
            for _ in 0..instances {
                side.push(match setup.store {
                    Kept::Shared => playground.limiter(shared.clone(), &has_outage),
                    Kept::Separate => playground.limiter(memory(), &has_outage),
                    Kept::Redis => playground.on_redis(&prefix, clock.as_ref(), &has_outage).await?,
                });
            }
            limiters.push(side);
        }
        Ok(Self { limiters, clock, has_outage, is_failing: playground.is_failing.clone() })
    }

    /// Starts or ends the outage of the run. Returns whether the stores fail, which the page's switch also decides.
    pub(crate) fn set_outage(&self, fails: bool) -> bool {
        self.has_outage.store(fails, Ordering::Relaxed);
        fails || self.is_failing.load(Ordering::Relaxed)
    }
}

impl Playground {
    /// A limiter whose store fails while the run has an outage, or the page's switch is on.
    fn limiter(&self, store: impl Store, has_outage: &Arc<AtomicBool>) -> Limiter {
        Limiter::new(Switched { store, switches: [has_outage.clone(), self.is_failing.clone()] })
    }

    async fn on_redis(
        &self,
        prefix: &str,
        clock: Option<&ManualClock>,
        has_outage: &Arc<AtomicBool>,
    ) -> Result<Limiter, Invalid> {
        let url = self.redis_url.as_deref();
        let url =
            url.ok_or_else(|| Invalid::new("store", "start the playground with REDIS_URL to use Redis"))?;
        let mut builder = RedisStore::builder().prefix(prefix);
        if let Some(clock) = clock {
            // No request waits in real time, so a slow machine does not need to fail it.
            builder = builder.manual_clock(clock.clone()).deadline(Duration::from_secs(10));
        }
        let connected = builder.connect(url).await;
        let store = connected.map_err(|error| Invalid::new("store", error.to_string()))?;
        Ok(match clock {
            Some(_) => self.limiter(InRealTime { store, runtime: Handle::current() }, has_outage),
            None => self.limiter(store, has_outage),
        })
    }
}

/// A store that fails while one of its switches is on.
struct Switched<S> {
    store: S,
    switches: [Arc<AtomicBool>; 2],
}

impl<S: Store> Store for Switched<S> {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if self.switches.iter().any(|switch| switch.load(Ordering::Relaxed)) {
            return Answer::ready(Err(Error::new(
                ErrorKind::StoreUnreachable,
                "the switch of the playground is on",
            )));
        }
        self.store.decide(action, charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.store.reset(policy, key)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

/// A store on Redis for a runtime whose time is paused. The decisions are made on another runtime, while this thread
/// waits: otherwise the paused time would advance to the deadline of each decision. There is no `inner`, because
/// nothing may be sent from the paused runtime.
struct InRealTime {
    store: RedisStore,
    runtime: Handle,
}

impl InRealTime {
    fn wait<T: Send + 'static>(
        &self,
        answer: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Answer<T> {
        let (sender, receiver) = mpsc::channel();
        self.runtime.spawn(async move { sender.send(answer.await) });
        let ended = |_| Err(Error::new(ErrorKind::StoreUnreachable, "the playground is shutting down"));
        Answer::ready(receiver.recv().unwrap_or_else(ended))
    }
}

impl Store for InRealTime {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        let (store, charges) = (self.store.clone(), charges.to_vec());
        self.wait(async move { store.decide(action, &charges).await })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let (store, policy, key) = (self.store.clone(), policy.clone(), key.clone());
        self.wait(async move { store.reset(&policy, &key).await })
    }
}
