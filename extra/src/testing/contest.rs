//! Runs one step after another with both twins of an algorithm, and compares their answers.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_ratelimit::{
    Charge, Decision, Error, ErrorKind, Key, MemoryStore, Policy, Quota, RedisStore,
    decision::Outcome,
    store::{Action, ManualClock, Store as _},
};

use super::{
    failure::Finding,
    said::{Said, in_words},
    step::{KEYS, Step},
};

/// Times that a state can hold, with room for any wait.
const END: Duration = Duration::from_micros(1 << 52);
/// 2026-01-01T00:00:00Z.
const START: Duration = Duration::from_secs(1_767_225_600);

/// Both twins under one clock.
pub(super) struct Contest {
    redis: RedisStore,
    memory: MemoryStore,
    pub(super) clock: ManualClock,
    pub(super) policy: Policy,
    /// A built-in policy that denies often, for decisions of two policies.
    other: Policy,
    pub(super) exact_retry: bool,
    keys: Vec<Key>,
    charged: Vec<Charged>,
    /// The wait of the last denial.
    pub(super) retry: Option<Duration>,
    reset: Duration,
}

/// A charge of this round.
struct Charged {
    redis: Outcome,
    memory: Outcome,
    /// The units that are not refunded.
    left: u64,
}

/// The outcomes of one decision, on which both stores agree.
pub(super) struct Agreed {
    is_admitted: bool,
    pub(super) said: Vec<Said>,
}

impl Contest {
    pub(super) fn new(
        redis: RedisStore,
        memory: MemoryStore,
        clock: ManualClock,
        policy: Policy,
        exact_retry: bool,
    ) -> Self {
        Self {
            redis,
            memory,
            clock,
            other: Policy::new("twin-test-other", Quota::per_second(1).burst(4)),
            policy,
            exact_retry,
            keys: (0..KEYS).map(|key| Key::new(format!("key-{key}"))).collect(),
            charged: Vec::new(),
            retry: None,
            reset: Duration::ZERO,
        }
    }

    /// Starts a round `later` than the first one, with keys that were never charged.
    pub(super) async fn start(&mut self, later: Duration) -> Result<(), Error> {
        self.clear().await?;
        self.clock.set((START + later).min(END));
        self.charged.clear();
        self.retry = None;
        self.reset = Duration::ZERO;
        Ok(())
    }

    /// Removes all keys.
    pub(super) async fn clear(&mut self) -> Result<(), Error> {
        self.memory = MemoryStore::with_clock(self.clock.clone());
        for key in &self.keys {
            for policy in [&self.policy, &self.other] {
                self.redis.erase(policy, key).await?;
            }
        }
        Ok(())
    }

    /// Takes a step. Returns what the stores said, in words.
    pub(super) async fn take(&mut self, step: &Step) -> Result<String, Finding> {
        match *step {
            Step::Advance(by) => self.advance(Duration::from_micros(by)),
            Step::SetBack(by) => self.clock.step_back(Duration::from_micros(by)),
            Step::WaitForRetry => {
                if let Some(wait) = self.retry.take() {
                    self.advance(wait);
                }
            }
            Step::WaitForReset => self.advance(self.reset),
            Step::Decide { action, key, cost } => return self.decide(step, action, key, cost).await,
            Step::Together { key, cost } => return self.decide_together(step, key, cost).await,
            Step::Batch(ref batch) => return self.decide_batch(step, batch).await,
            Step::Refund { which, percent } => return self.refund(step, which, percent).await,
            Step::Renew { which } => return self.renew(step, which).await,
            Step::RefundLatest { key, units } => {
                let charge = self.charge(key, units);
                let agreed = self.ask(step, Action::Refund, &[charge]).await?;
                return Ok(agreed.in_words());
            }
            Step::Reset { key } => {
                let key = self.keys[key as usize].clone();
                let redis = self.redis.reset(&self.policy, &key).await;
                let memory = self.memory.reset(&self.policy, &key).await;
                if let (Err(error), _) | (_, Err(error)) = (redis, memory) {
                    return Err(self.finding(None, step, error.to_string(), String::new()));
                }
            }
        }
        Ok(String::new())
    }

    fn advance(&self, by: Duration) {
        if self.reaches(by) {
            self.clock.advance(by);
        }
    }

    pub(super) fn reaches(&self, by: Duration) -> bool {
        self.clock.now().saturating_add(by) < END
    }

    pub(super) fn charge(&self, key: u64, cost: u64) -> Charge {
        Charge::new(&self.policy, &self.keys[key as usize], cost)
    }

    async fn decide(&mut self, step: &Step, action: Action, key: u64, cost: u64) -> Result<String, Finding> {
        let before = self.peeks(step, key).await?;
        let charge = self.charge(key, cost);
        let agreed = self.ask(step, action, &[charge]).await?;
        let said = agreed.said[0];
        self.reset = said.reset;
        if !said.is_admitted() {
            self.changed_nothing(step, key, &before).await?;
        }
        let capacity = self.policy.capacity();
        if said.granted > capacity || said.remaining > capacity {
            return Err(self.broken("no more than the capacity can be charged", step, said));
        }
        // A peek does not rewrite a stale state, so its retry time holds only for the clock as it is.
        if action == Action::Charge {
            self.check_denial(step, key, cost, said).await?;
        }
        self.check_remaining(step, key, said.remaining).await?;
        Ok(agreed.in_words())
    }

    async fn decide_together(&mut self, step: &Step, key: u64, cost: u64) -> Result<String, Finding> {
        let before = self.peeks(step, key).await?;
        let other = Charge::new(&self.other, &self.keys[key as usize], 1);
        let charges = [self.charge(key, cost), other];
        let agreed = self.ask(step, Action::Charge, &charges).await?;
        if !agreed.is_admitted {
            self.changed_nothing(step, key, &before).await?;
        }
        Ok(agreed.in_words())
    }

    /// Requests that wait at the same time share a batch of the store, which decides equal ones in any order.
    async fn decide_batch(&mut self, step: &Step, batch: &[(u64, u64)]) -> Result<String, Finding> {
        let requests =
            batch.iter().zip(0..).flat_map(|(&(count, cost), key)| (0..count).map(move |_| (key, cost)));
        let requests: Vec<_> = requests.collect();
        let mut waiting = JoinSet::new();
        let mut decided_by_memory = Vec::new();
        for &(key, cost) in &requests {
            let (store, charge) = (self.redis.clone(), self.charge(key, cost));
            waiting.spawn(async move { (key, store.decide(Action::Charge, &[charge]).await) });
            let charge = self.charge(key, cost);
            decided_by_memory.push((key, self.memory.decide(Action::Charge, &[charge]).await));
        }
        let mut decided_by_redis = Vec::new();
        while let Some(decided) = waiting.join_next().await {
            let stopped = |_| (0, Err(Error::new(ErrorKind::StoreUnreachable, "the decision was stopped")));
            decided_by_redis.push(decided.unwrap_or_else(stopped));
        }
        let order = |(key, decided): &(u64, Result<Decision, Error>)| {
            let said = decided.as_ref().ok().and_then(|decision| decision.outcomes().first().map(Said::of));
            (*key, said.map(|said| said.order()))
        };
        decided_by_memory.sort_by_key(order);
        decided_by_redis.sort_by_key(order);
        let mut words = Vec::new();
        for ((_, redis), (_, memory)) in decided_by_redis.into_iter().zip(decided_by_memory) {
            words.push(self.compare(step, Action::Charge, &redis, &memory)?.in_words());
        }
        Ok(words.join(" | "))
    }

    async fn refund(&mut self, step: &Step, which: u64, percent: u64) -> Result<String, Finding> {
        let Some(place) = self.place(which) else { return Ok(String::new()) };
        let charged = &mut self.charged[place];
        let permits = charged.redis.policy().has_permits();
        // Permits are released immediately, and all refunds together never exceed the charge.
        let units = match permits {
            true => charged.left,
            false => (charged.redis.granted() * percent).div_ceil(100).min(charged.left),
        };
        charged.left -= units;
        let redis = charged.redis.charge().clone().with_cost(units);
        let memory = charged.memory.charge().clone().with_cost(units);
        self.ask_each(step, Action::Refund, &redis, &memory).await
    }

    async fn renew(&mut self, step: &Step, which: u64) -> Result<String, Finding> {
        let Some(place) = self.place(which) else { return Ok(String::new()) };
        let Charged { redis, memory, .. } = &self.charged[place];
        // Fewer units may have been granted than the charge asked for.
        let granted = redis.granted();
        let [redis, memory] = [redis, memory].map(|outcome| outcome.charge().clone().with_cost(granted));
        self.ask_each(step, Action::Renew, &redis, &memory).await
    }

    fn place(&self, which: u64) -> Option<usize> {
        (which as usize).checked_rem(self.charged.len())
    }

    async fn ask_each(
        &mut self,
        step: &Step,
        action: Action,
        redis: &Charge,
        memory: &Charge,
    ) -> Result<String, Finding> {
        let redis = self.redis.decide(action, std::slice::from_ref(redis)).await;
        let memory = self.memory.decide(action, std::slice::from_ref(memory)).await;
        Ok(self.compare(step, action, &redis, &memory)?.in_words())
    }

    pub(super) async fn ask(
        &mut self,
        step: &Step,
        action: Action,
        charges: &[Charge],
    ) -> Result<Agreed, Finding> {
        let redis = self.redis.decide(action, charges).await;
        let memory = self.memory.decide(action, charges).await;
        self.compare(step, action, &redis, &memory)
    }

    /// Compares what the stores decided, and keeps what was charged.
    fn compare(
        &mut self,
        step: &Step,
        action: Action,
        redis: &Result<Decision, Error>,
        memory: &Result<Decision, Error>,
    ) -> Result<Agreed, Finding> {
        let said = |decision: &Decision| decision.outcomes().iter().map(Said::of).collect::<Vec<_>>();
        let disagreement = || self.finding(None, step, in_words(redis), in_words(memory));
        let (Ok(redis), Ok(memory)) = (redis, memory) else { return Err(disagreement()) };
        if said(redis) != said(memory) {
            return Err(disagreement());
        }
        let charges_units = matches!(action, Action::Charge | Action::ChargeUpTo | Action::Debit);
        if !redis.verdict().is_denied()
            && charges_units
            && let ([redis, ..], [memory, ..]) = (redis.outcomes(), memory.outcomes())
        {
            let left = redis.granted();
            self.charged.push(Charged { redis: redis.clone(), memory: memory.clone(), left });
        }
        Ok(Agreed { is_admitted: !redis.verdict().is_denied(), said: said(redis) })
    }

    pub(super) fn finding(
        &self,
        broken: Option<&'static str>,
        step: &Step,
        redis: String,
        memory: String,
    ) -> Finding {
        let requested = format!("at {}, {step}", self.clock.now().as_micros());
        Finding { broken, requested, redis, memory }
    }
}

impl Agreed {
    fn in_words(&self) -> String {
        let said: Vec<_> = self.said.iter().map(Said::to_string).collect();
        said.join(" | ")
    }
}
