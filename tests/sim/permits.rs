//! Permits of one key, under policies with other limits and expiries that instances change to and from, and what is in
//! use at the store.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;
use tower_ratelimit::{
    Decision, Error, FailureMode, Key, Policy, Quota, algorithm::Concurrency, decision::DecisionSource,
};

use super::{instance::Instance, log::Log, network::Network, random::Random};

/// Longer than a charge or a release can be under way.
const UNDER_WAY: Duration = Duration::from_secs(10);

/// What is known about the permits of one key.
pub(super) struct Permits {
    /// They have one name.
    pub(super) policies: Vec<Policy>,
    pub(super) key: Key,
    name: String,
    network: Arc<Network>,
    log: Arc<Log>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The ones that may be in use at the store.
    all: BTreeMap<u64, Permit>,
    /// The number of the latest event.
    events: u64,
    /// How often the store has lost permits.
    losses: u64,
    /// Whether a reset has failed, which may still come.
    may_be_reset: bool,
    /// Resets under way. The store may reset the key right after it has granted a permit, whose answer comes first.
    resets: u64,
    /// Then permits expire later.
    clock_was_set_back: bool,
}

struct Permit {
    instance: String,
    units: u64,
    period: Duration,
    started: Instant,
    /// Whether the store certainly counts it until it is released or expires.
    is_certain: bool,
    /// When it was released, or its decision failed or was dropped: the number of the event, and the time.
    ended: Option<(u64, Instant)>,
    /// When its instance crashed, which releases nothing.
    crashed: Option<Instant>,
}

impl Permit {
    /// Whether the store certainly counts it until now.
    fn counts(&self) -> bool {
        self.is_certain && self.ended.is_none() && self.started.elapsed() < self.period
    }

    fn has_expired(&self) -> bool {
        let left = self.ended.map(|(_, time)| time).or(self.crashed);
        left.is_some_and(|time| time.elapsed() > self.period + UNDER_WAY)
    }
}

/// A decision about permits that is under way, or the permits that it was granted.
pub(super) struct Asked {
    number: u64,
    policy: usize,
    units: u64,
    /// The permits that the store certainly counted.
    counted: Vec<u64>,
    losses: u64,
}

impl Permits {
    pub(super) fn new(random: &mut Random, instances: usize, network: Arc<Network>) -> Self {
        let local = FailureMode::Local { instances: instances as u32 };
        let mode = *random.pick(&[FailureMode::Closed, local]);
        let millis = |random: &mut Random| *random.pick(&[300, 1_000, 3_000, 10_000, 30_000]);
        let (limit, period) = (random.between(1, 4), millis(random));
        let policy = |limit, millis| {
            let quota = Quota::new(limit, Duration::from_millis(millis));
            Policy::new("slots", quota).algorithm(Concurrency::new()).failure_mode(mode)
        };
        let mut policies = vec![policy(limit, period)];
        for _ in 0..random.below(4) {
            let limit = if random.chance(300) { random.between(1, 4) } else { limit };
            policies.push(policy(limit, if random.chance(700) { millis(random) } else { period }));
        }
        let (log, key) = (network.log.clone(), Key::new("all"));
        policies.iter().for_each(|policy| log.note(format_args!("{policy:?}")));
        let name = "rl:slots:concurrency:{all}".to_owned();
        Self { policies, key, name, network, log, inner: Mutex::default() }
    }

    /// Call it before a decision about permits.
    pub(super) fn ask(&self, instance: &Instance, policy: usize, units: u64) -> Asked {
        let inner = &mut *self.inner.lock().unwrap();
        inner.events += 1;
        let counts = inner.all.iter().filter(|(_, permit)| permit.counts());
        let counted = counts.map(|(number, _)| *number).collect();
        let period = self.policies[policy].quota().period();
        let permit = Permit {
            instance: instance.owner.name.clone(),
            units,
            period,
            started: Instant::now(),
            is_certain: false,
            ended: None,
            crashed: None,
        };
        inner.all.insert(inner.events, permit);
        Asked { number: inner.events, policy, units, counted, losses: inner.losses }
    }

    /// Checks how it ended. Returns whether a permit of the store was granted.
    pub(super) fn answered(&self, asked: &Asked, answer: &Result<Decision, Error>) -> bool {
        let (number, units) = (asked.number, asked.units);
        let limit = self.policies[asked.policy].quota().limit();
        let (failure, is_granted, is_by_store) = match answer {
            Ok(decision) => {
                let is_by_store = decision.source() == DecisionSource::Store;
                (decision.failure(), decision.is_admitted(), is_by_store)
            }
            Err(error) => (Some(error), false, false),
        };
        let kind = failure.map(Error::kind);
        let granted = is_granted && failure.is_none();
        self.log.note(format_args!("permit {number} of {}, {units} units: {granted} {kind:?}", asked.policy));
        match failure {
            None if granted => {
                {
                    let inner = &mut *self.inner.lock().unwrap();
                    if let Some(permit) = inner.all.get_mut(&number) {
                        permit.is_certain =
                            asked.losses == inner.losses && !inner.may_be_reset && inner.resets == 0;
                    }
                }
                // Those that counted before and still count did when this one was granted. Others may have been
                // granted after it, although their answers came first.
                let counted: u64 = {
                    let inner = self.inner.lock().unwrap();
                    let permits = asked.counted.iter().filter_map(|number| inner.all.get(number));
                    permits.filter(|permit| permit.counts()).map(|permit| permit.units).sum()
                };
                if counted + units > limit {
                    self.log.violated(format_args!(
                        "permit {number}: {units} units granted beside {counted} under a limit of {limit}"
                    ));
                }
            }
            None => {
                self.inner.lock().unwrap().all.remove(&number);
                let possible = self.possible();
                if is_by_store && possible + units <= limit && !self.is_repeated() {
                    self.log.violated(format_args!(
                        "permit {number}: {units} units denied beside {possible} under a limit of {limit}"
                    ));
                }
            }
            Some(failure) if failure.kind().may_have_charged() => self.ended(asked),
            Some(_) => drop(self.inner.lock().unwrap().all.remove(&number)),
        }
        self.check();
        granted
    }

    /// The units that the store certainly counts, except the permit `number`.
    fn counted(&self, number: u64) -> u64 {
        let inner = self.inner.lock().unwrap();
        let counts = inner.all.iter().filter(|(other, permit)| **other != number && permit.counts());
        counts.map(|(_, permit)| permit.units).sum()
    }

    /// The most units that the store can count.
    fn possible(&self) -> u64 {
        let inner = &mut *self.inner.lock().unwrap();
        if !inner.clock_was_set_back {
            inner.all.retain(|_, permit| !permit.has_expired());
        }
        inner.all.values().map(|permit| permit.units).sum()
    }

    fn is_repeated(&self) -> bool {
        self.network.is_repeated(&self.name)
    }

    /// The decision failed and may have charged, it was dropped, or its permits were released.
    pub(super) fn ended(&self, asked: &Asked) {
        let inner = &mut *self.inner.lock().unwrap();
        inner.events += 1;
        self.log.note(format_args!("permit {} ended", asked.number));
        if let Some(permit) = inner.all.get_mut(&asked.number) {
            permit.ended = Some((inner.events, Instant::now()));
        }
    }

    /// The store has lost permits: its data or some time, or an operator has reset the key.
    pub(super) fn lost(&self) {
        let inner = &mut *self.inner.lock().unwrap();
        inner.losses += 1;
        inner.all.values_mut().for_each(|permit| permit.is_certain = false);
    }

    /// Call it before the key is reset.
    pub(super) fn reset_begins(&self) {
        self.lost();
        self.inner.lock().unwrap().resets += 1;
    }

    /// Call it after the key was reset, or not.
    pub(super) fn reset_ends(&self) {
        self.lost();
        self.inner.lock().unwrap().resets -= 1;
    }

    /// A reset of the key has failed.
    pub(super) fn reset_failed(&self) {
        self.inner.lock().unwrap().may_be_reset = true;
    }

    pub(super) fn clock_set_back(&self) {
        self.inner.lock().unwrap().clock_was_set_back = true;
    }

    pub(super) fn crashed(&self, instance: &str) {
        let inner = &mut *self.inner.lock().unwrap();
        let its = inner.all.values_mut().filter(|permit| permit.instance == instance);
        its.for_each(|permit| permit.crashed = Some(Instant::now()));
    }

    /// The number of the latest event, to be given to [`drained`](Self::drained).
    pub(super) fn latest(&self) -> u64 {
        self.inner.lock().unwrap().events
    }

    /// The instance has released everything that had ended by the event `latest`.
    pub(super) fn drained(&self, instance: &str, latest: u64) {
        let inner = &mut *self.inner.lock().unwrap();
        // No release is sent of permits that have expired by the clock of the instance. They stay at the store, where they
        // count again if its clock is set back.
        let is_gone = |permit: &Permit| {
            permit.ended.is_some_and(|(event, _)| event <= latest) && permit.started.elapsed() < permit.period
        };
        if !inner.clock_was_set_back {
            inner.all.retain(|_, permit| permit.instance != instance || !is_gone(permit));
        }
    }

    /// Checks what is in use at the store.
    pub(super) fn check(&self) {
        let in_use = {
            let server = self.network.server.lock().unwrap();
            server.data.permits(&self.name, server.now())
        };
        let (counted, possible) = (self.counted(0), self.possible());
        if in_use < counted {
            self.log.violated(format_args!("{in_use} permits in use at the store, {counted} must be"));
        }
        if in_use > possible && !self.is_repeated() {
            self.log.violated(format_args!("{in_use} permits in use at the store, {possible} can be"));
        }
    }
}
