//! After the faults: decisions succeed again, the counts are right, and nothing is left behind.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tower_ratelimit::store::Store as _;
use tower_ratelimit::{Decision, Key, Policy, Quota, algorithm::FixedWindow, decision::DecisionSource};

use super::{
    asked::Ask,
    callers::{PATIENT, Shared, set_ban},
    holders::drain,
    instance::Instance,
    network::Network,
    rules::Kind,
    usage::is_charged,
};

/// The longest time until decisions succeed again: the longest pause of a breaker that opened again and again, and then the
/// time of a probe and of replacing connections that hang.
const RECOVERY: Duration = Duration::from_millis(5_000 + 1_600);
/// The time after which every idle connection was used or checked.
const ALL_REPLACED: Duration = Duration::from_secs(4);
/// The longest time until a permit is released whose decision was dropped, and until leases that are returned are.
const SETTLED: Duration = Duration::from_secs(4);
/// How long a deny cache holds a denial.
const DENY_CACHE: Duration = Duration::from_secs(1);
/// The expiry of a permit.
const EXPIRY: Duration = Duration::from_secs(31);

async fn peek(shared: &Shared, instance: &Instance, account: (usize, usize)) -> Option<Decision> {
    let charges = vec![(account.0, account.1, 0)];
    let (answer, _) = shared.decide(instance, Ask::Peek, charges, PATIENT).await?;
    answer.ok().filter(|decision| decision.failure().is_none() && decision.source() == DecisionSource::Store)
}

/// Each instance decides again, at first at times and then always.
pub(super) async fn recovers(shared: &Shared, network: &Network) {
    let healed = Instant::now();
    for instance in shared.instances.all() {
        let name = &instance.owner.name;
        while peek(shared, &instance, (0, 0)).await.is_none() {
            if healed.elapsed() > RECOVERY {
                return network.log.violated(format_args!("{name} does not decide after the faults"));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
    while healed.elapsed() < ALL_REPLACED {
        for instance in shared.instances.all() {
            let _ = peek(shared, &instance, (0, 0)).await;
        }
        sleep(Duration::from_millis(200)).await;
    }
    for instance in shared.instances.all() {
        for _ in 0..10 {
            if peek(shared, &instance, (0, 0)).await.is_none() {
                let name = &instance.owner.name;
                network.log.violated(format_args!("{name} still fails long after the faults"));
            }
        }
    }
}

/// What remains is what was not charged.
pub(super) async fn counts_are_right(shared: &Shared, network: &Network) {
    sleep(SETTLED).await;
    for instance in shared.instances.all() {
        if !drain(shared, &instance, SETTLED).await {
            let name = &instance.owner.name;
            network.log.violated(format_args!("{name} cannot be drained after the faults"));
        }
        let returned = instance.store.drain().await;
        let status = instance.store.lease_status();
        if returned.is_err() || (status.keys, status.units, status.calls) != (0, 0, 0) {
            network.log.violated(format_args!("leases are left: {status:?} {returned:?}"));
        }
    }
    shared.instances.change_back();
    let instance = shared.instances.get(0);
    for account in shared.ledger.accounts() {
        let rule = &shared.ledger.rules[account.0];
        let key = rule.key(&account.1.to_string());
        let Some(remaining) = peek(shared, &instance, account).await.and_then(|one| one.remaining()) else {
            return network.log.violated(format_args!("{key} cannot be read after the faults"));
        };
        let used = rule.limit - remaining;
        if rule.kind == Kind::Concurrency {
            // A release is sent again until it succeeds, except by an instance that has crashed.
            let may_be_lost = shared.ledger.had_crashes() || network.is_repeated(&key);
            if used > 0 && !may_be_lost {
                network.log.violated(format_args!("{key}: {used} permits were not released"));
            }
            continue;
        }
        if rule.penalty.is_some() {
            bans_hold_everywhere(shared, network, account).await;
        }
        if !rule.is_slow() {
            is_admitted_again(shared, network, &instance, account).await;
        }
        let instances: Vec<_> = shared.instances.all().iter().map(|one| one.owner.name.clone()).collect();
        let least = shared.ledger.must_be_used(account, &instances).unwrap_or_default();
        if used < least {
            network.log.violated(format_args!("{key}: {used} units used at the end, {least} must be"));
        }
        if let Some(most) = shared.ledger.can_be_used(account, &instances)
            && used > most
        {
            network.log.violated(format_args!("{key}: {used} units used at the end, {most} can be"));
        }
    }
    is_charged(shared).await;
    permits_expire(shared, network, &instance).await;
}

/// A permit that is held is in use until it is released, under each policy that decides.
pub(super) async fn permits_keep_their_period(shared: &Shared, network: &Network) {
    let instance = &shared.instances.get(0);
    let permits = &shared.permits;
    let longest = permits.policies.iter().map(|policy| policy.quota().period()).max().unwrap_or_default();
    // The permits of crashed instances expire: after the clock was set back, one period after the next denial.
    let all = &Policy::concurrency("slots", 1_000);
    let ask = async |policy: &Policy| instance.limiter.check(policy, &permits.key, 1).await;
    for _ in 0..2 {
        sleep(longest + EXPIRY).await;
        drop(ask(&permits.policies[0]).await);
    }
    sleep(SETTLED).await;
    for policy in &permits.policies {
        let Some(held) = ask(policy).await.ok().filter(Decision::is_admitted) else {
            return network.log.violated(format_args!("no permit of {policy:?} after the faults"));
        };
        let step = longest / 10;
        for number in 0..25 {
            let other = &permits.policies[number % permits.policies.len()];
            let is_admitted = ask(other).await.is_ok_and(|decision| decision.is_admitted());
            let counted = instance.limiter.peek(all, &permits.key, 0).await.ok();
            let counted = counted.and_then(|counted| counted.remaining()).map(|remaining| 1_000 - remaining);
            if is_admitted != (other.quota().limit() > 1) || counted.is_none_or(|counted| counted < 1) {
                return network.log.violated(format_args!(
                    "a permit of {policy:?} is held: {counted:?} in use, {is_admitted} under {other:?}"
                ));
            }
            sleep(step).await;
        }
        drop(held);
        if !drain(shared, instance, SETTLED).await {
            network.log.violated(format_args!("a permit of {policy:?} cannot be released"));
        }
        let left = instance.limiter.peek(all, &permits.key, 0).await.ok().and_then(|peek| peek.remaining());
        if left != Some(1_000) {
            network.log.violated(format_args!("a permit of {policy:?} was released: {left:?} of 1000"));
        }
    }
}

/// Instances with traffic know how many there are, and those without traffic are no longer counted.
pub(super) async fn instances_are_counted(shared: &Shared, network: &Network) {
    let policy = Policy::new("traffic", Quota::per_hour(1_000_000)).algorithm(FixedWindow::anchored());
    let mut all = shared.instances.all();
    for count in (1..=all.len()).rev() {
        all.truncate(count);
        let mut seen = Vec::new();
        for second in 0..90 {
            for instance in &all {
                let _ = instance.limiter.check(&policy, &Key::new("all"), 1).await;
            }
            sleep(Duration::from_secs(1)).await;
            seen = all.iter().map(|instance| instance.store.instances().unwrap_or(0) as usize).collect();
            // Some that ended may still count.
            if second > 16 && seen.iter().all(|seen| *seen == count) {
                break;
            }
        }
        if seen.iter().any(|seen| *seen != count) {
            network.log.violated(format_args!("{seen:?} of {count} instances are seen"));
        }
    }
}

/// A ban by one instance is seen by all, and its end too.
async fn bans_hold_everywhere(shared: &Shared, network: &Network, account: (usize, usize)) {
    let all = shared.instances.all();
    for (time, is_banned) in [(Duration::from_secs(60), true), (Duration::ZERO, false)] {
        let is_set = set_ban(shared, &all[all.len() - 1], account, time).await;
        // A deny cache may hold a denial until then.
        sleep(DENY_CACHE).await;
        for instance in &all {
            let charges = vec![(account.0, account.1, 1)];
            let answer = shared.decide(instance, Ask::Peek, charges, PATIENT).await;
            let banned =
                answer.and_then(|(answer, _)| answer.ok()).map(|decision| decision.banned_for().is_some());
            if !is_set || banned != Some(is_banned) {
                let name = &instance.owner.name;
                network.log.violated(format_args!("{name} {account:?}: {banned:?}, not {is_banned}"));
            }
        }
    }
}

/// A unit is available again after the period.
async fn is_admitted_again(shared: &Shared, network: &Network, instance: &Instance, account: (usize, usize)) {
    // After the clock was set back, one period after the next denial.
    for _ in 0..2 {
        let charges = vec![(account.0, account.1, 1)];
        let answer = shared.decide(instance, Ask::Charge, charges, PATIENT).await;
        if answer.is_some_and(|(answer, _)| answer.is_ok_and(|decision| !decision.verdict().is_denied())) {
            return;
        }
        sleep(SETTLED + shared.ledger.rules[account.0].full()).await;
    }
    network.log.violated(format_args!("{account:?}: denied although all units are replenished"));
}

/// A permit that is held is renewed; others expire.
async fn permits_expire(shared: &Shared, network: &Network, instance: &Instance) {
    let number = shared.ledger.rules.len() - 2;
    let rule = &shared.ledger.rules[number];
    sleep(EXPIRY).await;
    let ask = async || {
        let (answer, held) = shared.decide(instance, Ask::Charge, vec![(number, 0, 1)], PATIENT).await?;
        Some((answer.ok().filter(|decision| !decision.verdict().is_denied())?, held))
    };
    let mut held = ask().await;
    if held.is_none() {
        // After the clock was set back, permits expire later: one period after the next denial.
        sleep(EXPIRY).await;
        held = ask().await;
    }
    let Some((decision, held)) = held else {
        return network.log.violated(format_args!("no permit after the faults"));
    };
    for (time, used) in [(EXPIRY, 1), (EXPIRY, 1)] {
        sleep(time).await;
        let remaining = peek(shared, instance, (number, 0)).await.and_then(|one| one.remaining());
        if remaining != Some(rule.limit - used) {
            network.log.violated(format_args!("{remaining:?} of {} permits, {used} in use", rule.limit));
        }
    }
    drop(decision);
    held.iter().for_each(|held| shared.ledger.released(held));
    sleep(Duration::from_millis(100)).await;
    let remaining = peek(shared, instance, (number, 0)).await.and_then(|one| one.remaining());
    if remaining != Some(rule.limit) {
        network.log.violated(format_args!("{remaining:?} of {} permits, none in use", rule.limit));
    }
    dropped_decisions_hold_nothing(shared, network, instance).await;
}

/// Decisions that are dropped on their way hold no permit.
async fn dropped_decisions_hold_nothing(shared: &Shared, network: &Network, instance: &Instance) {
    let number = shared.ledger.rules.len() - 2;
    let limit = shared.ledger.rules[number].limit;
    for patience in [0, 0, 1, 1, 2, 3] {
        let patience = Duration::from_millis(patience);
        if let Some((decision, held)) =
            shared.decide(instance, Ask::Charge, vec![(number, 0, 1)], patience).await
        {
            drop(decision);
            held.iter().for_each(|held| shared.ledger.released(held));
        }
    }
    sleep(SETTLED).await;
    let remaining = peek(shared, instance, (number, 0)).await.and_then(|one| one.remaining());
    if remaining != Some(limit) {
        network.log.violated(format_args!("{remaining:?} of {limit} permits after dropped decisions"));
    }
}

/// No connection and no task outlives its store.
pub(super) async fn nothing_is_left(shared: Arc<Shared>, network: &Network) {
    // A lane returns its connection after the callers that it answered have run.
    sleep(Duration::from_millis(1)).await;
    for instance in shared.instances.all() {
        let state = instance.pool.state();
        let open = network.open(&instance.owner);
        if state.connections != state.idle_connections || open != state.connections as usize {
            let name = &instance.owner.name;
            network.log.violated(format_args!("{name} has {open} open connections and a pool of {state:?}"));
        }
    }
    let weak: Vec<_> = shared.instances.all().iter().map(|one| Arc::downgrade(&one.owner)).collect();
    shared.instances.stop();
    drop(shared);
    sleep(EXPIRY).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    let alive = weak.iter().filter(|owner| owner.strong_count() > 0).count();
    let open = network.all_open();
    if tasks + alive + open > 0 {
        network.log.violated(format_args!("{tasks} tasks, {alive} pools and {open} connections are left"));
    }
}
