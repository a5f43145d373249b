//! Operators: they reset keys at any moment, most often while an instance charges what it owes after an outage.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use tower_ratelimit::Key;

use super::{callers::Shared, instance::Instance, random::Random};

/// Resets keys until this many are reset.
pub(super) async fn operate(shared: Arc<Shared>, mut random: Random) {
    for _ in 0..random.between(1, 8) {
        let number = random.below(shared.instances.count() as u64) as usize;
        let mut instance = shared.instances.get(number);
        let rules = shared.ledger.rules.len() as u64;
        let mut account = (random.below(rules) as usize, random.below(shared.ledger.identities) as usize);
        let waits = Duration::from_millis(random.between(20, 1_500));
        if random.chance(600) {
            let Ok(begun) = timeout(4 * waits, shared.ledger.reconciling()).await else { continue };
            let (name, owing) = random.pick(&begun).clone();
            // Another instance does not know what this one owes.
            let Some(owner) = shared.instances.all().into_iter().find(|one| one.owner.name == name) else {
                continue;
            };
            (instance, account) = (owner, owing);
            sleep(Duration::from_millis(random.below(6))).await;
        } else {
            sleep(waits).await;
        }
        reset(&shared, &instance, account).await;
        if random.chance(150) {
            let (policy, key) = (&shared.permits.policies[0], &shared.permits.key);
            shared.permits.reset_begins();
            if instance.limiter.operator().reset(policy, key).await.is_err() {
                shared.permits.reset_failed();
            }
            shared.permits.reset_ends();
        }
    }
}

async fn reset(shared: &Shared, instance: &Instance, account: (usize, usize)) {
    let policy = shared.ledger.rules[account.0].policy(instance.is_changed());
    let number = shared.ledger.resetting(account);
    let answer = instance.limiter.operator().reset(policy, &Key::new(account.1.to_string())).await;
    // After a crash the operator does not see how it ended.
    if shared.instances.is_running(instance) {
        shared.ledger.reset(account, number, &instance.owner.name, &answer);
    }
}
