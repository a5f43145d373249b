//! Units on lease: never more than the limit, however instances come and go, and nothing is lost for longer than
//! the bound.

mod support;

use std::{collections::BTreeMap, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{RedisServer, store};
use tower_ratelimit::{
    Concurrency, Decision, ErrorKind, FixedWindow, Key, LeakyBucket, Limiter, ManualClock, MemoryStore,
    Policy, Quota, RedisStore, SlidingLog, SlidingWindow, TokenBucket,
};

fn calls(server: &RedisServer) -> usize {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// One process of several: a store of its own, over the same pool.
#[derive(Clone)]
struct Instance {
    store: RedisStore,
    limiter: Limiter,
}

impl Instance {
    /// With nothing on lease, as one that has just started.
    fn new(store: &RedisStore, clock: &ManualClock) -> Self {
        let store = store.clone().manual_clock(clock.clone());
        Self { limiter: Limiter::new(store.clone()), store }
    }

    async fn take(&self, policy: &Policy, cost: u64) -> Decision {
        let decision = self.limiter.check(policy, &Key::new("alice"), cost).await.unwrap();
        assert!(decision.failure().is_none(), "{decision:?}");
        decision
    }

    /// Nothing is under way that was sent at another time.
    async fn settled(&self) {
        while !format!("{:?}", self.store).contains("under_way: 0") {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    /// Gives back what is on lease, and nothing else.
    async fn give_back(&self, policy: &Policy) {
        assert!(self.limiter.refund(policy, &Key::new("alice"), 0).await.unwrap().failure().is_none());
    }

    fn has_leases(&self) -> bool {
        !format!("{:?}", self.store).contains("keys: 0")
    }

    async fn remaining(&self, policy: &Policy) -> u64 {
        self.limiter.peek(policy, &Key::new("alice"), 0).await.unwrap().remaining().unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    /// As a correction of the clock would.
    SetBack(u64),
    /// So many requests of one instance; the last instance leases nothing.
    Ask {
        instance: usize,
        cost: u64,
        times: usize,
    },
    /// One instance ends without a word, and another one starts.
    Crash(usize),
    GiveBack(usize),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Gcra,
    Meter,
    Steps,
    StartsEmpty,
    Anchored,
    Aligned,
    Cells(u32),
}

#[derive(Clone, Debug)]
struct Rule {
    kind: Kind,
    limit: u64,
    /// Microseconds.
    period: u64,
    burst: u64,
    most: u64,
}

const INSTANCES: usize = 3;

impl Rule {
    fn policies(&self) -> (Policy, Policy) {
        let quota = Quota::new(self.limit, Duration::from_micros(self.period)).unwrap();
        let plain = match self.kind {
            Kind::Gcra => Policy::new("p", quota.burst(self.burst)),
            Kind::Meter => Policy::new("p", quota.burst(self.burst)).algorithm(LeakyBucket::meter()),
            Kind::Steps => {
                let bucket = TokenBucket::new().refill_every(quota.period());
                Policy::new("p", quota.burst(self.burst)).algorithm(bucket)
            }
            Kind::StartsEmpty => {
                let bucket = TokenBucket::new().starting_at(self.burst / 3);
                Policy::new("p", quota.burst(self.burst)).algorithm(bucket)
            }
            Kind::Anchored => Policy::new("p", quota).algorithm(FixedWindow::anchored()),
            Kind::Aligned => Policy::new("p", quota).algorithm(FixedWindow::aligned()),
            Kind::Cells(cells) => Policy::new("p", quota).algorithm(SlidingWindow::new().segments(cells)),
        };
        (plain.clone().leased(self.most), plain)
    }

    const fn is_bucket(&self) -> bool {
        matches!(self.kind, Kind::Gcra | Kind::Meter | Kind::Steps | Kind::StartsEmpty)
    }
}

fn rule(kind: Kind) -> impl Strategy<Value = Rule> {
    let limit = prop_oneof![1..20_u64, 20..3_000_u64];
    let period = prop_oneof![10_000..1_000_000_u64, 300_000..20_000_000_u64];
    (limit, period, prop_oneof![1..10_u64, 10..3_000_u64], prop_oneof![1..10_u64, 10..500_u64]).prop_map(
        move |(limit, period, burst, most)| Rule { kind, limit, period: period / 60 * 60 + 60, burst, most },
    )
}

fn steps(rule: &Rule) -> impl Strategy<Value = Vec<Step>> + use<> {
    let (period, limit) = (rule.period, rule.limit);
    let advance = prop_oneof![
        3 => 0..3_000_u64,
        2 => 50_000..250_000_u64,
        3 => 300_000..700_000_u64,
        1 => 900_000..1_300_000_u64,
        2 => 0..period,
        2 => Just(period / limit),
        1 => period..2 * period,
    ];
    let cost = prop_oneof![4 => Just(1_u64), 1 => 1..20_u64];
    let times = prop_oneof![1..4_usize, 4..60_usize];
    let ask =
        (0..=INSTANCES, cost, times).prop_map(|(instance, cost, times)| Step::Ask { instance, cost, times });
    let back = if rule.is_bucket() { 1 } else { 0 };
    let step = prop_oneof![
        20 => ask,
        12 => advance.prop_map(Step::Advance),
        back => (0..1_500_000_u64).prop_map(Step::SetBack),
        1 => (0..INSTANCES).prop_map(Step::Crash),
        1 => (0..INSTANCES).prop_map(Step::GiveBack),
    ];
    proptest::collection::vec(step, 10..80)
}

/// Sees when each unit was spent, and knows the promise.
struct Judge {
    rule: Rule,
    /// Units by the time at which they were spent.
    spent: Vec<(u64, u64)>,
    /// By the window that Redis was in.
    windows: BTreeMap<u64, u64>,
}

impl Judge {
    /// `time` is that of the clock, and `passed` how much of it passed in all, steps back left out.
    fn admit(&mut self, server: &RedisServer, time: u64, passed: u64, cost: u64) {
        let Rule { kind, limit, period, .. } = self.rule;
        match kind {
            Kind::Anchored => {
                let state: String = server.command(&["GET", "rl:p:fixed-window:{alice}"]);
                let opened: u64 = state[..16].parse().unwrap();
                assert!((opened..opened + period).contains(&time), "spent at {time}, in no window: {state}");
                let used = self.windows.entry(opened).or_default();
                *used += cost;
                assert!(*used <= limit, "{used} of {limit} in the window of {opened}");
            }
            Kind::Aligned => {
                let used = self.windows.entry(time / period).or_default();
                *used += cost;
                assert!(*used <= limit, "{used} of {limit} in the window of {}", time / period);
            }
            Kind::Cells(cells) => {
                let (cells, width) = (u64::from(cells), period / u64::from(cells));
                *self.windows.entry(time / width).or_default() += cost;
                let now = time / width;
                let in_cell = |cell: u64| self.windows.get(&cell).copied().unwrap_or(0);
                let whole: u64 = (now + 1 - cells..=now).map(in_cell).sum();
                let sliding = (in_cell(now - cells) * (width - time % width)).div_ceil(width);
                assert!(whole + sliding <= limit, "{whole} and {sliding} of {limit} at {time}");
            }
            _ => match self.spent.last_mut() {
                Some((at, units)) if *at == passed => *units += cost,
                _ => self.spent.push((passed, cost)),
            },
        }
    }

    /// Every span of a bucket.
    fn judge_spans(&self) {
        let Rule { kind, limit, period, burst, .. } = self.rule;
        for (i, (from, _)) in self.spent.iter().enumerate() {
            let mut units = 0_u128;
            for (to, more) in &self.spent[i..] {
                units += u128::from(*more);
                let paid = match kind {
                    Kind::Steps => u128::from((to - from) / period + 1) * u128::from(limit),
                    _ => u128::from(to - from) * u128::from(limit) / u128::from(period),
                };
                assert!(
                    units <= u128::from(burst) + paid,
                    "{units} from {from} to {to}, of {burst} and {paid}: {:?}",
                    self.rule
                );
            }
        }
    }
}

/// How many requests there were, how many were admitted, and how many Redis decided.
#[derive(Debug, Default)]
struct Seen {
    asked: usize,
    admitted: usize,
}

async fn live(server: &RedisServer, redis: &RedisStore, rule: Rule, steps: Vec<Step>, seen: &mut Seen) {
    let () = server.command(&["FLUSHALL"]);
    let clock = ManualClock::new();
    let (leased, plain) = rule.policies();
    let mut instances: Vec<Instance> = (0..=INSTANCES).map(|_| Instance::new(redis, &clock)).collect();
    let mut judge = Judge { rule: rule.clone(), spent: Vec::new(), windows: BTreeMap::new() };
    let time = || u64::try_from(clock.now().as_micros()).unwrap();
    let mut passed = 0;
    for step in steps {
        for instance in &instances {
            instance.settled().await;
        }
        match step {
            Step::Advance(by) => {
                clock.advance(Duration::from_micros(by));
                passed += by;
            }
            Step::SetBack(by) => {
                clock.step_back(Duration::from_micros(by));
                // A clock that stands still between steps can be seen to go back only by who looks at it.
                for instance in &instances {
                    if instance.take(&leased, 1).await.is_allowed() {
                        judge.admit(server, time(), passed, 1);
                    }
                }
            }
            Step::Ask { instance, cost, times } => {
                let policy = if instance == INSTANCES { &plain } else { &leased };
                for _ in 0..times {
                    let decision = instances[instance].take(policy, cost).await;
                    seen.asked += 1;
                    if decision.is_allowed() {
                        seen.admitted += 1;
                        judge.admit(server, time(), passed, cost);
                        assert!(decision.remaining().unwrap() < policy.capacity());
                    } else if cost <= policy.capacity() {
                        assert!(decision.retry_after().unwrap() > Duration::ZERO, "{decision:?}");
                    }
                }
            }
            Step::Crash(instance) => instances[instance] = Instance::new(redis, &clock),
            Step::GiveBack(instance) => instances[instance].give_back(&leased).await,
        }
    }
    judge.judge_spans();
    // Nothing is lost for longer than the bound and what any spent unit takes to come back.
    for instance in &instances {
        instance.settled().await;
        instance.give_back(&leased).await;
    }
    let refill = rule.period * rule.burst.div_ceil(rule.limit).max(2);
    clock.advance(leased.lease_bound().unwrap().after_a_crash() + Duration::from_micros(refill));
    let all = match rule.kind {
        // Forgotten by now, and as never seen.
        Kind::StartsEmpty => rule.burst / 3,
        _ => plain.capacity(),
    };
    assert!(instances[0].remaining(&plain).await >= all, "{rule:?}");
}

fn lives(kind: Kind) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let redis = runtime.block_on(store(&server));
    let cases = std::env::var("LEASES_CASES").map_or(60, |cases| cases.parse().unwrap());
    let case = rule(kind).prop_flat_map(|rule| (Just(rule.clone()), steps(&rule)));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    let seen = std::cell::RefCell::new(Seen::default());
    TestRunner::new(config)
        .run(&case, |(rule, steps)| {
            runtime.block_on(live(&server, &redis, rule, steps, &mut seen.borrow_mut()));
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    eprintln!("{kind:?}: {:?}, {} calls", seen.borrow(), calls(&server));
}

macro_rules! never_more_than_promised {
    ($($name:ident: $kind:expr),+ $(,)?) => { $(
        #[test]
        fn $name() {
            lives($kind);
        }
    )+ };
}

never_more_than_promised! {
    leased_gcra_admits_no_more_than_promised: Kind::Gcra,
    a_leased_meter_admits_no_more_than_promised: Kind::Meter,
    a_leased_bucket_refilled_in_steps_admits_no_more_than_promised: Kind::Steps,
    a_leased_bucket_that_starts_not_full_admits_no_more_than_promised: Kind::StartsEmpty,
    leased_anchored_windows_admit_no_more_than_promised: Kind::Anchored,
    leased_aligned_windows_admit_no_more_than_promised: Kind::Aligned,
    a_leased_sliding_window_admits_no_more_than_promised: Kind::Cells(1),
    a_leased_sliding_window_of_five_admits_no_more_than_promised: Kind::Cells(5),
}
