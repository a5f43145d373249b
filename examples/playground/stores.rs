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
        let switches = [Arc::default(), playground.is_failing.clone()];
        let instances = setup.traffic.instances();
        let memory = || clock.clone().map_or_else(MemoryStore::new, MemoryStore::with_clock);
        let mut limiters = Vec::new();
        for _ in 0..sides {
            let (shared, prefix) = (memory(), format!("playground-{:x}", fastrand::u64(..)));
            let mut side = Vec::new();
            for _ in 0..instances {
                side.push(match setup.store {
                    Kept::Shared => limiter(shared.clone(), &switches),
                    Kept::Separate => limiter(memory(), &switches),
                    Kept::Redis => {
                        let url = playground.redis_url.as_deref();
                        let url = url.ok_or_else(|| {
                            Invalid::new("store", "start the playground with REDIS_URL to use Redis")
                        })?;
                        let builder = RedisStore::builder().prefix(&prefix);
                        match &clock {
                            None => limiter(connect(builder.connect(url)).await?, &switches),
                            // No request waits in real time, so a slow machine does not need to fail it.
                            Some(clock) => {
                                let builder = builder.deadline(Duration::from_secs(10));
                                let store = connect(builder.manual_clock(clock.clone()).connect(url)).await?;
                                limiter(InRealTime { store, runtime: Handle::current() }, &switches)
                            }
                        }
                    }
                });
            }
            limiters.push(side);
        }
        let [has_outage, is_failing] = switches;
        Ok(Self { limiters, clock, has_outage, is_failing })
    }

    /// Starts or ends the outage of the run. Returns whether the stores fail, which the page's switch also decides.
    pub(crate) fn set_outage(&self, fails: bool) -> bool {
        self.has_outage.store(fails, Ordering::Relaxed);
        fails || self.is_failing.load(Ordering::Relaxed)
    }
}

async fn connect(store: impl Future<Output = Result<RedisStore, Error>>) -> Result<RedisStore, Invalid> {
    store.await.map_err(|error| Invalid::new("store", error.to_string()))
}

fn limiter(store: impl Store, switches: &[Arc<AtomicBool>; 2]) -> Limiter {
    Limiter::new(Switched { store, switches: switches.clone() })
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
