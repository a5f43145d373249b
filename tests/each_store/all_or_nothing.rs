//! Concurrent callers charge random sets of policies: on every store, the final counts equal a model's counts.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use support::day;

use tokio::task::JoinSet;
use tower_ratelimit::{
    Charge, Decision, FailureMode, Key, Limiter, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    decision::Outcome,
};

use crate::stores::pairs;

const TASKS: u64 = 64;
const DECISIONS: usize = 15;
/// The policies that count by a bucket.
const BUCKETS: [&str; 3] = ["p0", "p1", "p2"];
const IDENTITIES: [&str; 3] = ["alice", "bob", "carol"];

/// The units that are charged in one slot of a Cluster before another one denies are refunded once.
#[tokio::test]
async fn nothing_of_a_denied_decision_is_refunded() {
    for (name, [limiter, _]) in pairs("denied").await {
        let policy = |name: &str, limit| day(name, limit);
        let (large, small) = (policy("large", 10), policy("small", 1));
        for number in 0..20 {
            let [alice, bob] = ["alice", "bob"].map(|identity| Key::new(format!("{identity}-{number}")));
            limiter.check(&large, &alice, 5).await.unwrap();
            limiter.check(&small, &bob, 1).await.unwrap();
            let both = [Charge::new(&large, &alice, 3), Charge::new(&small, &bob, 1)];
            let denied = limiter.check_all(&both).await.unwrap();
            assert!(!denied.is_admitted());
            limiter.refund(&denied, 3).await.unwrap();
            let remaining = limiter.peek(&large, &alice, 0).await.unwrap().remaining();
            assert_eq!(remaining, Some(5), "{name}, {number}");
        }
    }
}

/// What callers do in addition to charging.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Also {
    Nothing,
    /// They debit and refund some of what was admitted.
    Settle,
}

/// One policy of each kind, with random limits. None replenishes a unit in the hour that a test may take.
fn policies(random: &mut fastrand::Rng) -> Vec<Policy> {
    let build: [fn(Policy) -> Policy; 8] = [
        |policy| policy,
        |policy| policy.algorithm(TokenBucket::new()).max_debt(7),
        |policy| policy.algorithm(LeakyBucket::meter()),
        |policy| policy.algorithm(FixedWindow::anchored()).shadow(),
        |policy| policy.algorithm(FixedWindow::anchored()),
        |policy| policy.algorithm(SlidingLog::new()).max_debt(3),
        |policy| policy.algorithm(SlidingWindow::new().segments(4)).rollout(0.5),
        |policy| policy.algorithm(SlidingLog::new()),
    ];
    let policy = |(number, build): (usize, &fn(Policy) -> Policy)| {
        let quota = Quota::new(random.u64(10..100), std::time::Duration::from_secs(400 * 86_400));
        build(Policy::new(&format!("p{number}"), quota).failure_mode(FailureMode::Closed))
    };
    build.iter().enumerate().map(policy).collect()
}

/// The units in use by policy and identity, and the charges that did not fit.
#[derive(Default)]
struct Model {
    used: HashMap<(String, Key), u64>,
    unfit: Vec<Vec<Charge>>,
}

impl Model {
    fn charged(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            *self.entry(outcome) += outcome.granted();
        }
    }

    /// Each refund returns this many units of each outcome, or all if fewer were granted.
    fn refunded(&mut self, outcomes: &[Outcome], units: u64) {
        for outcome in outcomes {
            *self.entry(outcome) -= outcome.granted().min(units);
        }
    }

    fn entry(&mut self, outcome: &Outcome) -> &mut u64 {
        let key = (outcome.policy().name().to_owned(), outcome.charge().key().clone());
        self.used.entry(key).or_default()
    }
}

fn all(decision: &Decision) -> Vec<Outcome> {
    decision.outcomes().iter().chain(decision.shadows()).cloned().collect()
}

/// A random set of policies, each with a cost, for one identity or for several.
fn charges(random: &mut fastrand::Rng, policies: &[Policy], one_identity: bool) -> Vec<Charge> {
    let mut chosen: Vec<_> = policies.iter().collect();
    random.shuffle(&mut chosen);
    chosen.truncate(random.usize(1..=4));
    let whose = *random.choice(&IDENTITIES).unwrap();
    let mut charge = |policy: &Policy| {
        let identity = if one_identity { whose } else { random.choice(&IDENTITIES).unwrap() };
        Charge::new(policy, &Key::new(identity), random.u64(0..4))
    };
    chosen.into_iter().map(&mut charge).collect()
}

async fn counts_equal_a_model(name: &str, limiters: [Limiter; 2], also: Also, one_identity: bool) {
    let seed = fastrand::u64(..);
    let name = format!("{name}, {also:?}, one identity: {one_identity}, seed {seed}");
    let policies = Arc::new(policies(&mut fastrand::Rng::with_seed(seed)));
    let model = Arc::new(Mutex::new(Model::default()));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let mut random = fastrand::Rng::with_seed(seed ^ (task + 1));
        let (limiter, policies, model) =
            (limiters[(task % 2) as usize].clone(), policies.clone(), model.clone());
        tasks.spawn(async move {
            for _ in 0..DECISIONS {
                let charges = charges(&mut random, &policies, one_identity);
                let decision = limiter.check_all(&charges).await.unwrap();
                if !decision.is_admitted() {
                    model.lock().unwrap().unfit.push(charges);
                    continue;
                }
                model.lock().unwrap().charged(&all(&decision));
                if also == Also::Settle && random.bool() {
                    let units = random.u64(1..4);
                    let debited = limiter.debit(&decision, units).await.unwrap();
                    model.lock().unwrap().charged(&all(&debited));
                }
                if also == Also::Settle && random.bool() {
                    let units = random.u64(1..4);
                    limiter.refund(&decision, units).await.unwrap();
                    model.lock().unwrap().refunded(&all(&decision), units);
                }
            }
        });
    }
    tasks.join_all().await;

    let model = Arc::into_inner(model).unwrap().into_inner().unwrap();
    let mut left = HashMap::new();
    let debts = [("p1", 7), ("p5", 3)];
    for policy in &*policies {
        for identity in IDENTITIES {
            let peeked = limiters[0].peek(policy, &Key::new(identity), 0).await.unwrap();
            let remaining = all(&peeked)[0].remaining();
            let used = model.used.get(&(policy.name().into(), Key::new(identity))).copied().unwrap_or(0);
            let debt = debts.iter().find(|(name, _)| *name == policy.name()).map_or(0, |(_, debt)| *debt);
            let bound = policy.capacity() + if also == Also::Settle { debt } else { 0 };
            assert!(used <= bound, "{name}: {} of {identity} uses {used} of {bound}", policy.name());
            let expected = policy.capacity().saturating_sub(used);
            // Refunds in another order than the charges return less by what drained in the meantime: a part of a unit
            // in all.
            let less = u64::from(also == Also::Settle && BUCKETS.contains(&policy.name()) && expected > 0);
            assert!(
                (expected - less..=expected).contains(&remaining),
                "{name}: {remaining} of {} remain of {identity}, not {expected}",
                policy.name()
            );
            left.insert((policy.name().to_owned(), Key::new(identity)), remaining);
        }
    }
    // Units only become fewer, so what did not fit then does not fit now. Over several slots of a Cluster, units that a
    // decision is about to return may deny another one.
    if also == Also::Nothing && (one_identity || !name.starts_with("cluster")) {
        for charges in &model.unfit {
            let fits = |charge: &Charge| {
                let left = left[&(charge.policy().name().to_owned(), charge.key().clone())];
                charge.is_shadow() || charge.cost() <= left
            };
            assert!(!charges.iter().all(fits), "{name}: denied although it fits: {charges:?}");
        }
    }
    assert!(!model.unfit.is_empty() || also == Also::Settle, "{name}: the limits are too large to be tested");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_callers_charge_random_sets_of_policies_as_a_model_does() {
    for one_identity in [true, false] {
        for also in [Also::Nothing, Also::Settle] {
            for (name, instances) in pairs(&format!("sets-{also:?}-{one_identity}")).await {
                counts_equal_a_model(name, instances, also, one_identity).await;
            }
        }
    }
}
