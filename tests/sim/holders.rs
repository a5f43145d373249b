//! Callers that hold permits, taken and released in several runtimes, and instances that are drained at any moment.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tower_ratelimit::{Decision, Error, decision::DecisionSource};

use super::{callers::Shared, instance::Instance, permits::Asked, random::Random};

/// Longer than a runtime needs to have no call under way.
const QUIET: Duration = Duration::from_secs(5);
/// Fewer connections may all belong to a runtime that is no longer driven, because the pool is the simulation's.
const ENOUGH_CONNECTIONS: u32 = 4;

/// One caller of permits.
pub(super) async fn hold(shared: Arc<Shared>, mut random: Random) {
    let number = random.below(shared.instances.count() as u64) as usize;
    let policies = shared.permits.policies.len() as u64;
    let mut policy = random.below(policies) as usize;
    let longest = *random.pick(&[20, 400, 3_000]);
    for _ in 0..random.between(3, 30) {
        let instance = shared.instances.get(number);
        if random.chance(200) {
            policy = random.below(policies) as usize;
        }
        let units = *random.pick(&[1, 1, 1, 2]);
        let millis = if random.chance(80) { *random.pick(&[0, 1, 2, 5, 40]) } else { 60_000 };
        let asked = shared.permits.ask(&instance, policy, units);
        let limiter = instance.limiter.clone();
        let (policy, key) = (&shared.permits.policies[policy], &shared.permits.key);
        match timeout(Duration::from_millis(millis), limiter.check(policy, key, units)).await {
            Ok(answer) => {
                let is_granted = answered(&shared, &instance, &asked, &answer);
                if is_granted || random.chance(500) {
                    sleep(Duration::from_millis(random.below(longest))).await;
                }
                drop(answer);
                if is_granted {
                    shared.permits.ended(&asked);
                }
            }
            Err(_) => shared.permits.ended(&asked),
        }
        sleep(Duration::from_millis(random.below(60))).await;
    }
}

/// Checks an answer. Returns whether a permit of the store was granted.
fn answered(shared: &Shared, instance: &Instance, asked: &Asked, answer: &Result<Decision, Error>) -> bool {
    if answer.as_ref().is_ok_and(|decision| decision.source() == DecisionSource::Store) {
        shared.ledger.store_answered(&instance.owner.name);
    }
    shared.permits.answered(asked, answer)
}

/// Drains instances, which go on afterwards.
pub(super) async fn drain_at_times(shared: Arc<Shared>, mut random: Random) {
    for _ in 0..random.between(1, 8) {
        sleep(Duration::from_millis(random.between(1, 1_200))).await;
        let number = random.below(shared.instances.count() as u64) as usize;
        // Again after a failure, when less is left to do.
        for _ in 0..random.between(1, 3) {
            let deadline = Duration::from_millis(*random.pick(&[0, 2, 20, 100, 700, 3_000]));
            if drain(&shared, &shared.instances.get(number), deadline).await {
                break;
            }
        }
    }
}

/// Drains an instance. Returns whether that succeeded.
pub(super) async fn drain(shared: &Shared, instance: &Instance, deadline: Duration) -> bool {
    let (name, log) = (&instance.owner.name, &shared.network.log);
    let (latest, started) = (shared.permits.latest(), Instant::now());
    shared.ledger.drains(name, true);
    let drained = instance.limiter.drain(deadline).await;
    shared.ledger.drains(name, false);
    let (time, failure) = (started.elapsed(), drained.as_ref().err());
    log.note(format_args!("{name} drained within {deadline:?}: {failure:?} after {time:?}"));
    if time > deadline + Duration::from_millis(5) {
        log.violated(format_args!("{name} drained for {time:?} instead of {deadline:?}"));
    }
    // After a crash its connections lead nowhere.
    if drained.is_ok() && shared.instances.is_running(instance) {
        shared.permits.drained(name, latest);
        shared.permits.check();
    }
    drained.is_ok()
}

/// A caller in a separate runtime, whose permits outlive the runtime.
pub(super) async fn hold_in(side: usize, shared: Arc<Shared>, mut random: Random) {
    sleep(Duration::from_millis(random.below(700))).await;
    let number = random.below(shared.instances.count() as u64) as usize;
    let mut held = Vec::new();
    for _ in 0..random.between(1, 4) {
        let instance = shared.instances.get(number);
        if instance.connections < ENOUGH_CONNECTIONS {
            return;
        }
        let policy = random.below(shared.permits.policies.len() as u64) as usize;
        let asked = shared.permits.ask(&instance, policy, 1);
        let (limiter, key) = (instance.limiter.clone(), shared.permits.key.clone());
        let policy = shared.permits.policies[policy].clone();
        let check = async move { limiter.check(&policy, &key, 1).await };
        shared.ledger.drains(&instance.owner.name, true);
        let answer = shared.sides.carry_out(side, check).await;
        shared.ledger.drains(&instance.owner.name, false);
        let Some(answer) = answer else {
            shared.permits.ended(&asked);
            continue;
        };
        if answered(&shared, &instance, &asked, &answer)
            && let Ok(decision) = answer
        {
            held.push((decision, asked));
        }
        wait(side, &shared, random.below(300)).await;
    }
    if random.chance(300) {
        // Released in the runtime, which is then not driven for long.
        release_in(side, &shared, &mut held).await;
    }
    if random.chance(500) {
        until_nothing_is_opened(side, &shared).await;
        end(side, &shared).await;
    } else {
        until_quiet(side, &shared).await;
        shared.network.log.note(format_args!("side {side} is no longer driven"));
    }
    for (decision, asked) in held {
        sleep(Duration::from_millis(random.below(2_000))).await;
        drop(decision);
        shared.permits.ended(&asked);
    }
}

/// Ends the runtime.
pub(super) async fn end(side: usize, shared: &Shared) {
    let Some(id) = shared.sides.id(side) else { return };
    shared.network.log.note(format_args!("side {side} ends"));
    shared.network.runtime_ends(id);
    shared.sides.end(side).await;
}

async fn release_in(side: usize, shared: &Arc<Shared>, held: &mut Vec<(Decision, Asked)>) {
    let Some((decision, asked)) = held.pop() else { return };
    let shared = shared.clone();
    let other = shared.clone();
    let release = async move {
        drop(decision);
        other.permits.ended(&asked);
    };
    shared.sides.start(side, release).await;
}

/// Drives the side at times.
async fn wait(side: usize, shared: &Shared, millis: u64) {
    for _ in 0..millis.div_ceil(10) {
        shared.sides.drive(side).await;
        sleep(Duration::from_millis(10)).await;
    }
}

/// Drives the side until it waits for nothing of the server.
async fn until_quiet(side: usize, shared: &Shared) {
    let Some(id) = shared.sides.id(side) else { return };
    let started = Instant::now();
    while (shared.network.is_connecting(id) || shared.network.is_waiting(id)) && started.elapsed() < QUIET {
        sleep(Duration::from_millis(1)).await;
        shared.sides.drive(side).await;
    }
}

/// Drives the side until it opens no connection: the pool would wait for it.
async fn until_nothing_is_opened(side: usize, shared: &Shared) {
    let Some(id) = shared.sides.id(side) else { return };
    while shared.network.is_connecting(id) {
        sleep(Duration::from_millis(1)).await;
        shared.sides.drive(side).await;
    }
}
