//! Simulates many instances with one Redis server and compares the result with the formulas of
//! docs/scaling.md.
//!
//! ```text
//! cargo run --release -p docs-figures --bin scaling
//! cargo run --release -p docs-figures --bin scaling -- --call 8.3 --decision 1.7 --round-trip 500
//! cargo run --release -p docs-figures --bin scaling -- --instance redis://127.0.0.1/ --rate 50
//! ```
//!
//! Requests come at random times to instances that each have three or six lanes to Redis and send waiting
//! decisions in batches, as `RedisStore` does. Redis executes one batch after the other. The crate's own
//! algorithms decide, in a `MemoryStore` in place of Redis, with a clock that the simulation sets.
//!
//! With `--instance`, the program is an instance of a real fleet instead: start as many as the fleet has.

#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    error::Error,
    time::Duration,
};

use clap::{Args, Parser};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tower_ratelimit::{
    Key, Limiter, MemoryStore, Policy, Quota, RedisStore, algorithm::FixedWindow, store::ManualClock,
};

const MOST_IN_A_CALL: usize = 128;
const REMEMBERED: u64 = 1_000_000;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    costs: Costs,
    /// Sends requests to this Redis and simulates nothing
    #[arg(long)]
    instance: Option<String>,
    /// Requests a second of the instance
    #[arg(long, default_value_t = 50.0)]
    rate: f64,
    /// How long the instance sends requests
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, Args)]
struct Costs {
    /// Microseconds of CPU time of Redis for a batch
    #[arg(long, default_value_t = 8.3)]
    call: f64,
    /// and for each decision in it,
    #[arg(long, default_value_t = 1.7)]
    decision: f64,
    /// and more if Redis had nothing to do and slept,
    #[arg(long, default_value_t = 20.0)]
    wake: f64,
    /// and more for a batch for each connection of a fleet.
    #[arg(long, default_value_t = 0.0012)]
    connection: f64,
    /// Microseconds from an instance to Redis and back.
    #[arg(long, default_value_t = 500.0)]
    round_trip: f64,
}

impl Costs {
    /// The lanes of an instance.
    fn lanes(self) -> usize {
        if self.round_trip > 500.0 { 6 } else { 3 }
    }

    /// With the connections of a fleet. The caches of a core do not hold the data of thousands.
    fn with_connections(self, instances: usize) -> Self {
        let connections = (instances * self.lanes()) as f64;
        Self { call: self.call + self.connection * connections, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Traffic {
    instances: usize,
    /// Requests a second, over all instances.
    rate: f64,
    keys: u64,
    /// The limit of each key, in units a second.
    limit: u64,
    deny_cache: bool,
    /// The units of a lease.
    lease: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    calls: u64,
    decisions: u64,
    admitted: u64,
    requests: u64,
    /// Microseconds in which Redis was busy, and in all.
    busy: f64,
    time: f64,
    waits: f64,
}

struct Job {
    came: u64,
    key: u64,
}

enum Event {
    Arrival,
    AtRedis { instance: usize, jobs: Vec<Job> },
    Reply { instance: usize, jobs: Vec<(Job, Answer)> },
}

#[derive(Clone, Copy)]
struct Answer {
    granted: u64,
    /// Microseconds until the next request can be admitted. For an admission, until the window ends.
    wait: u64,
}

#[derive(Default)]
struct Instance {
    busy: usize,
    waiting: VecDeque<Job>,
    /// When the next request on a denied key is sent to Redis.
    denied: HashMap<u64, u64>,
    /// The leased units, and when they expire.
    leased: HashMap<u64, (u64, u64)>,
}

/// Sebastiano Vigna's SplitMix64: the same traffic in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Microseconds until the next of `rate` random arrivals a second.
    fn gap(&mut self, rate: f64) -> f64 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        -(1.0 - uniform).ln() / rate * 1e6
    }
}

struct Simulation {
    costs: Costs,
    traffic: Traffic,
    instances: Vec<Instance>,
    /// Ordered by time, then by creation.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    content: HashMap<u64, Event>,
    made: u64,
    arrives: f64,
    random: Random,
    clock: ManualClock,
    start: Duration,
    redis: Limiter,
    policy: Policy,
    free_at: f64,
    seen: Seen,
}

impl Simulation {
    fn new(costs: Costs, traffic: Traffic) -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::new();
        let quota = Quota::try_new(traffic.limit, Duration::from_secs(1))?;
        let mut policy = Policy::new("simulated", quota);
        if traffic.lease > 1 {
            // Units leased from a window are spent in it.
            policy = policy.algorithm(FixedWindow::aligned());
        }
        Ok(Self {
            costs,
            traffic,
            instances: (0..traffic.instances).map(|_| Instance::default()).collect(),
            events: BinaryHeap::new(),
            content: HashMap::new(),
            made: 0,
            arrives: 0.0,
            random: Random(7),
            start: clock.now(),
            redis: Limiter::new(MemoryStore::with_clock(clock.clone())),
            clock,
            policy,
            free_at: 0.0,
            seen: Seen::default(),
        })
    }

    async fn run(mut self, time: u64) -> Result<Seen, Box<dyn Error>> {
        self.at(0, Event::Arrival);
        while let Some(Reverse((now, number))) = self.events.pop() {
            if now > time {
                break;
            }
            match self.content.remove(&number) {
                Some(Event::Arrival) => self.arrive(now),
                Some(Event::AtRedis { instance, jobs }) => self.decide(now, instance, jobs).await?,
                Some(Event::Reply { instance, jobs }) => self.reply(now, instance, jobs),
                None => {}
            }
        }
        self.seen.time = time as f64;
        // What Redis does after the end is not part of the run.
        self.seen.busy -= (self.free_at - self.seen.time).max(0.0);
        Ok(self.seen)
    }

    fn at(&mut self, time: u64, event: Event) {
        let number = self.made;
        self.made += 1;
        self.events.push(Reverse((time, number)));
        self.content.insert(number, event);
    }

    fn arrive(&mut self, now: u64) {
        self.seen.requests += 1;
        self.arrives += self.random.gap(self.traffic.rate);
        self.at(self.arrives as u64, Event::Arrival);
        let instance = self.random.below(self.traffic.instances as u64) as usize;
        let key = self.random.below(self.traffic.keys);
        let at = &mut self.instances[instance];
        if at.denied.get(&key).is_some_and(|over| now < *over) {
            return;
        }
        if let Some((units, until)) = at.leased.get_mut(&key)
            && now < *until
            && *units > 0
        {
            *units -= 1;
            self.seen.admitted += 1;
            return;
        }
        at.waiting.push_back(Job { came: now, key });
        if at.busy < self.costs.lanes() {
            at.busy += 1;
            let gathered = at.waiting.drain(..at.waiting.len().min(MOST_IN_A_CALL)).collect();
            self.send(now, instance, gathered);
        }
    }

    fn send(&mut self, now: u64, instance: usize, jobs: Vec<Job>) {
        let arrival = now + (self.costs.round_trip / 2.0) as u64;
        self.at(arrival, Event::AtRedis { instance, jobs });
    }

    async fn decide(&mut self, now: u64, instance: usize, jobs: Vec<Job>) -> Result<(), Box<dyn Error>> {
        let begins = self.free_at.max(now as f64);
        let wake = if self.free_at < now as f64 { self.costs.wake } else { 0.0 };
        let work = wake + self.costs.call + self.costs.decision * jobs.len() as f64;
        self.free_at = begins + work;
        self.seen.busy += work;
        self.seen.calls += 1;
        self.seen.decisions += jobs.len() as u64;
        self.clock.set(self.start + Duration::from_micros(begins as u64));
        let mut answered = Vec::with_capacity(jobs.len());
        for job in jobs {
            let key = Key::new(job.key.to_string());
            let decision = self.redis.check_up_to(&self.policy, &key, self.traffic.lease).await?;
            let outcome = &decision.outcomes()[0];
            let wait =
                outcome.verdict().retry_after().unwrap_or_else(|| outcome.reset_after()).as_micros() as u64;
            answered.push((job, Answer { granted: outcome.granted(), wait }));
        }
        let back = (self.free_at + self.costs.round_trip / 2.0) as u64;
        self.at(back, Event::Reply { instance, jobs: answered });
        Ok(())
    }

    fn reply(&mut self, now: u64, instance: usize, jobs: Vec<(Job, Answer)>) {
        let at = &mut self.instances[instance];
        for (job, answer) in jobs {
            self.seen.waits += (now - job.came) as f64;
            // Counted from before the batch was sent, as the store does.
            let until = job.came + answer.wait;
            if answer.granted > 0 {
                self.seen.admitted += 1;
                if answer.granted > 1 {
                    at.leased.insert(job.key, (answer.granted - 1, until));
                }
            } else if self.traffic.deny_cache {
                at.denied.insert(job.key, until.min(job.came + REMEMBERED));
            }
        }
        let gathered: Vec<Job> = at.waiting.drain(..at.waiting.len().min(MOST_IN_A_CALL)).collect();
        if gathered.is_empty() {
            at.busy -= 1;
        } else {
            self.send(now, instance, gathered);
        }
    }
}

/// Decisions in a batch, and the busy share of Redis, by the formulas of docs/scaling.md.
fn predicted(costs: Costs, instances: usize, asked: f64) -> (f64, f64) {
    let (all, each) = (asked / 1e6, asked / instances as f64 / 1e6);
    // The decisions that come to an instance while each of its lanes has its turn at Redis, divided by the
    // lanes.
    let gathered =
        each * (costs.round_trip / costs.lanes() as f64 + costs.call) / (1.0 - each * costs.decision);
    // Batches grow until Redis can keep up.
    let at_least = costs.call / (1.0 / all - costs.decision);
    let most = MOST_IN_A_CALL as f64;
    let within = |decisions: f64| if decisions < 0.0 { most } else { decisions.clamp(1.0, most) };
    let gathered = within(gathered).max(within(at_least));
    // Redis sleeps before the share of batches that come while it has nothing to do.
    let wake = all * costs.wake / gathered;
    (gathered, (all * (costs.call / gathered + costs.decision) + wake) / (1.0 + wake))
}

/// Sends requests at random times to Redis, and prints how many were decided.
async fn instance(url: &str, rate: f64, time: Duration) -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(RedisStore::builder().connect(url).await?);
    let policy = Policy::new("fleet", Quota::per_day(10_000));
    let mut random = Random(std::process::id().into());
    let mut requests = JoinSet::new();
    let start = Instant::now();
    let mut next = Duration::ZERO;
    while next < time {
        next += Duration::from_secs_f64(random.gap(rate) / 1e6);
        sleep_until(start + next).await;
        let key = Key::new(random.below(10_000).to_string());
        let (limiter, policy) = (limiter.clone(), policy.clone());
        requests.spawn(async move { limiter.check(&policy, &key, 1).await.is_ok() });
    }
    let decided = requests.join_all().await.into_iter().filter(|decided| *decided).count();
    println!("{decided}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { costs, instance: url, rate, seconds } = Arguments::parse();
    if let Some(url) = url {
        return instance(&url, rate, Duration::from_secs(seconds)).await;
    }
    let plain =
        Traffic { instances: 10, rate: 1e5, keys: 10_000, limit: 1_000_000, deny_cache: true, lease: 1 };
    // A second, so that counts are rates.
    let time = 1_000_000;
    let out = &mut std::io::stdout().lock();
    use std::io::Write as _;

    writeln!(out, "Batch sizes and load of Redis")?;
    writeln!(out, "| instances | requests/s | in a batch | formula | Redis busy | formula | mean wait |")?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for (instances, rate) in [(1, 1e3), (1, 1e4), (1, 1e5), (10, 1e4), (10, 1e5), (10, 1.5e5), (50, 1e5)] {
        let seen = Simulation::new(costs, Traffic { instances, rate, ..plain })?.run(time).await?;
        let (gathered, busy) = predicted(costs, instances, rate);
        writeln!(
            out,
            "| {instances} | {rate} | {:.1} | {gathered:.1} | {:.2} | {busy:.2} | {:.0} µs |",
            seen.decisions as f64 / seen.calls as f64,
            seen.busy / seen.time,
            seen.waits / seen.decisions as f64,
        )?;
    }

    writeln!(out, "\nA fleet")?;
    writeln!(
        out,
        "| instances | requests/s of each | requests/s | in a batch | Redis busy | formula | mean wait |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    let usual =
        [10, 100, 1_000].into_iter().flat_map(|instances| [1.0, 10.0, 50.0].map(|each| (instances, each)));
    for (instances, each) in usual.chain([(1_000, 70.0), (1_000, 150.0)]) {
        let costs = costs.with_connections(instances);
        let rate = instances as f64 * each;
        let seen = Simulation::new(costs, Traffic { instances, rate, ..plain })?.run(time).await?;
        let (_, busy) = predicted(costs, instances, rate);
        writeln!(
            out,
            "| {instances} | {each} | {rate} | {:.2} | {:.1} % | {:.1} % | {:.0} µs |",
            seen.decisions as f64 / seen.calls as f64,
            100.0 * seen.busy / seen.time,
            100.0 * busy,
            seen.waits / seen.decisions as f64,
        )?;
    }

    writeln!(out, "\nOne key that is nearly always denied: requests to Redis")?;
    writeln!(
        out,
        "| instances | requests/s | limit | Redis decisions/s without | with the deny cache | formula |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for (instances, limit) in [(1, 10), (10, 10), (10, 100), (50, 10)] {
        let traffic = Traffic { instances, keys: 1, limit, ..plain };
        let without = Simulation::new(costs, Traffic { deny_cache: false, ..traffic })?.run(time).await?;
        let with = Simulation::new(costs, traffic)?.run(time).await?;
        // For each replenished unit, every instance sends one request, plus the requests that come before the
        // first reply and wait for a lane until the second.
        let under_way = 2.0 * traffic.rate * (costs.round_trip + costs.call + costs.decision) / 1e6;
        let formula = limit as f64 * (instances as f64 + under_way);
        writeln!(
            out,
            "| {instances} | {} | {limit} | {} | {} | {formula:.0} |",
            traffic.rate, without.decisions, with.decisions
        )?;
    }

    writeln!(out, "\nOne key that is nearly always admitted: requests to Redis")?;
    writeln!(
        out,
        "| instances | requests/s | lease | Redis decisions/s | formula | admitted above the limit |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for (instances, lease) in [(10, 1), (10, 10), (10, 100), (10, 1_000)] {
        let traffic = Traffic { instances, keys: 1, limit: 80_000, lease, ..plain };
        let seen = Simulation::new(costs, traffic)?.run(time).await?;
        let formula = traffic.rate.min(traffic.limit as f64) / lease as f64;
        // The run may include a part of a second window.
        let most = 2 * traffic.limit;
        writeln!(
            out,
            "| {instances} | {} | {lease} | {} | {formula:.0} | {} |",
            traffic.rate,
            seen.decisions,
            seen.admitted.saturating_sub(most)
        )?;
    }
    Ok(())
}
