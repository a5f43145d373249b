//! What an explanation says is what a check then does, on each store.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use support::current_thread;

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tower_ratelimit::{
    Charge, Criticality, Decision, Key, Limiter, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    decision::Outcome,
    policy::{Headroom, Penalty},
    store::ManualClock,
};
use tower_ratelimit_operate::explain::Explanation;

use crate::stores::on_a_clock;

const PERIOD: Duration = Duration::from_secs(10);

fn policies() -> Vec<Policy> {
    let policy = |name: &str| Policy::new(name, Quota::new(10, PERIOD));
    vec![
        policy("gcra"),
        policy("debt").max_debt(5),
        policy("tokens").algorithm(TokenBucket::new().refill_every(PERIOD / 5)),
        policy("meter").algorithm(LeakyBucket::meter()),
        policy("queue").algorithm(LeakyBucket::queue(Duration::from_secs(3))),
        policy("window").algorithm(FixedWindow::anchored()),
        policy("cells").algorithm(SlidingWindow::new().segments(5)).max_debt(3),
        policy("log").algorithm(SlidingLog::new()),
        policy("shadow").shadow(),
        policy("half").rollout(0.5),
        policy("bans").penalty(Penalty::after(3, PERIOD / 2).ban(PERIOD)),
        policy("debt-and-bans").max_debt(5).penalty(Penalty::after(2, PERIOD)),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Check {
        policy: usize,
        key: usize,
        cost: u64,
    },
    /// Under two policies together.
    Both {
        policies: [usize; 2],
        key: usize,
        cost: u64,
    },
    Debit {
        policy: usize,
        key: usize,
        units: u64,
    },
    Refund {
        policy: usize,
        key: usize,
        units: u64,
    },
    Reset {
        policy: usize,
        key: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (policy, key, units) =
        (|| 0..policies().len(), || 0..2_usize, || prop_oneof![4 => 0..4_u64, 1 => 7..13_u64]);
    let step = prop_oneof![
        2 => (0..4_000_000_u64).prop_map(Step::Advance),
        6 => (policy(), key(), units()).prop_map(|(policy, key, cost)| Step::Check { policy, key, cost }),
        3 => (policy(), 1..policies().len(), key(), units()).prop_map(|(one, other, key, cost)| {
            Step::Both { policies: [one, (one + other) % policies().len()], key, cost }
        }),
        1 => (policy(), key(), units()).prop_map(|(policy, key, units)| Step::Debit { policy, key, units }),
        1 => (policy(), key(), units()).prop_map(|(policy, key, units)| Step::Refund { policy, key, units }),
        1 => (policy(), key()).prop_map(|(policy, key)| Step::Reset { policy, key }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Explains what the step is about to do, and compares that with what it does.
async fn carry_out(
    limiter: &Limiter,
    clock: &ManualClock,
    step: &Step,
    prefix: &str,
) -> Result<(), TestCaseError> {
    let policies = policies();
    let key = |key: usize| Key::new(format!("{prefix}-{key}"));
    match *step {
        Step::Advance(micros) => clock.advance(Duration::from_micros(micros)),
        Step::Check { policy, key: at, cost } => {
            let (policy, key) = (&policies[policy], key(at));
            let explained = Explanation::of(limiter, policy, &key, cost).await.unwrap();
            let checked = limiter.check(policy, &key, cost).await.unwrap();
            let peeked = explained.decision();
            let [charge] = explained.charges() else { panic!("{explained:?}") };
            let (before, after) = (charge.outcome().unwrap(), all(&checked).remove(0));
            prop_assert_eq!(charge.is_shadow(), after.is_shadow());
            if after.banned_for().is_some() && before.banned_for().is_none() {
                // This denial has banned the key.
                prop_assert!(peeked.verdict().is_denied());
                return Ok(());
            }
            prop_assert_eq!(peeked.verdict(), checked.verdict());
            prop_assert_eq!(before.verdict(), after.verdict());
            prop_assert_eq!(before.verdict().retry_after(), after.verdict().retry_after());
            prop_assert_eq!(before.banned_for(), after.banned_for());
            let charged = if !after.verdict().is_denied() { cost } else { 0 };
            prop_assert_eq!(before.remaining() - charged, after.remaining());
            prop_assert!(charge.owed() == 0 || cost == 0 || before.verdict().is_denied());
        }
        Step::Both { policies: [one, other], key: at, cost } => {
            let key = key(at);
            let charges = [Charge::new(&policies[one], &key, cost), Charge::new(&policies[other], &key, 1)];
            let explained = Explanation::of_all(limiter, &charges).await.unwrap();
            let checked = limiter.check_all(&charges).await.unwrap();
            let peeked = explained.decision();
            prop_assert_eq!(!peeked.verdict().is_denied(), !checked.verdict().is_denied());
            if checked.banned_for().is_some() && checked.banned_for() != peeked.banned_for() {
                return Ok(());
            }
            prop_assert_eq!(peeked.verdict(), checked.verdict());
            let names: Vec<_> = explained.charges().iter().map(|charge| charge.policy().name()).collect();
            prop_assert_eq!(names, [policies[one].name(), policies[other].name()]);
            for charge in explained.charges() {
                let same = |one: &&&Outcome| one.policy() == charge.policy();
                let checked = all(&checked);
                let after = checked.iter().find(same).unwrap();
                prop_assert_eq!(charge.outcome().unwrap().verdict(), after.verdict());
            }
        }
        Step::Debit { policy, key: at, units } => {
            let (policy, key) = (&policies[policy], key(at));
            let room = |explained: &Explanation| {
                let charge = &explained.charges()[0];
                charge.outcome().unwrap().remaining() as i64 - charge.owed() as i64
            };
            let before = Explanation::of(limiter, policy, &key, 0).await.unwrap();
            let request = limiter.check(policy, &key, 0).await.unwrap();
            let debited = limiter.debit(&request, units).await.unwrap();
            let granted = all(&debited)[0].granted() as i64;
            let after = Explanation::of(limiter, policy, &key, 0).await.unwrap();
            prop_assert_eq!(room(&after), room(&before) - granted, "{} {}", policy.name(), units);
        }
        Step::Refund { policy, key: at, units } => {
            limiter.operator().refund_latest(&policies[policy], &key(at), units).await.unwrap();
        }
        Step::Reset { policy, key: at } => {
            let (policy, key) = (&policies[policy], key(at));
            limiter.operator().reset(policy, &key).await.unwrap();
            let explained = Explanation::of(limiter, policy, &key, 1).await.unwrap();
            let [charge] = explained.charges() else { panic!("{explained:?}") };
            let outcome = charge.outcome().unwrap();
            if outcome.banned_for().is_some() {
                return Ok(());
            }
            prop_assert_eq!(
                (outcome.remaining(), outcome.reset_after()),
                (outcome.policy().capacity(), Duration::ZERO)
            );
        }
    }
    Ok(())
}

fn all(decision: &Decision) -> Vec<&Outcome> {
    decision.outcomes().iter().chain(decision.shadows()).collect()
}

#[test]
fn an_explanation_says_what_a_check_then_does() {
    for (name, cases, limiter) in on_a_clock("explanations") {
        eprintln!("{name}");
        random_histories(cases, limiter);
    }
}

fn random_histories(cases: u32, limiter: impl Fn(ManualClock) -> Limiter) {
    let runtime = current_thread();
    let _guard = runtime.enter();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let clock = ManualClock::new();
    let limiter = limiter(clock.clone());
    let number = AtomicUsize::new(0);
    TestRunner::new(config)
        .run(&steps(), |steps| {
            // Every history has separate keys.
            let prefix = number.fetch_add(1, Ordering::Relaxed).to_string();
            runtime.block_on(async {
                for step in &steps {
                    carry_out(&limiter, &clock, step, &prefix).await?;
                }
                Ok(())
            })
        })
        .unwrap();
}

#[test]
fn an_explanation_says_what_is_kept_for_more_critical_requests_and_what_is_done_without() {
    for (name, _, limiter) in on_a_clock("explanations-criticality") {
        let (runtime, limiter) = (current_thread(), limiter(ManualClock::new()));
        let policy =
            Policy::new("site", Quota::new(10, PERIOD)).headroom(Criticality::Sheddable, Headroom::Units(4));
        let text = |charge: &Charge| {
            let explained =
                runtime.block_on(Explanation::of_all(&limiter, std::slice::from_ref(charge))).unwrap();
            explained.to_string().lines().skip(2).collect::<Vec<_>>().join("\n")
        };
        let charge = |cost| Charge::new(&policy, &Key::new("all"), cost);
        let crawl = charge(1).with_criticality(Criticality::Sheddable);
        runtime.block_on(limiter.check_all(&[charge(6)])).unwrap();
        assert_eq!(
            text(&crawl),
            "0 of 10 units remain; fully replenished in 6s\n\
             the request is sheddable: 4 units of headroom, kept for more critical requests\n\
             a request of 1 unit is denied; admitted in 1s",
            "{name}"
        );
        assert_eq!(
            text(&charge(5).or_degrade()),
            "4 of 10 units remain; fully replenished in 6s\n\
             a request of 5 units is denied; admitted in 1s; a request that is denied goes on without it",
            "{name}"
        );
    }
}
