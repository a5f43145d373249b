//! A device on the way forgets the connections while they are silent, and reports it to neither side: the first
//! decisions afterwards.

use std::time::{Duration, Instant};

use tokio::{
    task::{JoinSet, block_in_place},
    time::sleep,
};
use tower_ratelimit::{ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore};

use crate::{load::millis, promises::Promises};
use support::modes::Mode;

/// After how long a connection is checked, instead of 30 s.
const CHECKED_AFTER: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_millis(800);
const ROUNDS: usize = 20;
/// How many decisions follow the first one, at the same time.
const FURTHER: u64 = 20;

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Connections that are lost without a word\n");
    println!(
        "{ROUNDS} silences of {} ms, connections are checked after {} ms, default deadline, `Closed`. {FURTHER} concurrent \
         decisions on as many keys follow the first one.\n",
        SILENCE.as_millis(),
        CHECKED_AFTER.as_millis(),
    );
    println!(
        "| mode | connections | first decisions by Redis | median, ms | max, ms | further ones by Redis | breaker opened |"
    );
    println!("|---|---|---|---|---|---|---|");
    for is_lost in [false, true] {
        for mode in Mode::all().await {
            measure(&mode, is_lost, promises).await;
        }
    }
}

async fn measure(mode: &Mode, is_lost: bool, promises: &mut Promises) {
    let limiter = mode.connect(RedisStore::builder().check_idle_after(CHECKED_AFTER)).await;
    // Opens the connections of several lanes and of all shards.
    decide(&limiter, FURTHER).await;
    let (mut times, mut first, mut further, mut opened) = (Vec::new(), 0, 0, 0);
    for _ in 0..ROUNDS {
        if is_lost {
            mode.forget();
        }
        sleep(SILENCE).await;
        let begun = Instant::now();
        let (decided, suspended) = decide(&limiter, 1).await;
        times.push(begun.elapsed());
        first += decided;
        let (decided, others) = decide(&limiter, FURTHER).await;
        further += decided;
        opened += usize::from(suspended || others);
    }
    times.sort_unstable();
    let name = mode.name;
    let all = (first, further) == (ROUNDS as u64, ROUNDS as u64 * FURTHER);
    let unkept = promises.check(all && opened == 0, || {
        format!("silence, {name}: {first} first and {further} further decisions by Redis, breaker opened {opened} times")
    });
    println!(
        "| {name} | {} | {first} of {ROUNDS}{unkept} | {} | {} | {further} of {} | {opened} times |",
        if is_lost { "lost" } else { "kept" },
        millis(times[ROUNDS / 2]),
        millis(times[ROUNDS - 1]),
        ROUNDS as u64 * FURTHER,
    );
    // Servers end in a blocking call.
    block_in_place(|| drop(limiter));
}

/// Makes as many decisions at the same time. Returns how many Redis has made, and whether a breaker was open.
async fn decide(limiter: &Limiter, count: u64) -> (u64, bool) {
    let policy = Policy::new("p", Quota::per_day(1_000_000)).failure_mode(FailureMode::Closed);
    let mut decisions = JoinSet::new();
    for key in 0..count {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        decisions.spawn(async move { limiter.check(&policy, &Key::new(key.to_string()), 1).await });
    }
    let (mut by_redis, mut is_open) = (0, false);
    for decision in decisions.join_all().await {
        match decision {
            Ok(_) => by_redis += 1,
            Err(error) => is_open |= error.kind() == ErrorKind::StoreSuspended,
        }
    }
    (by_redis, is_open)
}
