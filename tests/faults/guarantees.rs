//! Twenty tenants of one pool over three instances, one of which floods: what each gets of its guarantee, through a change of plans
//! and an outage.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{JoinSet, block_in_place},
    time::{Instant, sleep_until},
};
use tower_ratelimit::{
    Charge, Criticality, FailureMode, Key, Limiter, Policy, Quota, RedisStore, policy::Headroom,
};

use crate::promises::Promises;
use support::RedisServer;

const INSTANCES: u32 = 3;
const TENANTS: usize = 20;
/// Of the pool, in a second: all of it is guaranteed.
const RATE: u64 = 200;
const GUARANTEE: u64 = 10;
const BURST: u64 = 5;
/// Of the tenant that floods, and of the others.
const FLOOD: f64 = 500.0;
const USUAL: f64 = 9.0;
/// After this many seconds, one tenant gets more and another one less, and sends as much.
const CHANGE: u64 = 15;
const PLANS: [(usize, u64); 2] = [(1, 14), (2, 6)];
/// When the server is frozen, and when it continues.
const OUTAGE: [u64; 2] = [35, 40];
const END: u64 = 60;
/// What is left out after the start, the change and the outage: bursts, and what is charged for the outage.
const SETTLED: u64 = 5;

/// What a tenant asked for and got in a second.
#[derive(Default)]
struct Second {
    asked: AtomicU64,
    admitted: AtomicU64,
    /// Denied although its guarantee had a unit.
    denied_within: AtomicU64,
    /// Decided without the server.
    local: AtomicU64,
}

type Seconds = Arc<Vec<Vec<Second>>>;

struct Caller {
    limiters: Vec<Limiter>,
    tenant: usize,
    started: Instant,
    has_ended: Arc<AtomicBool>,
    seconds: Seconds,
}

impl Caller {
    fn rate(&self, second: u64) -> f64 {
        let changed = PLANS.iter().find(|(tenant, _)| *tenant == self.tenant && second >= CHANGE);
        match (self.tenant, changed) {
            (0, _) => FLOOD,
            (_, Some((_, guarantee))) => USUAL + *guarantee as f64 - GUARANTEE as f64,
            _ => USUAL,
        }
    }

    async fn run(self) {
        let pool = pool();
        let (all, key) = (Key::new("all"), Key::new(self.tenant as u64));
        let (mut next, mut calls) = (self.started, JoinSet::new());
        let mut turn = self.tenant;
        while !self.has_ended.load(Ordering::Relaxed) {
            let second = self.started.elapsed().as_secs();
            // A Poisson process: requests do not come evenly.
            next += Duration::from_secs_f64(-(1.0 - fastrand::f64()).ln() / self.rate(second));
            sleep_until(next).await;
            let changed = PLANS.iter().find(|(tenant, _)| *tenant == self.tenant && second >= CHANGE);
            let tenant = tenant(changed.map_or(GUARANTEE, |(_, guarantee)| *guarantee));
            let charge = Charge::new(&pool, &all, 1).with_criticality(Criticality::Sheddable);
            let guarantee = charge.guarantee(&tenant, &key).unwrap();
            turn += 1;
            let decided = self.limiters[turn % self.limiters.len()].check_all(&[charge, guarantee]);
            let (seconds, place, started) = (self.seconds.clone(), self.tenant, self.started);
            calls.spawn(async move {
                let decision = decided.await.unwrap();
                let Some(of) = seconds[place].get(started.elapsed().as_secs() as usize) else { return };
                let is_within = decision.shadows().iter().any(|outcome| !outcome.verdict().is_denied());
                of.asked.fetch_add(1, Ordering::Relaxed);
                of.admitted.fetch_add(u64::from(decision.is_admitted()), Ordering::Relaxed);
                of.denied_within.fetch_add(u64::from(is_within && decision.is_denied()), Ordering::Relaxed);
                of.local.fetch_add(u64::from(decision.failure().is_some()), Ordering::Relaxed);
            });
            while calls.try_join_next().is_some() {}
        }
        while calls.join_next().await.is_some() {}
    }
}

fn pool() -> Policy {
    let headroom = TENANTS as u64 * BURST + 1;
    Policy::new("pool", Quota::per_second(RATE).burst(headroom + 20))
        .headroom(Criticality::Sheddable, Headroom::Units(headroom))
        .failure_mode(FailureMode::Local { instances: INSTANCES })
}

fn tenant(guarantee: u64) -> Policy {
    Policy::new("tenant", Quota::per_second(guarantee).burst(BURST))
}

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Guarantees in a pool\n");
    println!(
        "{INSTANCES} instances, a pool of {RATE} a second, and {TENANTS} tenants that have {GUARANTEE} each, with bursts of {BURST}. \
         One sends {FLOOD} a second and the others {USUAL}, at random times. After {CHANGE} s one gets 14 and sends 13, and another \
         one gets 6 and sends 5. After {} s Redis freezes for {} s.\n",
        OUTAGE[0],
        OUTAGE[1] - OUTAGE[0]
    );
    let server = RedisServer::start();
    let mut limiters = Vec::new();
    for _ in 0..INSTANCES {
        limiters.push(Limiter::new(RedisStore::builder().connect(&server.url()).await.unwrap()));
    }
    let seconds = (0..TENANTS).map(|_| (0..END).map(|_| Second::default()).collect()).collect();
    let (seconds, has_ended): (Seconds, _) = (Arc::new(seconds), Arc::new(AtomicBool::new(false)));
    let (started, mut callers) = (Instant::now(), JoinSet::new());
    for tenant in 0..TENANTS {
        let (limiters, has_ended, seconds) = (limiters.clone(), has_ended.clone(), seconds.clone());
        callers.spawn(Caller { limiters, tenant, started, has_ended, seconds }.run());
    }
    sleep_until(started + Duration::from_secs(OUTAGE[0])).await;
    block_in_place(|| server.signal("STOP"));
    sleep_until(started + Duration::from_secs(OUTAGE[1])).await;
    block_in_place(|| server.signal("CONT"));
    sleep_until(started + Duration::from_secs(END)).await;
    has_ended.store(true, Ordering::Relaxed);
    while callers.join_next().await.is_some() {}

    println!(
        "| seconds | asked, of the pool's | admitted, of the pool's | the flood, 1/s | tenant with 14, of what it asked | with 6 \
         | the others | the least of these | denied within a guarantee | without Redis |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let rows = [
        ("before the change", SETTLED, CHANGE),
        ("after it", CHANGE + SETTLED, OUTAGE[0]),
        ("outage", OUTAGE[0], OUTAGE[1]),
        ("after it", OUTAGE[1] + SETTLED, END),
    ];
    for (name, from, to) in rows {
        let sum = |tenant: usize, value: fn(&Second) -> &AtomicU64| {
            let of = seconds[tenant][from as usize..to as usize].iter();
            of.map(|second| value(second).load(Ordering::Relaxed)).sum::<u64>()
        };
        let all =
            |value: fn(&Second) -> &AtomicU64| (0..TENANTS).map(|tenant| sum(tenant, value)).sum::<u64>();
        let share = |tenant: usize| {
            sum(tenant, |second| &second.admitted) as f64 / sum(tenant, |second| &second.asked) as f64
        };
        let most = (RATE * (to - from)) as f64;
        let (asked, admitted) = (all(|second| &second.asked), all(|second| &second.admitted));
        let within = all(|second| &second.denied_within);
        let others = || (3..TENANTS).map(share);
        let (use_of_pool, mean) = (admitted as f64 / most, others().sum::<f64>() / others().count() as f64);
        let is_outage = name == "outage";
        let marks = if is_outage {
            // What each instance has is its share of the pool, full at first.
            let bound = most + (RATE + TENANTS as u64 * BURST + 21) as f64;
            promises
                .check(admitted as f64 <= bound, || format!("{admitted} admitted in the outage, of {bound}"))
        } else {
            promises.check(within == 0, || format!("{name}: {within} denied within their guarantees"));
            promises.check(use_of_pool >= 0.99, || format!("{name}: {use_of_pool:.3} of the pool was used"))
        };
        println!(
            "| {name}, {from} to {to} | {:.2} | {use_of_pool:.3}{marks} | {:.1} | {:.3} | {:.3} | {mean:.3} | {:.3} | {within} | {} |",
            asked as f64 / most,
            sum(0, |second| &second.admitted) as f64 / (to - from) as f64,
            share(1),
            share(2),
            others().fold(1.0, f64::min),
            all(|second| &second.local),
        );
    }
}
