//! Leases: never more than the limit is admitted while instances start and end, and no unit is lost for longer than
//! the documented bound.

use std::{
    collections::BTreeMap,
    future::{Future as _, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt as _;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{
    PATIENT, RedisPool, RedisServer, current_state, current_thread, day, eventually, pool, settings,
};
use tower_ratelimit::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Quota, RedisStore,
    algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket},
    decision::DecisionSource,
    store::{ManualClock, Store as _},
};

/// One of several instances: its own store, over a shared pool.
#[derive(Clone)]
struct Instance {
    store: RedisStore,
    limiter: Limiter,
}

impl Instance {
    /// An instance without leases, as if just started.
    fn new(pool: &RedisPool, clock: &ManualClock) -> Self {
        let store = settings().manual_clock(clock.clone()).build(pool.clone()).unwrap();
        Self { limiter: Limiter::new(store.clone()), store }
    }

    async fn take(&self, policy: &Policy, cost: u64) -> Decision {
        let decision = self.limiter.check(policy, &Key::new("alice"), cost).await.unwrap();
        assert!(decision.failure().is_none(), "{decision:?}");
        decision
    }

    /// Waits until no call from an earlier time is pending.
    async fn settled(&self) {
        while self.store.lease_status().calls > 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    /// Returns the leases of the key, and refunds nothing else.
    async fn return_leases(&self, policy: &Policy) {
        assert!(
            self.limiter
                .operator()
                .refund_latest(policy, &Key::new("alice"), 0)
                .await
                .unwrap()
                .failure()
                .is_none()
        );
    }

    fn has_leases(&self) -> bool {
        self.store.lease_status().keys > 0
    }

    async fn remaining(&self, policy: &Policy) -> u64 {
        self.limiter.peek(policy, &Key::new("alice"), 0).await.unwrap().remaining().unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    /// Sets the clock back, as a correction would.
    SetBack(u64),
    /// A number of requests to one instance. The last instance has no leases.
    Ask {
        instance: usize,
        cost: u64,
        times: usize,
    },
    /// One instance crashes, and another one starts.
    Crash(usize),
    ReturnLeases(usize),
    /// A refund of the decision this many steps back, by its instance or the one that replaced it.
    Refund(usize),
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
        let quota = Quota::new(self.limit, Duration::from_micros(self.period));
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
        (plain.clone().max_lease(self.most), plain)
    }

    const fn is_bucket(&self) -> bool {
        matches!(self.kind, Kind::Gcra | Kind::Meter | Kind::Steps | Kind::StartsEmpty)
    }
}

/// Of a day, in microseconds.
const DIVISORS: [u64; 7] = [12_000, 60_000, 120_000, 480_000, 1_200_000, 6_000_000, 15_000_000];

fn rule(kind: Kind) -> impl Strategy<Value = Rule> {
    let limit = prop_oneof![1..20_u64, 20..3_000_u64];
    let period = prop_oneof![10_000..1_000_000_u64, 300_000..20_000_000_u64];
    (limit, period, prop_oneof![1..10_u64, 10..3_000_u64], prop_oneof![1..10_u64, 10..500_u64]).prop_map(
        move |(limit, period, burst, most)| {
            let period = match kind {
                // It divides a day.
                Kind::Aligned => DIVISORS[period as usize % DIVISORS.len()],
                _ => period / 60 * 60 + 60,
            };
            Rule { kind, limit, period, burst, most }
        },
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
        1 => (0..INSTANCES).prop_map(Step::ReturnLeases),
        6 => (0..40_usize).prop_map(Step::Refund),
    ];
    proptest::collection::vec(step, 10..80)
}

/// Records when each unit was spent and checks the promise of the algorithm.
struct Judge {
    rule: Rule,
    /// Units by the time at which they were spent.
    spent: Vec<(u64, u64)>,
    /// Units by the window of Redis.
    windows: BTreeMap<u64, u64>,
    /// The number of refunds. Each may be rounded by 2 microseconds.
    refunds: u64,
}

/// An admitted decision, and its record in the judge.
struct Admitted {
    decision: Decision,
    instance: usize,
    cost: u64,
    place: u64,
}

impl Judge {
    /// `time` is the time of the clock, and `passed` the time that passed in all, without steps back.
    fn admit(&mut self, server: &RedisServer, time: u64, passed: u64, cost: u64) -> u64 {
        let Rule { kind, limit, period, .. } = self.rule;
        match kind {
            Kind::Anchored => {
                let state: Vec<u8> = server.command(&["GET", "rl:p:fixed-window:{alice}"]);
                let opened = f64::from_le_bytes(state[1..9].try_into().unwrap()) as u64;
                assert!((opened..opened + period).contains(&time), "spent at {time}, in no window: {opened}");
                let used = self.windows.entry(opened).or_default();
                *used += cost;
                assert!(*used <= limit, "{used} of {limit} in the window of {opened}");
                opened
            }
            Kind::Aligned => {
                let used = self.windows.entry(time / period).or_default();
                *used += cost;
                assert!(*used <= limit, "{used} of {limit} in the window of {}", time / period);
                time / period
            }
            Kind::Cells(cells) => {
                let (cells, width) = (u64::from(cells), period / u64::from(cells));
                *self.windows.entry(time / width).or_default() += cost;
                let now = time / width;
                let in_cell = |cell: u64| self.windows.get(&cell).copied().unwrap_or(0);
                let whole: u64 = (now + 1 - cells..=now).map(in_cell).sum();
                let sliding = in_cell(now - cells) * (width - time % width) / width;
                assert!(whole + sliding <= limit, "{whole} and {sliding} of {limit} at {time}");
                time / width
            }
            _ => {
                match self.spent.last_mut() {
                    Some((at, units)) if *at == passed => *units += cost,
                    _ => self.spent.push((passed, cost)),
                }
                self.spent.len() as u64 - 1
            }
        }
    }

    /// The request does not count any more: the remaining ones must keep the promise without it.
    fn refund(&mut self, admitted: &Admitted) {
        self.refunds += 1;
        if self.rule.is_bucket() {
            self.spent[usize::try_from(admitted.place).unwrap()].1 -= admitted.cost;
        } else if let Some(used) = self.windows.get_mut(&admitted.place) {
            *used -= admitted.cost;
        }
    }

    /// Checks every span of a bucket.
    fn judge_spans(&self) {
        let Rule { kind, limit, period, burst, .. } = self.rule;
        for (i, (from, _)) in self.spent.iter().enumerate() {
            let mut units = 0_u128;
            for (to, more) in &self.spent[i..] {
                units += u128::from(*more);
                let span = to - from + 2 * self.refunds;
                let paid = match kind {
                    Kind::Steps => u128::from(span / period + 1) * u128::from(limit),
                    _ => u128::from(span) * u128::from(limit) / u128::from(period),
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

/// The numbers of requests, of admitted requests, and of requests that Redis decided.
#[derive(Debug, Default)]
struct Seen {
    asked: usize,
    admitted: usize,
}

async fn live(server: &RedisServer, redis: &RedisPool, rule: Rule, steps: Vec<Step>, seen: &mut Seen) {
    let () = server.command(&["FLUSHALL"]);
    let clock = ManualClock::new();
    let (leased, plain) = rule.policies();
    let mut instances: Vec<Instance> = (0..=INSTANCES).map(|_| Instance::new(redis, &clock)).collect();
    let mut judge = Judge { rule: rule.clone(), spent: Vec::new(), windows: BTreeMap::new(), refunds: 0 };
    let mut admitted = Vec::new();
    let time = || u64::try_from(clock.now().as_micros()).unwrap();
    let (mut passed, mut set_back) = (0, 0);
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
                set_back += by;
            }
            Step::Ask { instance, cost, times } => {
                let policy = if instance == INSTANCES { &plain } else { &leased };
                for _ in 0..times {
                    let decision = instances[instance].take(policy, cost).await;
                    seen.asked += 1;
                    if decision.is_admitted() {
                        seen.admitted += 1;
                        let place = judge.admit(server, time(), passed, cost);
                        assert!(decision.remaining().unwrap() < policy.capacity());
                        admitted.push(Admitted { decision, instance, cost, place });
                    } else if cost <= policy.capacity() {
                        assert!(decision.retry_after().unwrap() > Duration::ZERO, "{decision:?}");
                    }
                }
            }
            Step::Crash(instance) => instances[instance] = Instance::new(redis, &clock),
            Step::ReturnLeases(instance) => instances[instance].return_leases(&leased).await,
            // A clock that steps back makes charges look younger than they are.
            Step::Refund(back) if set_back == 0 => {
                let Some(place) = admitted.len().checked_sub(back + 1) else { continue };
                let refunded = admitted.remove(place);
                instances[refunded.instance].limiter.refund(&refunded.decision, refunded.cost).await.unwrap();
                judge.refund(&refunded);
            }
            Step::Refund(_) => {}
        }
    }
    judge.judge_spans();
    // No unit is lost for longer than the bound plus the time in which a spent unit is available again.
    for instance in &instances {
        instance.settled().await;
        instance.return_leases(&leased).await;
    }
    let refill = rule.period * rule.burst.div_ceil(rule.limit).max(2);
    // If no request comes after the clock was set back, earlier state stays until the clock has caught up.
    let wait = Duration::from_micros(refill + set_back);
    clock.advance(leased.lease_bound().unwrap() + wait);
    let all = match rule.kind {
        // Expired by now, so the key is new again.
        Kind::StartsEmpty => rule.burst / 3,
        _ => plain.capacity(),
    };
    assert!(instances[0].remaining(&plain).await >= all, "{rule:?}");
}

fn lives(kind: Kind) {
    let runtime = current_thread();
    let server = RedisServer::start();
    let redis = runtime.block_on(pool(&server));
    let cases = std::env::var("LEASES_CASES").map_or(8, |cases| cases.parse().unwrap());
    let case = rule(kind).prop_flat_map(|rule| (Just(rule.clone()), steps(&rule)));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    let seen = std::cell::RefCell::new(Seen::default());
    TestRunner::new(config)
        .run(&case, |(rule, steps)| {
            runtime.block_on(live(&server, &redis, rule, steps, &mut seen.borrow_mut()));
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    eprintln!("{kind:?}: {:?}, {} calls", seen.borrow(), server.script_calls());
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

/// An instance on the real clock.
async fn instance(server: &RedisServer) -> Instance {
    let store = settings().deny_cache(Duration::ZERO).connect(&server.url()).await.unwrap();
    Instance { limiter: Limiter::new(store.clone()), store }
}

/// Makes the key hot until the instance has a lease. The number of units admitted in the meantime.
async fn warm_up(instance: &Instance, policy: &Policy) -> u64 {
    let mut admitted = 0;
    while !instance.has_leases() {
        admitted += u64::from(instance.take(policy, 1).await.is_admitted());
        instance.settled().await;
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_on_two_instances_admit_exactly_the_limit_with_few_calls() {
    let server = RedisServer::start();
    let limit = 40_000;
    let policies = [
        day("window", limit),
        Policy::new("cells", Quota::per_day(limit)).algorithm(SlidingWindow::new()),
        // Less than one unit is replenished in a day.
        Policy::new("gcra", Quota::new(1, Duration::from_secs(75_000)).burst(limit)),
    ];
    for policy in policies {
        let policy = policy.max_lease(500);
        let instances = [instance(&server).await, instance(&server).await];
        let before = server.script_calls();
        let run = async |tasks: usize, times: usize| {
            let mut running = tokio::task::JoinSet::new();
            for i in 0..tasks {
                let (instance, policy) = (instances[i % 2].clone(), policy.clone());
                running.spawn(async move {
                    let (mut admitted, mut leased) = (0, 0);
                    for _ in 0..times {
                        let decision = instance.take(&policy, 1).await;
                        admitted += u64::from(decision.is_admitted());
                        leased += u64::from(decision.source() == DecisionSource::Lease);
                        tokio::task::yield_now().await;
                    }
                    (admitted, leased)
                });
            }
            let add = |(a, b), (c, d)| (a + c, b + d);
            running.join_all().await.into_iter().fold((0_u64, 0_u64), add)
        };
        let (mut admitted, leased) = run(32, 1_000).await;
        let asked = server.script_calls() - before;
        // On a slow machine, leases expire before they are used up.
        assert!(leased > 32_000 / 4, "{}: {leased} decisions by a lease, {asked} calls", policy.name());
        // The remaining units that the other instance has not leased.
        admitted += run(32, 400).await.0;
        assert!(admitted <= limit, "{}: {admitted}", policy.name());
        // When all instances are idle, all remaining units.
        for instance in &instances {
            assert!(eventually(async || !instance.has_leases()).await, "{}", policy.name());
            instance.settled().await;
        }
        admitted += run(8, 300).await.0;
        for instance in &instances {
            instance.return_leases(&policy).await;
        }
        let rest = instances[0].remaining(&policy).await;
        assert_eq!(admitted + rest, limit, "{}", policy.name());
        eprintln!("{}: {admitted} admitted, {asked} calls for the first 32000 requests", policy.name());
    }
}

#[tokio::test]
async fn an_idle_key_returns_its_lease_and_a_dropped_store_leaves_no_task() {
    let server = RedisServer::start();
    let limit = 1_000;
    let policies = [
        Policy::new("window", Quota::per_day(limit)).algorithm(FixedWindow::aligned()),
        Policy::new("cells", Quota::per_day(limit)).algorithm(SlidingWindow::new().segments(4)),
        Policy::new("gcra", Quota::per_day(1).burst(limit)),
    ];
    let other = instance(&server).await;
    for policy in policies {
        let policy = policy.max_lease(100);
        let busy = instance(&server).await;
        let admitted = warm_up(&busy, &policy).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(other.remaining(&policy).await < limit - admitted, "{}", policy.name());
        let back = async || other.remaining(&policy).await == limit - admitted;
        assert!(eventually(back).await, "{}", policy.name());
        // The task that returned them ends.
        let fewer = async || tokio::runtime::Handle::current().metrics().num_alive_tasks() < tasks;
        assert!(eventually(fewer).await, "{}", policy.name());

        // The task of a dropped store ends too, even with leases.
        warm_up(&busy, &policy).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        drop(busy);
        let fewer = async || tokio::runtime::Handle::current().metrics().num_alive_tasks() < tasks;
        assert!(eventually(fewer).await, "{}", policy.name());
    }
}

#[tokio::test]
async fn the_lease_of_a_crashed_instance_is_free_after_the_documented_time() {
    let server = RedisServer::start();
    let redis = pool(&server).await;
    let clock = ManualClock::new();
    let quota = Quota::new(1_000, Duration::from_secs(10));
    let policies = [
        Policy::new("gcra", quota),
        Policy::new("meter", quota).algorithm(LeakyBucket::meter()),
        Policy::new("window", quota).algorithm(FixedWindow::anchored()),
        Policy::new("cells", quota).algorithm(SlidingWindow::new().segments(5)),
    ];
    for policy in policies {
        let name = policy.name().to_owned();
        let policy = policy.max_lease(64);
        let bound = policy.lease_bound().unwrap();
        let other = Instance::new(&redis, &clock);
        let crashed = Instance::new(&redis, &clock);
        for _ in 0..40 {
            crashed.take(&policy, 1).await;
            crashed.settled().await;
        }
        assert!(crashed.has_leases(), "{name}");
        drop(crashed);
        let remaining = other.remaining(&policy).await;
        assert!((1_000 - 40 - 64..1_000 - 40).contains(&remaining), "{name}: {remaining}");
        // Spent units are replenished at their usual rate.
        clock.advance(bound + Duration::from_millis(400));
        assert_eq!(other.remaining(&policy).await, 1_000, "{name}");
    }
}

#[tokio::test]
async fn leases_on_a_key_are_fetched_one_at_a_time_and_survive_a_dropped_request() {
    let server = RedisServer::start();
    let limit = 10_000;
    let policy = day("p", limit).max_lease(50);
    let busy = instance(&server).await;
    let other = instance(&server).await;
    let key = Key::new("alice");
    let mut admitted = 0;
    for round in 0..300 {
        // Some requests are polled and dropped, some are never polled.
        let mut checks: Vec<_> = (0..8).map(|_| busy.limiter.check(&policy, &key, 1)).collect();
        for check in checks.iter_mut().take(round % 5) {
            let _ = check.now_or_never();
        }
        drop(checks);
        admitted += u64::from(busy.take(&policy, 1).await.is_admitted());
        // Never more than one lease: Redis has charged the spent units, the units of dropped requests, and one lease.
        let charged = limit - other.remaining(&policy).await;
        assert!(charged >= admitted && charged <= 9 * (round as u64 + 1) + 50, "{charged} of {admitted}");
    }
    assert!(busy.take(&policy, 1).await.is_admitted());
    let before = other.remaining(&policy).await;
    assert!(eventually(async || !busy.has_leases()).await);
    busy.settled().await;
    // Only units of dropped requests are missing now: a dropped request may have been charged, but the lease that it
    // fetched is not lost.
    let charged = limit - other.remaining(&policy).await;
    assert!(charged > admitted && charged <= 9 * 301, "{charged} of {admitted}, {before} before");
    // Leases can still be fetched.
    warm_up(&busy, &policy).await;
}

#[tokio::test]
async fn an_instance_that_shuts_down_can_return_its_leases() {
    let server = RedisServer::start();
    let (leaving, other) = (instance(&server).await, instance(&server).await);
    let of = |name, algorithm: FixedWindow| Policy::new(name, Quota::per_day(1_000)).algorithm(algorithm);
    let policies = [
        of("anchored", FixedWindow::anchored()).max_lease(100),
        of("aligned", FixedWindow::aligned()).max_lease(100),
        Policy::new("gcra", Quota::per_day(1).burst(1_000)).max_lease(100),
    ];
    let mut taken = Vec::new();
    for policy in &policies {
        let mut admitted = 0;
        while other.remaining(policy).await == 1_000 - admitted {
            admitted += u64::from(leaving.take(policy, 1).await.is_admitted());
            leaving.settled().await;
        }
        taken.push(admitted);
    }
    // It drains the store.
    leaving.limiter.drain(PATIENT).await.unwrap();
    for (policy, taken) in policies.iter().zip(taken) {
        assert_eq!(other.remaining(policy).await, 1_000 - taken, "{}", policy.name());
    }
    drop(server);
    // No lease is left, so the call succeeds without Redis.
    leaving.store.drain().await.unwrap();
}

#[tokio::test]
async fn reset_and_refund_account_for_leased_units() {
    let server = RedisServer::start();
    let policies = [
        day("window", 1_000),
        Policy::new("cells", Quota::per_day(1_000)).algorithm(SlidingWindow::new()),
        Policy::new("gcra", Quota::per_day(1).burst(1_000)),
    ];
    for policy in policies {
        let (key, name) = (Key::new("alice"), policy.name().to_owned());
        let policy = policy.max_lease(100);
        let (busy, other) = (instance(&server).await, instance(&server).await);
        let mut admitted = warm_up(&busy, &policy).await;
        for _ in 0..20 {
            admitted += u64::from(busy.take(&policy, 1).await.is_admitted());
            busy.settled().await;
        }
        assert!(busy.has_leases(), "{name}");
        // A refund returns the lease too, and no more than the units spent from it.
        let refunded = busy.limiter.operator().refund_latest(&policy, &key, 3).await.unwrap();
        assert_eq!(refunded.remaining(), Some(1_000 - admitted + 3), "{name}");
        assert!(!busy.has_leases(), "{name}");
        warm_up(&busy, &policy).await;
        busy.limiter.operator().reset(&policy, &key).await.unwrap();
        assert!(!busy.has_leases(), "{name}");
        assert_eq!(other.remaining(&policy).await, 1_000, "{name}");
        // The whole limit is available, and no more.
        assert!(busy.take(&policy, 1_000).await.is_admitted(), "{name}");
        assert!(!other.take(&policy, 1).await.is_admitted(), "{name}");
    }
}

/// A lease from before a reset is not returned to the count after it.
#[tokio::test]
async fn a_lease_that_is_returned_during_a_reset_refunds_nothing_after_it() {
    let server = RedisServer::start();
    let (redis, clock) = (pool(&server).await, ManualClock::new());
    let quota = Quota::per_day(1_000);
    let policies = [
        Policy::new("anchored", quota).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", quota).algorithm(FixedWindow::aligned()),
        Policy::new("cells", quota).algorithm(SlidingWindow::new()),
        Policy::new("gcra", quota),
    ];
    for policy in policies {
        let (policy, key) = (policy.max_lease(100), Key::new("alice"));
        for dropped in [true, false] {
            let busy = Instance::new(&redis, &clock);
            warm_up(&busy, &policy).await;
            // More units than the rest of the lease, so sending it returns the lease.
            let late = busy.limiter.check(&policy, &key, 100);
            busy.limiter.operator().reset(&policy, &key).await.unwrap();
            assert!(busy.take(&policy, 1_000).await.is_admitted());
            if dropped {
                drop(late);
                busy.settled().await;
            } else {
                assert!(!late.await.unwrap().is_admitted());
            }
            assert_eq!(busy.remaining(&policy).await, 0, "{}, {dropped}", policy.name());
            busy.limiter.operator().reset(&policy, &key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_refund_that_is_dropped_while_it_waits_loses_no_lease() {
    let server = RedisServer::start();
    let limit = 1_000;
    let policy = day("p", limit).max_lease(100);
    let busy = instance(&server).await;
    let admitted = warm_up(&busy, &policy).await;
    // A call is pending, so the next operation waits.
    let mut other = busy.limiter.check(&policy, &Key::new("bob"), 1);
    assert!((&mut other).now_or_never().is_none());
    let mut refund = busy.limiter.operator().refund_latest(&policy, &Key::new("alice"), 0);
    assert!((&mut refund).now_or_never().is_none());
    drop(refund);
    assert!(other.await.unwrap().is_admitted());
    let back = async || busy.remaining(&policy).await == limit - admitted;
    assert!(eventually(back).await);
}

/// A request returns a lease that is too small for it. Other requests may have been denied because of that lease.
#[tokio::test]
async fn a_remembered_denial_ends_when_a_request_returns_a_lease() {
    let server = RedisServer::start();
    let (redis, clock) = (pool(&server).await, ManualClock::new());
    let busy = Instance::new(&redis, &clock);
    let policy = day("p", 1_000).max_lease(100);
    let key = Key::new("alice");
    warm_up(&busy, &policy).await;
    // All units that are not leased.
    busy.limiter.check_up_to(&policy, &key, 1_000).await.unwrap();
    let both =
        [Charge::new(&policy, &key, 1), Charge::new(&Policy::new("q", Quota::per_day(1_000)), &key, 1)];
    assert!(!busy.limiter.check_all(&both).await.unwrap().is_admitted());
    assert!(busy.has_leases());
    assert!(!busy.take(&policy, 100).await.is_admitted());
    assert!(!busy.has_leases());
    assert!(busy.limiter.check_all(&both).await.unwrap().is_admitted());
}

/// The remaining units reported by an instance include the rest of its lease.
#[tokio::test]
async fn a_decision_from_a_lease_reports_the_remaining_units_as_of_the_last_call() {
    let server = RedisServer::start();
    let redis = pool(&server).await;
    let clock = ManualClock::new();
    let policy = Policy::new("p", Quota::per_minute(1_000)).algorithm(FixedWindow::anchored()).max_lease(20);
    let busy = Instance::new(&redis, &clock);
    for taken in 1..=200 {
        let decision = busy.take(&policy, 1).await;
        assert_eq!(decision.remaining(), Some(1_000 - taken));
        assert_eq!(decision.outcomes()[0].granted(), 1);
        let passed = Duration::from_millis(taken - 1);
        assert_eq!(decision.outcomes()[0].reset_after(), Duration::from_secs(60) - passed);
        busy.settled().await;
        clock.advance(Duration::from_millis(1));
    }
    assert!(server.script_calls() < 100, "{}", server.script_calls());
}

#[tokio::test]
async fn no_more_than_the_limit_is_reported_as_remaining_after_redis_lost_its_data() {
    let server = RedisServer::start();
    // The clock stands still, so a lease that is fetched ahead joins the one before.
    let instance = Instance::new(&pool(&server).await, &ManualClock::new());
    let policy = Policy::new("gcra", Quota::per_day(100)).max_lease(100);
    while !instance.has_leases() {
        instance.take(&policy, 1).await;
    }
    let () = server.command(&["FLUSHDB"]);
    for _ in 0..100 {
        let remaining = instance.take(&policy, 1).await.remaining().unwrap();
        assert!(remaining <= 100, "{remaining}");
        instance.settled().await;
    }
}

#[tokio::test]
async fn a_memory_store_ignores_leases() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::new("p", Quota::per_day(100)).max_lease(50);
    for left in (0..100).rev() {
        let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        assert_eq!(decision.remaining(), Some(left));
    }
    assert!(!limiter.check(&policy, &Key::new("alice"), 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn units_on_lease_are_not_spent_after_the_clock_was_set_back() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let instance = Instance::new(&pool(&server).await, &clock);
    let policy = Policy::new("p", Quota::per_day(100_000)).max_lease(500);
    warm_up(&instance, &policy).await;
    clock.advance(Duration::from_millis(20));
    assert_eq!(instance.take(&policy, 1).await.source(), DecisionSource::Lease);
    instance.settled().await;
    // By less than the age of the lease.
    clock.step_back(Duration::from_millis(10));
    assert_eq!(instance.take(&policy, 1).await.source(), DecisionSource::Store);
}

#[tokio::test]
async fn units_on_lease_are_not_spent_after_its_slot_and_the_next_one() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    clock.set(clock.now() + Duration::from_millis(400));
    let instance = Instance::new(&pool, &clock);
    let policy = Policy::new("p", Quota::per_day(100_000)).max_lease(500);
    warm_up(&instance, &policy).await;
    for (passed, source) in [(599, DecisionSource::Lease), (1, DecisionSource::Store)] {
        clock.advance(Duration::from_millis(passed));
        assert_eq!(instance.take(&policy, 1).await.source(), source, "{passed}");
        instance.settled().await;
    }
}

#[tokio::test]
async fn a_lease_leaves_most_of_what_remains_to_other_instances() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let [one, other] = [Instance::new(&pool, &clock), Instance::new(&pool, &clock)];
    let policy = Policy::new("p", Quota::per_day(1_000)).max_lease(1_000);
    for _ in 0..900 {
        assert!(one.take(&policy, 1).await.is_admitted());
        one.settled().await;
    }
    assert!(one.has_leases());
    // Of the 100 units that are left, each lease took at most a quarter of what remained then.
    let free = other.remaining(&policy).await;
    assert!((50..100).contains(&free), "{free}");
}

#[tokio::test]
async fn of_three_units_none_is_leased() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let [one, other] = [Instance::new(&pool, &clock), Instance::new(&pool, &clock)];
    let policy = Policy::new("p", Quota::per_day(1_000)).max_lease(1_000);
    warm_up(&one, &policy).await;
    one.return_leases(&policy).await;
    other.take(&policy, other.remaining(&policy).await - 4).await;
    for left in [3, 2, 1, 0] {
        one.take(&policy, 1).await;
        one.settled().await;
        assert!(!one.has_leases());
        assert_eq!(other.remaining(&policy).await, left);
    }
}

#[tokio::test]
async fn a_lease_that_arrives_during_a_reset_is_not_spent_after_it() {
    let server = RedisServer::start();
    let instance = Instance::new(&pool(&server).await, &ManualClock::new());
    let (policy, key) = (Policy::new("p", Quota::per_day(100_000)).max_lease(500), Key::new("alice"));

    // Begun, and not sent before it is polled.
    let reset = instance.store.reset(&policy, &key);
    warm_up(&instance, &policy).await;
    reset.await.unwrap();
    assert!(!instance.has_leases());

    // Sent before the reset, and received after it.
    let mut taking = instance.limiter.check(&policy, &key, 1);
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut taking).poll(cx).is_pending())).await);
    instance.limiter.operator().reset(&policy, &key).await.unwrap();
    assert!(taking.await.unwrap().is_admitted());
    assert!(!instance.has_leases());
}

#[tokio::test]
async fn drain_waits_for_a_lease_whose_request_is_gone() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let [instance, other] = [(); 2].map(|()| Instance::new(&pool, &clock));
    let (policy, key) = (Policy::new("p", Quota::per_day(100_000)).max_lease(500), Key::new("alice"));
    warm_up(&instance, &policy).await;
    instance.limiter.operator().reset(&policy, &key).await.unwrap();
    // A lease from the microsecond of the reset would not be returned.
    clock.advance(Duration::from_millis(1));
    let () = server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let taking = tokio::spawn(instance.limiter.check(&policy, &key, 1));
    let is_sent = async || server.command::<String>(&["CLIENT", "LIST"]).contains(" flags=b ");
    assert!(eventually(is_sent).await);
    taking.abort();
    assert!(taking.await.is_err());
    let drain = tokio::spawn(instance.store.drain());
    tokio::task::yield_now().await;
    let () = server.command(&["CLIENT", "UNPAUSE"]);
    drain.await.unwrap().unwrap();
    assert!(!instance.has_leases());
    assert_eq!(other.remaining(&policy).await, 99_999, "only the unit of the request is charged");
}

#[tokio::test]
async fn a_second_drain_does_not_hide_that_leases_were_not_returned() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let instance = Instance::new(&pool, &clock);
    let policy = Policy::new("p", Quota::per_day(100_000)).max_lease(500);
    warm_up(&instance, &policy).await;
    assert!(instance.has_leases());
    server.signal("STOP");
    for time in ["first", "second"] {
        let drained = instance.limiter.drain(Duration::from_secs(10)).await;
        assert!(drained.is_err(), "the {time} drain");
    }
    server.signal("CONT");
    // The leases have ended, and nothing is left to return.
    assert!(eventually(async || instance.limiter.drain(Duration::from_secs(10)).await.is_ok()).await);
}

#[tokio::test]
async fn the_units_of_a_crashed_instance_begin_to_drain_exactly_when_its_lease_ends() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    // A thousand a second, so the bucket is empty long before the lease ends.
    let policy = Policy::new("fast", Quota::new(100, Duration::from_millis(100))).max_lease(50);
    let [crashed, other] = [(); 2].map(|()| Instance::new(&pool, &clock));
    warm_up(&crashed, &policy).await;
    let leased = u32::try_from(crashed.store.lease_status().units).unwrap();
    drop(crashed);
    let peek = async |cost| other.limiter.peek(&policy, &Key::new("alice"), cost).await.unwrap();
    let unit = Duration::from_millis(1);
    let wait = peek(100).await.retry_after().unwrap();
    assert!(wait > 400 * unit, "{wait:?}");
    clock.advance(wait - leased * unit);
    let ended = peek(0).await;
    let expected = (Some(100 - u64::from(leased)), leased * unit);
    assert_eq!((ended.remaining(), ended.outcomes()[0].reset_after()), expected);
    assert_eq!(peek(100).await.retry_after(), Some(leased * unit));
    clock.advance(leased * unit - Duration::from_micros(1));
    assert!(peek(100).await.verdict().is_denied());
    clock.advance(Duration::from_micros(1));
    assert!(peek(100).await.is_admitted());
}

#[tokio::test]
async fn a_debt_beside_leased_units_stays_owed_and_leased_units_do_not_become_one() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let policy = Policy::new("hourly", Quota::per_hour(1_000)).max_lease(50).max_debt(200);
    let lowered = policy.with_quota(Quota::per_hour(10)).unwrap();
    let [leasing, other] = [(); 2].map(|()| Instance::new(&pool, &clock));
    warm_up(&leasing, &policy).await;
    let wait = async |policy: &Policy| {
        let peeked = other.limiter.peek(policy, &Key::new("alice"), 1).await.unwrap();
        peeked.retry_after().unwrap().as_secs_f64()
    };
    let request = other.limiter.check_up_to(&policy, &Key::new("alice"), 1_000).await.unwrap();
    // A thousand of 1,000 are charged or leased. A unit takes 3.6 seconds, and under the lower quota 6 minutes.
    assert_eq!(wait(&policy).await, 3.6);
    assert!(wait(&lowered).await <= 361.0);
    let debited = other.limiter.debit(&request, 100).await.unwrap();
    assert_eq!(debited.outcomes()[0].granted(), 100);
    assert_eq!(wait(&policy).await, 101.0 * 3.6);
    // It may be leased units that have to end first.
    let lower = wait(&lowered).await;
    assert!((101.0 * 360.0..=101.0 * 360.0 + 1.0).contains(&lower), "{lower}");
    // A second later, leased units have become charged ones.
    clock.advance(Duration::from_secs(1));
    assert!(wait(&policy).await <= 101.0 * 3.6 - 1.0);
    assert!(wait(&lowered).await <= 101.0 * 360.0);
}

#[tokio::test]
async fn a_lease_that_is_returned_leaves_the_units_of_other_instances() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let policy = Policy::new("p", Quota::per_hour(1_000)).max_lease(50);
    let [leasing, other] = [(); 2].map(|()| Instance::new(&pool, &clock));
    warm_up(&leasing, &policy).await;
    // Five more units are leased in this slot and in the one before.
    let key = "rl:p:gcra:{alice}";
    let value: Vec<u8> = server.command(&["GET", key]);
    let (state, text) = value.split_at(25);
    let text = std::str::from_utf8(text).unwrap();
    let [slot, leased, before] =
        text.split(',').map(|part| part.parse::<u64>().unwrap()).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(before, 0);
    let text = format!("{slot},{},5", leased + 5);
    server.set(key, &[state, text.as_bytes()].concat());
    let (units, leased) = (other.remaining(&policy).await, leasing.store.lease_status().units);
    leasing.return_leases(&policy).await;
    assert_eq!(other.remaining(&policy).await, units + leased);
}

#[tokio::test]
async fn a_lease_of_a_sliding_window_ends_with_its_cell_and_returns_nothing_to_a_new_key() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    // A cell is 200 ms long.
    let quota = Quota::new(1_000, Duration::from_secs(2));
    let policy = Policy::new("p", quota).algorithm(SlidingWindow::new().segments(10)).max_lease(50);
    let [leasing, other] = [(); 2].map(|()| Instance::new(&pool, &clock));
    warm_up(&leasing, &policy).await;
    let charged = leasing.take(&policy, 3).await;
    assert_eq!(charged.source(), DecisionSource::Lease);
    leasing.settled().await;
    leasing.return_leases(&policy).await;
    let remaining = other.remaining(&policy).await;
    assert_eq!(leasing.limiter.refund(&charged, 2).await.unwrap().remaining(), Some(remaining + 2));
    warm_up(&leasing, &policy).await;
    clock.advance(Duration::from_millis(200));
    assert_eq!(leasing.take(&policy, 1).await.source(), DecisionSource::Store);
    warm_up(&leasing, &policy).await;
    let () = server.command(&["FLUSHALL"]);
    assert_eq!(other.take(&policy, 1).await.remaining(), Some(999));
    let () = server.command(&["FLUSHALL"]);
    leasing.return_leases(&policy).await;
    assert_eq!(other.remaining(&policy).await, 1_000);
}

#[tokio::test]
async fn a_debt_beside_units_that_were_leased_in_two_slots_stays_owed() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let instance = Instance::new(&pool, &clock);
    let second = Duration::from_secs(1);
    let policy = Policy::new("p", Quota::new(10, 100 * second)).max_debt(10);
    let now = u64::try_from(clock.now().as_micros()).unwrap();
    // Ten units, of which five are owed, and five leased.
    let text = format!("{},2,3;0;0;0,10,5", now / SLOT);
    server.set("rl:p:gcra:{alice}", &current_state(now as f64, 10.0, text));
    let peeked = instance.limiter.peek(&policy, &Key::new("alice"), 1).await.unwrap();
    assert_eq!(peeked.retry_after(), Some(60 * second));
}

/// A lease that has ended is charged when it ended: until then, and from then on, the bucket drains what is above a lower quota.
#[tokio::test]
async fn what_is_above_a_lower_quota_drains_before_a_lease_ends_and_after() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let instance = Instance::new(&pool, &clock);
    let policy = |burst| Policy::new("p", Quota::new(3, Duration::from_secs(4)).burst(burst));
    let now = u64::try_from(clock.now().as_micros()).unwrap();
    // Three units twenty seconds ago, one leased until ten seconds ago, and fifty above.
    let text = format!("{},1,0;0;0;50,5,0", (now - 10_000_000) / SLOT - 2);
    server.set("rl:p:gcra:{alice}", &current_state((now - 20_000_000) as f64, 3.0, text));
    assert_eq!(instance.take(&policy(5), 1).await.remaining(), Some(4));
    // Of those, 4 drained before the lease ended, and 6 after its unit.
    assert_eq!(instance.remaining(&policy(100)).await, 100 - (50 - 4 - 6) - 1);
}

/// The length of a slot of leases in microseconds.
const SLOT: u64 = 500_000;

/// A bucket with leases as a model: its level is in parts of a unit, one for each microsecond of the period, so it is exact.
#[derive(Clone, Debug)]
struct Model {
    period: u64,
    /// The units that drain in the period.
    units: u64,
    burst: u64,
    /// The time of the level.
    at: u64,
    parts: u64,
    slot: u64,
    /// In the slot, and in the slot before.
    leased: [u64; 2],
}

impl Model {
    /// The parts of the level, and of the leased units that have not become level.
    fn parts_at(&self, time: u64) -> (u64, u64) {
        let (mut at, mut parts, mut leased) = (self.at, self.parts, 0);
        let drain = |parts: u64, time: u64| parts.saturating_sub(self.units * time);
        for (ended, units) in [(self.slot + 1, self.leased[1]), (self.slot + 2, self.leased[0])] {
            if ended * SLOT > time {
                leased += units * self.period;
                continue;
            }
            parts = drain(parts, (ended * SLOT).saturating_sub(at)) + units * self.period;
            at = at.max(ended * SLOT);
        }
        (drain(parts, time - at), leased)
    }

    /// The microseconds from `now` until level and leases leave room for `units` units.
    fn wait(&self, now: u64, units: u64) -> u64 {
        let fits = |time| {
            let (parts, leased) = self.parts_at(time);
            parts + leased + units * self.period <= self.burst * self.period
        };
        let (mut low, mut high) = (now, now + 10_000_000_000);
        while low < high {
            let middle = low.midpoint(high);
            if fits(middle) { high = middle } else { low = middle + 1 }
        }
        low - now
    }

    /// What a decision sees if the clock stepped back.
    fn see(&mut self, now: u64) {
        (self.at, self.slot) = (self.at.min(now), self.slot.min(now / SLOT + 1));
    }

    /// The remaining units, the wait for `cost`, and the time until the bucket is empty, as a decision reports them.
    fn expected(&self, now: u64, cost: u64) -> (u64, Option<u64>, u64) {
        let (parts, leased) = self.parts_at(now);
        let remaining = (self.burst * self.period - leased - parts) / self.period;
        (remaining, (cost > remaining).then(|| self.wait(now, cost)), self.wait(now, self.burst))
    }
}

#[tokio::test]
async fn a_bucket_with_leases_waits_as_a_model_does() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let (instance, start) = (Instance::new(&pool, &clock), clock.now());
    let now = || u64::try_from(clock.now().as_micros()).unwrap();
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (units, burst) = (random.u64(1..10), random.u64(5..60));
        let period = [7_000, 100_000, 333_000, 3_000_000][random.usize(0..4)];
        let policy = Policy::new("p", Quota::new(units, Duration::from_micros(period)).burst(burst));
        clock.set(start + Duration::from_micros(random.u64(0..3_000_000)));
        let leased = [random.u64(0..=burst / 2), random.u64(0..=burst / 3)];
        let level = random.u64(0..=burst - leased[0] - leased[1]);
        let (at, slot) = (now() + 300_000 - random.u64(0..1_500_000), now() / SLOT + 3 - random.u64(0..6));
        let text = format!("{slot},{},{}", leased[0], leased[1]);
        server.set("rl:p:gcra:{alice}", &current_state(at as f64, level as f64, text));
        let mut model = Model { period, units, burst, at, parts: level * period, slot, leased };
        for _ in 0..4 {
            let cost = random.u64(1..=burst);
            model.see(now());
            let (remaining, wait, reset) = model.expected(now(), cost);
            let peeked = instance.limiter.peek(&policy, &Key::new("alice"), cost).await.unwrap();
            let reported = peeked.retry_after().map(|wait| wait.as_micros() as u64);
            let empty = peeked.outcomes()[0].reset_after().as_micros() as u64;
            assert_eq!(
                (peeked.remaining(), reported, empty),
                (Some(remaining), wait, reset),
                "seed {seed}: {cost} of {model:?} at {}",
                now()
            );
            let charged = instance.take(&policy, cost).await;
            assert_eq!(charged.is_admitted(), wait.is_none(), "seed {seed}");
            if charged.is_admitted() {
                let (parts, _) = model.parts_at(now());
                for (age, leased) in model.leased.iter_mut().enumerate() {
                    if (model.slot + 2 - age as u64) * SLOT <= now() {
                        *leased = 0;
                    }
                }
                (model.at, model.parts) = (now(), parts + cost * period);
            }
            clock.advance(Duration::from_micros(random.u64(0..700_000)));
        }
    }
}
