//! An instance of the service: a limiter with its own store and pool.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tower_ratelimit::{Limiter, RedisStore, bb8_redis::bb8::Pool};

use super::{
    asked::By,
    connection::Manager,
    foreign::{self, Frequency},
    network::{Network, Owner},
    random::Random,
};

#[derive(Clone)]
pub(super) struct Instance {
    pub(super) owner: Arc<Owner>,
    pub(super) store: RedisStore,
    pub(super) limiter: Limiter,
    pub(super) pool: Pool<Manager>,
    pub(super) deadline: Duration,
    /// The most connections of the pool.
    pub(super) connections: u32,
    /// Whether it has changed its quotas.
    changed: Arc<AtomicBool>,
}

impl Instance {
    pub(super) fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// It as the one that makes a decision now.
    pub(super) fn by(&self) -> By {
        let (instance, deadline) = (self.owner.name.clone(), self.deadline);
        By { instance, deadline, is_changed: self.is_changed() }
    }
}

/// How the instances of a schedule are set up.
#[derive(Clone)]
struct Settings {
    deadline: Duration,
    connections: u32,
    deny_cache: Duration,
    changed: Arc<AtomicBool>,
    panics: Frequency,
}

/// The instances that run now.
pub(super) struct Instances {
    network: Arc<Network>,
    settings: Vec<Settings>,
    running: Mutex<Vec<Instance>>,
    started: Mutex<u64>,
}

impl Instances {
    pub(super) fn new(network: Arc<Network>, random: &mut Random) -> Self {
        let count = random.between(1, 3);
        let panics = random.chance(500);
        let settings = |_| Settings {
            panics: panics.then(|| random.between(2, 5)),
            deadline: Duration::from_millis(*random.pick(&[10, 20, 50, 50, 100])),
            connections: *random.pick(&[1, 2, 4, 8, 8]),
            deny_cache: Duration::from_millis(*random.pick(&[0, 1_000])),
            changed: Arc::default(),
        };
        let settings: Vec<_> = (0..count).map(settings).collect();
        let instances = Self { network, settings, running: Mutex::default(), started: Mutex::default() };
        let running = instances.settings.iter().map(|settings| instances.start(settings)).collect();
        *instances.running.lock().unwrap() = running;
        instances
    }

    fn start(&self, settings: &Settings) -> Instance {
        let number = {
            let mut started = self.started.lock().unwrap();
            *started += 1;
            *started
        };
        let owner = Owner::new(format!("i{number}"));
        // As the store's own pools are, without what bb8 does by a clock that cannot be paused: looking for old
        // connections, and retrying for half a second.
        let pool = Pool::builder()
            .max_size(settings.connections)
            .min_idle(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .retry_connection(false)
            .test_on_check_out(false)
            .connection_timeout(Duration::from_millis(500))
            .build_unchecked(Manager { network: self.network.clone(), owner: owner.clone() });
        let store = RedisStore::builder()
            .deadline(settings.deadline)
            .deny_cache(settings.deny_cache)
            .build(pool.clone())
            .unwrap();
        let limiter = foreign::limiter(&store, &self.network, settings.panics);
        Instance {
            owner,
            store,
            limiter,
            pool,
            deadline: settings.deadline,
            connections: settings.connections,
            changed: settings.changed.clone(),
        }
    }

    /// An instance changes its quotas, or changes them back.
    pub(super) fn change(&self, number: usize) {
        self.settings[number].changed.fetch_xor(true, Ordering::Relaxed);
    }

    /// Every instance has its first quotas again.
    pub(super) fn change_back(&self) {
        self.settings.iter().for_each(|settings| settings.changed.store(false, Ordering::Relaxed));
    }

    pub(super) fn count(&self) -> usize {
        self.settings.len()
    }

    pub(super) fn get(&self, number: usize) -> Instance {
        self.running.lock().unwrap()[number].clone()
    }

    pub(super) fn all(&self) -> Vec<Instance> {
        self.running.lock().unwrap().clone()
    }

    pub(super) fn is_running(&self, instance: &Instance) -> bool {
        self.running.lock().unwrap().iter().any(|other| other.owner.name == instance.owner.name)
    }

    /// One instance ends without a notice, and another one takes its place.
    pub(super) fn crash(&self, number: usize) {
        let new = self.start(&self.settings[number]);
        let old = std::mem::replace(&mut self.running.lock().unwrap()[number], new);
        self.network.bury(&old.owner);
    }

    pub(super) fn stop(&self) {
        self.running.lock().unwrap().clear();
    }
}
