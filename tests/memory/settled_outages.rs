//! Reservations over outages: once all are settled, what is charged is what was used, but for calls whose replies were lost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use support::{Fake, day, fails, units_left};

use tokio::{task::JoinSet, time::sleep};
use tower_ratelimit::{
    Answer, Charge, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Reservation,
    algorithm::FixedWindow,
};

const LIMIT: u64 = 1_000_000;

/// A store that takes some time, and fails without having decided while it is down.
#[derive(Clone)]
struct Unsteady {
    counts: MemoryStore,
    is_down: Arc<AtomicBool>,
    /// Of a hundred calls, how many fail although they may have been made.
    loses: u8,
    /// The units of these calls.
    lost: Arc<AtomicU64>,
    random: Arc<Mutex<fastrand::Rng>>,
}

impl Unsteady {
    fn limiter(&self) -> Limiter {
        let Self { is_down, loses, lost, random, .. } = self.clone();
        let wait = move || {
            let mut random = random.lock().unwrap();
            (Duration::from_millis(random.u64(..30)), random.u8(..100) < loses, random.bool())
        };
        Limiter::new(Fake::new(self.counts.clone(), move |counts, action, charges| {
            let (time, is_lost, is_made) = wait();
            let (counts, charges) = (counts.clone(), charges.to_vec());
            let (is_down, lost) = (is_down.clone(), lost.clone());
            Answer::pending(async move {
                sleep(time).await;
                if is_down.load(Relaxed) {
                    return fails(ErrorKind::StoreUnreachable).await;
                }
                if !is_lost {
                    return counts.decide(action, &charges).await;
                }
                let most = charges.iter().map(Charge::cost).max().unwrap_or_default();
                lost.fetch_add(most, Relaxed);
                if is_made {
                    counts.decide(action, &charges).await?;
                }
                fails(ErrorKind::StoreTimeout).await
            })
        }))
    }
}

/// A store that answers, until it is down.
fn steady(seed: u64) -> Unsteady {
    Unsteady {
        counts: MemoryStore::new(),
        is_down: Arc::default(),
        loses: 0,
        lost: Arc::default(),
        random: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))),
    }
}

#[tokio::test]
async fn only_what_is_debited_in_an_outage_becomes_debt() {
    let day = Policy::new("p", Quota::per_day(100));
    let window = day.clone().algorithm(FixedWindow::anchored());
    for (debited, policy) in [(10, &day), (0, &day), (10, &window), (0, &window)] {
        let store = steady(debited);
        let limiter = store.limiter();
        let policy = policy.clone().max_debt(500).failure_mode(FailureMode::Local { instances: 1 });
        let key = Key::new("alice");
        assert!(limiter.check(&policy, &key, 100).await.unwrap().is_admitted());
        store.is_down.store(true, Relaxed);
        let here = limiter.check(&policy, &key, 60).await.unwrap();
        assert!(here.is_admitted());
        limiter.debit(&here, debited).await.unwrap();
        store.is_down.store(false, Relaxed);
        limiter.drain(Duration::from_secs(60)).await.unwrap();
        let owed = limiter.operator().owed(&policy, &key).await.unwrap();
        // In a bucket, some of them may have drained.
        assert!(owed == debited || owed + 1 == debited, "{owed} of {debited}");
    }
}

/// Makes a reservation and changes it. Returns what it is to be charged in the end, and what it did.
async fn use_some(limiter: Limiter, policies: [Policy; 2], mut random: fastrand::Rng) -> (u64, Vec<String>) {
    let pause = |random: &mut fastrand::Rng| sleep(Duration::from_millis(random.u64(..200)));
    pause(&mut random).await;
    let mut total = random.u64(1..50);
    let charges = policies.map(|policy| Charge::new(&policy, &Key::new("all"), total));
    let decision = limiter.check_all(&charges).await.unwrap();
    assert!(decision.is_admitted());
    let mut did = vec![format!("{total}, {:?}", decision.failure().map(Error::kind))];
    let reservation = Reservation::new(&limiter, &decision);
    if random.u8(..8) == 0 {
        pause(&mut random).await;
        drop(reservation.or_refund());
        did.push("refund".to_owned());
        return (0, did);
    }
    let mut has_settled = false;
    for _ in 0..random.usize(..5) {
        pause(&mut random).await;
        let units = random.u64(..100);
        let is_settled = random.bool();
        has_settled |= is_settled;
        total = if is_settled { units } else { units.max(total) };
        did.push(format!("{} {units}", if is_settled { "settle" } else { "extend to" }));
        let answer = if is_settled { reservation.settle(units) } else { reservation.extend_to(units) };
        // It takes effect even if its answer is dropped.
        if random.bool() {
            answer.await.unwrap();
        }
    }
    if !has_settled && random.bool() {
        total = random.u64(..100);
        did.push(format!("record {total}"));
        reservation.record(total);
    }
    (total, did)
}

async fn schedule(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let store = Unsteady {
        counts: MemoryStore::new(),
        is_down: Arc::default(),
        loses: if seed.is_multiple_of(3) { 20 } else { 0 },
        lost: Arc::default(),
        random: Arc::new(Mutex::new(random.fork())),
    };
    let limiter = store.limiter();
    let policies =
        ["tokens", "rows"].map(|name| day(name, LIMIT).failure_mode(FailureMode::Local { instances: 1 }));
    let mut users = JoinSet::new();
    for _ in 0..random.usize(1..=6) {
        users.spawn(use_some(limiter.clone(), policies.clone(), random.fork()));
    }
    let mut seen = Vec::new();
    while !users.is_empty() {
        sleep(Duration::from_millis(random.u64(1..150))).await;
        store.is_down.store(random.bool(), Relaxed);
        while let Some(user) = users.try_join_next() {
            seen.push(user.unwrap());
        }
    }
    sleep(Duration::from_millis(random.u64(..500))).await;
    store.is_down.store(false, Relaxed);
    limiter.drain(Duration::from_secs(60)).await.unwrap();
    // The first answer of the store reconciles.
    for _ in 0..20 {
        limiter.peek(&policies[0], &Key::new("all"), 0).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    let expected: u64 = seen.iter().map(|(total, _)| total).sum();
    for policy in &policies {
        let left = units_left(&Limiter::new(store.counts.clone()), policy).await;
        let (charged, lost) = (LIMIT - left, store.lost.load(Relaxed));
        assert!(
            charged.abs_diff(expected) <= lost,
            "seed {seed}, {}: {charged} charged, {expected} used, {lost} lost: {seen:?}",
            policy.name()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_charged_in_the_end_is_what_was_used_despite_outages() {
    let seeds = std::env::var("SETTLED_SEEDS").map_or(300, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        schedule(seed).await;
    }
}
