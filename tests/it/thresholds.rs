//! A key that has used a share of its quota is reported once.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::sleep,
    time::{Duration, UNIX_EPOCH},
};

use futures_util::future::join_all;
use support::{RedisServer, eventually, memory_and_redis, settings, store};
use tower_ratelimit::{
    Decision, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RedisStore,
    Reservation,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, TokenBucket},
    store::ManualClock,
};

/// The events of limiters: how often each id was reported, and the percents in their order.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<(HashMap<String, usize>, Vec<u8>)>>);

impl Events {
    fn of(limiter: &Limiter) -> Self {
        let events = Self::default();
        events.listen_to(limiter);
        events
    }

    fn listen_to(&self, limiter: &Limiter) {
        let events = self.0.clone();
        limiter.on_threshold(move |event| {
            assert!(event.used * 100 >= event.limit * u64::from(event.percent), "{event:?}");
            let (ids, percents) = &mut *events.lock().unwrap();
            *ids.entry(event.id()).or_default() += 1;
            percents.push(event.percent);
        });
    }

    fn percents(&self) -> Vec<u8> {
        self.0.lock().unwrap().1.clone()
    }

    /// The number of different ids, and of all events.
    fn counts(&self) -> (usize, usize) {
        let (ids, percents) = &*self.0.lock().unwrap();
        (ids.len(), percents.len())
    }
}

fn plan(limit: u64) -> Policy {
    Policy::new("plan", Quota::per_month(limit)).notify_at([50, 80, 100])
}

fn alice() -> Key {
    Key::new("alice")
}

#[tokio::test]
async fn each_share_is_reported_when_it_is_reached() {
    let server = RedisServer::start();
    for (store, limiter) in memory_and_redis(&server).await {
        let events = Events::of(&limiter);
        for (cost, expected) in
            [(49, vec![]), (1, vec![50]), (29, vec![50]), (21, vec![50, 80, 100]), (1, vec![50, 80, 100])]
        {
            limiter.check(&plan(100), &alice(), cost).await.unwrap();
            assert_eq!(events.percents(), expected, "{store}: after {cost}");
        }
        // Peeks and denials report nothing, another key does.
        limiter.peek(&plan(100), &Key::new("bob"), 90).await.unwrap();
        limiter.check(&plan(100), &Key::new("bob"), 101).await.unwrap();
        assert_eq!(events.percents().len(), 3, "{store}");
        limiter.check(&plan(100), &Key::new("bob"), 90).await.unwrap();
        assert_eq!(events.percents()[3..], [50, 80], "{store}");
    }
}

#[tokio::test]
async fn an_event_has_the_end_of_its_window_and_is_reported_once_in_it() {
    let clock = ManualClock::new(); // 2026-01-01
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let ends = Arc::new(Mutex::new(Vec::new()));
    let seen = ends.clone();
    limiter.on_threshold(move |event| {
        assert!(!event.id().contains("alice"));
        let ends = event.ends.unwrap().duration_since(UNIX_EPOCH).unwrap();
        seen.lock().unwrap().push((event.percent, ends, event.id()));
    });
    clock.advance(Duration::from_micros(1_234_567));
    let charged = limiter.check(&plan(100), &alice(), 60).await.unwrap();
    clock.advance(Duration::from_secs(86_400));
    limiter.refund(&charged, 20).await.unwrap();
    limiter.check(&plan(100), &alice(), 10).await.unwrap();
    // A larger plan, and the next month.
    limiter.check(&plan(200), &alice(), 60).await.unwrap();
    clock.advance(Duration::from_secs(31 * 86_400));
    limiter.check(&plan(200), &alice(), 100).await.unwrap();
    let events = ends.lock().unwrap();
    let [first, larger, next] = &events[..] else { panic!("{events:?}") };
    assert_eq!(first.1, Duration::from_secs(1_769_904_000), "2026-02-01");
    assert!(larger.2 != first.2 && next.2 != larger.2, "{events:?}");
    assert_eq!(next.1, Duration::from_secs(1_772_323_200), "2026-03-01");
}

/// A debt of January is paid by the budget of February, of which all is used then too.
#[tokio::test]
async fn a_window_with_a_debt_ends_when_it_ends_and_the_next_one_has_its_own_events() {
    let server = RedisServer::start();
    let february = Duration::from_secs(1_769_904_000);
    let march = february + Duration::from_secs(28 * 86_400);
    let clock = ManualClock::new(); // 2026-01-01
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    for limiter in [Limiter::new(MemoryStore::with_clock(clock.clone())), Limiter::new(redis)] {
        clock.set(february - Duration::from_secs(86_400));
        let ends = Arc::new(Mutex::new(Vec::new()));
        let seen = ends.clone();
        limiter.on_threshold(move |event| {
            let ends = event.ends.unwrap().duration_since(UNIX_EPOCH).unwrap();
            seen.lock().unwrap().push((event.percent, event.used, ends));
        });
        let plan = plan(100).max_debt(50);
        let request = limiter.check(&plan, &alice(), 90).await.unwrap();
        limiter.debit(&request, 40).await.unwrap();
        clock.set(february);
        limiter.check(&plan, &alice(), 70).await.unwrap();
        let expected = [
            (50, 90, february),
            (80, 90, february),
            (100, 130, february),
            (50, 100, march),
            (80, 100, march),
            (100, 100, march),
        ];
        assert_eq!(*ends.lock().unwrap(), expected);
    }
}

/// A client that sends as fast as units become available reaches the share with each request.
#[tokio::test]
async fn a_key_that_stays_near_a_share_is_reported_once() {
    let server = RedisServer::start();
    let quota = Quota::per_minute(60);
    // The policy, what is used at first, and the seconds between two requests.
    let near = [
        (Policy::new("log", quota).algorithm(SlidingLog::new()), 0, 2),
        (Policy::new("gcra", quota), 30, 1),
        (Policy::new("tokens", quota).algorithm(TokenBucket::new()), 30, 1),
        (Policy::new("meter", quota).algorithm(LeakyBucket::meter()), 30, 1),
    ];
    let clock = ManualClock::new();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    for (store, limiter) in
        [("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))), ("redis", Limiter::new(redis))]
    {
        for (policy, used, seconds) in near.clone() {
            let context = format!("{store}: {policy:?}");
            let policy = policy.notify_at([50]);
            let events = Events::of(&limiter);
            let charge = async |units| {
                assert!(limiter.check(&policy, &alice(), units).await.unwrap().is_admitted(), "{context}");
            };
            charge(used).await;
            for _ in 0..200 {
                clock.advance(Duration::from_secs(seconds));
                charge(1).await;
            }
            assert_eq!(events.percents(), [50], "{context}");
            // After a period in which it was not reached, it is news again.
            clock.advance(Duration::from_secs(61));
            charge(30).await;
            assert_eq!(events.percents(), [50, 50], "{context}");
            assert_eq!(events.counts(), (2, 2), "{context}");
        }
    }
}

/// The client chooses how often that happens.
#[tokio::test]
async fn refunded_requests_report_a_share_once_in_a_process_and_with_one_id_in_all() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let connect = || settings().manual_clock(clock.clone());
    let one = Limiter::new(connect().connect(&server.url()).await.unwrap());
    let other = Limiter::new(connect().connect(&server.url()).await.unwrap());
    let events = Events::default();
    events.listen_to(&one);
    events.listen_to(&other);
    one.check(&plan(100), &alice(), 49).await.unwrap();
    for _ in 0..50 {
        for limiter in [&one, &other] {
            let charged = limiter.check(&plan(100), &alice(), 1).await.unwrap();
            limiter.refund(&charged, 1).await.unwrap();
        }
    }
    assert_eq!(events.counts(), (1, 2));
}

#[tokio::test]
async fn settlements_and_debits_report_what_they_charge() {
    let server = RedisServer::start();
    for (store, limiter) in memory_and_redis(&server).await {
        let events = Events::of(&limiter);
        let policy = plan(100).max_debt(50);
        let decision = limiter.check(&policy, &alice(), 10).await.unwrap();
        Reservation::new(&limiter, &decision).settle(85).await.unwrap();
        assert_eq!(events.percents(), [50, 80], "{store}");
        let decision = limiter.check(&policy, &alice(), 1).await.unwrap();
        limiter.debit(&decision, 60).await.unwrap();
        assert_eq!(events.percents(), [50, 80, 100], "{store}");
    }
}

/// The requests of all instances together cross each share of each key once.
#[tokio::test]
async fn each_share_is_reported_once_over_all_instances() {
    const KEYS: u64 = 40;
    let server = RedisServer::start();
    let events = Events::default();
    let mut limiters = Vec::new();
    for _ in 0..8 {
        let limiter = Limiter::new(store(&server).await);
        events.listen_to(&limiter);
        limiters.push(limiter);
    }
    let policy = plan(100).failure_mode(FailureMode::Closed);
    let asked = (0..KEYS * 130).map(|n| {
        let (limiter, policy) = (&limiters[n as usize % 8], &policy);
        async move { drop(limiter.check(policy, &Key::new(n / 8 % KEYS), 1).await.unwrap()) }
    });
    join_all(asked).await;
    assert_eq!(events.counts(), (3 * KEYS as usize, 3 * KEYS as usize));
}

#[tokio::test]
async fn leased_units_are_reported_when_they_are_leased_and_not_again_when_they_are_spent() {
    let server = RedisServer::start();
    let events = Events::default();
    let mut limiters = Vec::new();
    for _ in 0..4 {
        let limiter = Limiter::new(store(&server).await);
        events.listen_to(&limiter);
        limiters.push(limiter);
    }
    let policy = plan(2_000).max_lease(50).failure_mode(FailureMode::Closed);
    for n in 0..2_400 {
        limiters[n % 4].check(&policy, &alice(), 1).await.unwrap();
    }
    let (ids, _) = events.counts();
    assert_eq!(ids, 3, "{:?}", events.percents());
}

#[tokio::test]
async fn what_was_admitted_in_an_outage_is_reported_when_it_is_charged() {
    let mut server = RedisServer::start();
    let redis: RedisStore =
        settings().deadline(Duration::from_millis(500)).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(redis);
    let events = Events::of(&limiter);
    let policy = plan(100).failure_mode(FailureMode::Local { instances: 1 });
    limiter.check(&policy, &alice(), 40).await.unwrap();
    server.kill();
    // Once the breaker is open, nothing is sent that Redis may have charged.
    let other = Policy::new("other", Quota::per_day(1_000_000));
    for _ in 0..5 {
        let _ = limiter.check(&other, &alice(), 1).await;
    }
    let admitted = limiter.check(&policy, &alice(), 55).await.unwrap();
    assert!(admitted.is_admitted() && admitted.failure().is_some());
    assert!(events.percents().is_empty());
    server.restart();
    let recovered = eventually(async || {
        let _ = limiter.check(&other, &alice(), 1).await;
        !events.percents().is_empty()
    });
    assert!(recovered.await);
    // The server has lost the 40 units of before, and the 55 are charged to it.
    limiter.check(&policy, &alice(), 10).await.unwrap();
    assert_eq!(events.percents()[0], 50);
}

#[test]
fn a_share_out_of_range_is_an_error() {
    for percents in [[0, 50], [80, 101]] {
        let error = Policy::new("p", Quota::per_day(5)).try_notify_at(percents).unwrap_err();
        assert!(error.to_string().contains("from 1 to 100 percent"), "{error}");
    }
    let policy =
        Policy::new("p", Quota::per_day(5)).algorithm(FixedWindow::aligned()).notify_at([100, 80, 80]);
    assert_eq!(policy.settings().notify_at, [80, 100]);
}

/// Charges of eight instances, with reservations, refunds and leases, while connections are killed.
/// `THRESHOLD_CHARGES=100000 cargo test --release -p tests -- --nocapture thresholds::` prints the events of that many.
#[tokio::test(flavor = "multi_thread")]
async fn under_load_no_crossing_is_missed_unless_its_reply_was_lost() {
    let charges: usize = std::env::var("THRESHOLD_CHARGES").map_or(4_000, |number| number.parse().unwrap());
    let server = RedisServer::start();
    let events = Events::default();
    let (keys, lost) = (20, AtomicUsize::new(0));
    let limit = charges as u64 / keys;
    let policies = [plan(limit).max_debt(limit), plan(limit).max_lease(limit / 20)]
        .map(|policy| policy.failure_mode(FailureMode::Closed));
    let mut limiters = Vec::new();
    for _ in 0..8 {
        let limiter = Limiter::new(store(&server).await);
        events.listen_to(&limiter);
        limiters.push(limiter);
    }
    let done = Arc::new(AtomicBool::new(false));
    let killing = {
        let (mut admin, done) = (server.connection(), done.clone());
        tokio::task::spawn_blocking(move || {
            let mut killed = 0_u64;
            while !done.load(Ordering::Relaxed) {
                killed += redis::cmd("CLIENT")
                    .arg("KILL")
                    .arg("TYPE")
                    .arg("normal")
                    .arg("SKIPME")
                    .arg("yes")
                    .query::<u64>(&mut admin)
                    .unwrap();
                sleep(Duration::from_millis(300));
            }
            killed
        })
    };
    // Each key belongs to one policy, so that its events are told apart by their ids.
    let instance = |place: usize| {
        let (limiter, policies, lost) = (&limiters[place], &policies, &lost);
        // Redis may have charged what was sent and not answered.
        let note = |error: &Error| {
            let is_lost = !matches!(error.kind(), ErrorKind::StoreSuspended | ErrorKind::StoreUnreachable);
            lost.fetch_add(usize::from(is_lost), Ordering::Relaxed);
        };
        async move {
            let mut random = fastrand::Rng::with_seed(place as u64);
            let mut earlier: Vec<Decision> = Vec::new();
            for _ in 0..charges * 2 / 8 {
                let key = random.u64(0..keys);
                let policy = &policies[key as usize % 2];
                let decided = limiter.check(policy, &Key::new(key), random.u64(1..4)).await;
                let decision = match decided {
                    Ok(decision) => decision,
                    Err(error) => {
                        note(&error);
                        continue;
                    }
                };
                let ended = match random.u8(0..10) {
                    0 if key.is_multiple_of(2) && decision.is_admitted() => {
                        let units = random.u64(0..8);
                        Reservation::new(limiter, &decision).settle(units).await.map(drop)
                    }
                    1 if !earlier.is_empty() => {
                        let decision = earlier.swap_remove(random.usize(0..earlier.len()));
                        limiter.refund(&decision, 1).await.map(drop)
                    }
                    _ => {
                        earlier.push(decision);
                        Ok(())
                    }
                };
                if let Err(error) = ended {
                    note(&error);
                }
            }
        }
    };
    join_all((0..8).map(instance)).await;
    done.store(true, Ordering::Relaxed);
    let killed = killing.await.unwrap();
    let (ids, all) = events.counts();
    let expected = 3 * keys as usize;
    let lost = lost.into_inner();
    eprintln!(
        "{charges} charges: {expected} crossings expected, {ids} reported, {} repeats; {killed} connections killed, {lost} replies lost",
        all - ids
    );
    assert!(ids <= expected && ids + lost >= expected, "{ids} of {expected}, {lost} lost");
}
