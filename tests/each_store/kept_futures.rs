//! A hostile poller: futures that are polled a few times and then kept, while others decide. `it` runs it on one server,
//! `net` on a Cluster and behind Sentinel.

use std::{future::Future, pin::Pin, time::Duration};

use futures_util::FutureExt as _;
use support::{PATIENT, size};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_ratelimit::{
    Charge, Decision, FailureMode, Key, Limiter, Policy, Quota, RedisStore, Reservation,
    algorithm::{FixedWindow, SlidingLog, TokenBucket},
    policy::Penalty,
    store::{RedisStoreBuilder, Store as _},
};

/// Longer than a decision takes on a busy machine, and short enough to count those that fail.
const DEADLINE: Duration = Duration::from_secs(2);
/// How many futures are kept.
const KEPT: usize = 16;

type Kept = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the methods are called with.
#[derive(Clone)]
struct Subject {
    store: RedisStore,
    limiter: Limiter,
    policy: Policy,
    leased: Policy,
    banning: Policy,
    charged: Decision,
}

impl Subject {
    async fn new(store: RedisStore) -> Self {
        let limiter = Limiter::new(store.clone());
        let policy = closed("kept");
        let charged = limiter.check(&policy, &key(), 1).await.unwrap();
        let banning = closed("banning").penalty(Penalty::after(1_000, Duration::from_secs(60)));
        Self { store, limiter, leased: closed("leased").max_lease(1_000), policy, banning, charged }
    }
}

/// Every asynchronous method, by its name.
const METHODS: &[(&str, fn(Subject) -> Kept)] = &[
    ("check", |on| kept(on.limiter.check(&on.policy, &key(), 1))),
    ("check of a lease", |on| kept(on.limiter.check(&on.leased, &key(), 1))),
    ("check of two policies", |on| {
        let charges = [&on.policy, &on.banning].map(|policy| Charge::new(policy, &key(), 1));
        kept(on.limiter.check_all(&charges))
    }),
    ("check_up_to", |on| kept(on.limiter.check_up_to(&on.policy, &key(), 5))),
    ("peek", |on| kept(on.limiter.peek(&on.policy, &key(), 1))),
    ("refund", |on| kept(on.limiter.refund(&on.charged, 1))),
    ("refund_latest", |on| kept(on.limiter.operator().refund_latest(&on.policy, &key(), 1))),
    ("refund of a lease", |on| kept(on.limiter.operator().refund_latest(&on.leased, &key(), 1))),
    ("charge_more", |on| kept(on.limiter.charge_more(&on.charged, 1))),
    ("debit", |on| kept(on.limiter.debit(&on.charged, 1))),
    ("settle", |on| kept(Reservation::new(&on.limiter, &on.charged).settle(2))),
    ("extend_to", |on| kept(Reservation::new(&on.limiter, &on.charged).extend_to(2))),
    ("charge_more of a reservation", |on| kept(Reservation::new(&on.limiter, &on.charged).charge_more(1))),
    ("reset", |on| kept(async move { on.limiter.operator().reset(&on.policy, &key()).await })),
    ("ban", |on| {
        kept(async move { on.limiter.operator().ban(&on.banning, &key(), Duration::from_secs(1)).await })
    }),
    ("unban", |on| kept(async move { on.limiter.operator().unban(&on.banning, &key()).await })),
    ("bans", |on| kept(async move { on.limiter.operator().bans(&on.banning).await })),
    ("owed", |on| kept(async move { on.limiter.operator().owed(&on.policy.max_debt(5), &key()).await })),
    ("drain", |on| kept(async move { on.limiter.drain(DEADLINE).await })),
    ("probe", |on| kept(async move { on.store.probe().await })),
    ("probe_policy", |on| kept(async move { on.store.probe_policy(&on.policy).await })),
    ("keys", |on| kept(async move { on.limiter.operator().keys(&[on.policy], 1_000).await })),
    ("drain of the store", |on| kept(on.store.drain())),
];

fn key() -> Key {
    Key::new("kept")
}

fn closed(name: &str) -> Policy {
    Policy::new(name, Quota::per_day(1_000_000)).failure_mode(FailureMode::Closed)
}

fn kept(future: impl Future<Output: Send> + Send + 'static) -> Kept {
    Box::pin(async { drop(future.await) })
}

/// Polls each of `futures` as often as `polls`, with time for a reply between two polls. Returns those that have not ended.
async fn poll(mut futures: Vec<Kept>, polls: usize) -> Vec<Kept> {
    for _ in 0..polls {
        futures.retain_mut(|future| future.now_or_never().is_none());
        sleep(Duration::from_millis(1)).await;
    }
    futures
}

/// What other callers do. Returns the errors.
async fn others(on: &Subject) -> Vec<String> {
    let mut others = JoinSet::new();
    // Each algorithm has a separate script.
    let policies = [
        closed("other"),
        closed("other").algorithm(FixedWindow::anchored()),
        closed("other").algorithm(TokenBucket::new()),
        closed("other").algorithm(SlidingLog::new()),
    ];
    for policy in policies {
        for caller in 0..3 {
            let (limiter, policy) = (on.limiter.clone(), policy.clone());
            others.spawn(async move {
                let key = Key::new(format!("other-{caller}"));
                match limiter.check(&policy, &key, 1).await {
                    Ok(_) => limiter.peek(&policy, &key, 0).await.err(),
                    Err(error) => Some(error),
                }
            });
        }
    }
    let (limiter, policy) = (on.limiter.clone(), closed("reset"));
    others.spawn(async move { limiter.operator().reset(&policy, &Key::new("other")).await.err() });
    let (limiter, policy) = (on.limiter.clone(), on.banning.clone());
    others.spawn(async move { limiter.operator().bans(&policy).await.err() });
    // A list that waits for another one has no deadline.
    let others = timeout(PATIENT, others.join_all());
    match others.await {
        Ok(others) => others.into_iter().flatten().map(|error| error.to_string()).collect(),
        Err(_) => vec!["one hangs".to_owned()],
    }
}

/// Lets others decide on `store` beside kept futures: with its scripts loaded, and after `flush` has removed them.
pub(crate) async fn hold(name: &str, store: RedisStore, mut flush: impl FnMut()) {
    let on = Subject::new(store).await;
    let (mut failures, mut rounds) = (Vec::new(), 0);
    for flushed in [false, true] {
        // Each method alone, then all of them.
        for (method, methods) in
            METHODS.iter().map(|method| (method.0, std::slice::from_ref(method))).chain([("all", METHODS)])
        {
            for &polls in size(&[1, 2, 4, 8][..], &[1, 2, 3, 4, 5, 6, 7, 8]) {
                if flushed {
                    flush();
                }
                let futures = methods.iter().cycle().take(KEPT.max(methods.len()));
                let kept = poll(futures.map(|(_, call)| call(on.clone())).collect(), polls).await;
                let count = kept.len();
                for error in others(&on).await {
                    failures.push(format!(
                        "{count} of {method}, {polls} polls, scripts flushed: {flushed}: {error}"
                    ));
                }
                drop(kept);
                rounds += 1;
                assert!(failures.len() < 40, "{name}, round {rounds}:\n{}", failures.join("\n"));
            }
        }
    }
    eprintln!("{name}: {} failures in {rounds} rounds", failures.len());
    assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
}

/// Settings with a deadline that only a hang exceeds, and `pool` connections.
pub(crate) fn settings_of(pool: u32) -> RedisStoreBuilder {
    RedisStore::builder().deadline(DEADLINE).deny_cache(Duration::ZERO).pool_size(pool)
}
