//! `RedisStore`, `MemoryStore` and a naive model, asked the same, say the same.

mod support;

use std::time::Duration;

use proptest::prelude::*;
use support::{
    RedisServer,
    model::{Counting, Model, Rule, Said},
    store,
};
use tower_ratelimit::{Charge, FixedWindow, Key, Limiter, ManualClock, MemoryStore, Policy, Quota, Verdict};

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    SetBack(u64),
    /// On one policy, or on all of them at once.
    Ask {
        policy: Option<usize>,
        key: usize,
        cost: u64,
        take: bool,
    },
    Reset {
        policy: usize,
        key: usize,
    },
    /// Wait exactly as long as the last refusal named.
    WaitForRetry,
}

const KEYS: [&str; 2] = ["alice", "b{o}b"];

fn period() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(1_000_000),
        Just(60_000_000),
        Just(86_400_000_000),
        1_000..10_000_000_u64,
        1_000..=34_560_000_000_000_u64,
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let limit = prop_oneof![1..20_u64, 1..2_000_u64, 1..10_000_000_u64, 1..=1_000_000_000_000_u64];
    (limit, period(), prop_oneof![Just(0), 1..50_u64, 1..5_000_u64], 0..3_u8, any::<u64>()).prop_map(
        |(limit, period, burst, counting, offset)| {
            let counting = match counting {
                0 => Counting::Gcra,
                1 => Counting::Anchored,
                _ => Counting::Aligned(offset % period),
            };
            // A burst must refill within 100 years.
            let burst = if u128::from(burst) * u128::from(period) / u128::from(limit) > 3_000_000_000_000_000
            {
                1
            } else {
                burst
            };
            let capacity = if counting == Counting::Gcra && burst > 0 { burst } else { limit };
            Rule { counting, limit, period, capacity }
        },
    )
}

fn policy(name: &str, rule: Rule) -> Policy {
    let mut quota = Quota::new(rule.limit, Duration::from_micros(rule.period)).unwrap();
    match rule.counting {
        Counting::Gcra => {
            if rule.capacity != rule.limit {
                quota = quota.burst(rule.capacity);
            }
            Policy::new(name, quota)
        }
        Counting::Anchored => Policy::new(name, quota).algorithm(FixedWindow::anchored()),
        Counting::Aligned(offset) => {
            let west = Duration::from_micros(offset);
            Policy::new(name, quota).algorithm(FixedWindow::aligned().utc_offset_west(west))
        }
    }
}

/// Steps whose times and costs are of the size that matters to `rules`.
fn steps(rules: &[Rule]) -> impl Strategy<Value = Vec<Step>> + use<> {
    let (policies, rules) = (rules.len(), rules.to_vec());
    let time = {
        let rules = rules.clone();
        (0..policies, 0..4_u8, 0.0..1.5_f64).prop_map(move |(policy, size, share)| {
            let Rule { period, limit, .. } = rules[policy];
            match size {
                0 => 1,
                1 => period / limit,
                2 => (period as f64 * share) as u64,
                _ => (period as f64 / limit as f64 * share * 3.0) as u64,
            }
        })
    };
    let cost = (0..policies, 0..6_u8, 0.0..1.2_f64).prop_map(move |(policy, size, share)| {
        let capacity = rules[policy].capacity;
        match size {
            0 => 0,
            1 | 2 => 1,
            3 => capacity,
            4 => capacity + 1,
            _ => (capacity as f64 * share) as u64,
        }
    });
    let ask = (proptest::option::of(0..policies), 0..KEYS.len(), cost, proptest::bool::weighted(0.8))
        .prop_map(|(policy, key, cost, take)| Step::Ask { policy, key, cost, take });
    let step = prop_oneof![
        12 => ask,
        4 => time.clone().prop_map(Step::Advance),
        1 => time.prop_map(Step::SetBack),
        1 => (0..policies, 0..KEYS.len()).prop_map(|(policy, key)| Step::Reset { policy, key }),
        3 => Just(Step::WaitForRetry),
    ];
    proptest::collection::vec(step, 1..80)
}

/// One client of all three.
struct Contest {
    clock: ManualClock,
    stores: [(&'static str, Limiter); 2],
    model: Model,
    rules: Vec<Rule>,
    policies: Vec<Policy>,
    retry: Option<Duration>,
}

impl Contest {
    async fn ask(&mut self, policies: &[usize], key: usize, cost: u64, take: bool) {
        let now = u64::try_from(self.clock.now().as_micros()).unwrap();
        let asked: Vec<_> = policies.iter().map(|&i| (i, self.rules[i], KEYS[key], cost)).collect();
        let expected = self.model.decide(&asked, now, take);
        let charges: Vec<_> =
            policies.iter().map(|&i| Charge::new(&self.policies[i], &Key::new(KEYS[key]), cost)).collect();
        for (name, limiter) in &self.stores {
            let decision = match (&*charges, take) {
                (charges, true) => limiter.check_all(charges).await.unwrap(),
                ([one], false) => limiter.peek(&one.policy, &one.key, one.cost).await.unwrap(),
                // There is no peek at several; the model was not changed, so nothing is lost.
                (_, false) => return,
            };
            assert!(decision.failure().is_none(), "{name}: {decision:?}");
            let said: Vec<_> = decision
                .outcomes()
                .iter()
                .map(|outcome| Said {
                    admitted: outcome.is_allowed(),
                    remaining: outcome.remaining(),
                    reset: outcome.reset_after(),
                    retry: outcome.retry_after(),
                })
                .collect();
            assert_eq!(said, expected, "{name}, {policies:?}, cost {cost}, take {take}, at {now}");
        }
        if take && expected.len() == 1 && !expected[0].admitted {
            self.retry = expected[0].retry;
            if let Some(wait) = expected[0].retry {
                self.retry_is_exact(policies[0], key, cost, wait).await;
            }
        }
    }

    /// A microsecond before the time that a refusal named it is refused, and then it is admitted.
    async fn retry_is_exact(&self, policy: usize, key: usize, cost: u64, wait: Duration) {
        let tick = Duration::from_micros(1);
        for (name, limiter) in &self.stores {
            let mut verdicts = Vec::new();
            for pause in [wait - tick, tick] {
                self.clock.advance(pause);
                let decision =
                    limiter.peek(&self.policies[policy], &Key::new(KEYS[key]), cost).await.unwrap();
                verdicts.push(decision.is_allowed());
            }
            assert_eq!(verdicts, [false, true], "{name}, {wait:?}");
            self.clock.step_back(wait);
        }
    }
}

async fn run(server: &RedisServer, rules: Vec<Rule>, steps: Vec<Step>) {
    let clock = ManualClock::new();
    let redis = store(server).await.prefix(&unique_prefix()).manual_clock(clock.clone());
    let memory = MemoryStore::new().manual_clock(clock.clone());
    let mut contest = Contest {
        stores: [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))],
        clock,
        model: Model::default(),
        policies: rules.iter().enumerate().map(|(i, rule)| policy(&format!("p{i}"), *rule)).collect(),
        rules,
        retry: None,
    };
    let all: Vec<usize> = (0..contest.rules.len()).collect();
    for step in steps {
        match step {
            Step::Advance(by) => contest.clock.advance(Duration::from_micros(by)),
            Step::SetBack(by) => contest.clock.step_back(Duration::from_micros(by)),
            Step::Ask { policy: Some(policy), key, cost, take } => {
                contest.ask(&[policy], key, cost, take).await
            }
            Step::Ask { policy: None, key, cost, .. } => contest.ask(&all, key, cost, true).await,
            Step::Reset { policy, key } => {
                contest.model.reset(policy, KEYS[key]);
                for (_, limiter) in &contest.stores {
                    limiter.reset(&contest.policies[policy], &Key::new(KEYS[key])).await.unwrap();
                }
            }
            Step::WaitForRetry => {
                if let Some(wait) = contest.retry.take() {
                    contest.clock.advance(wait);
                }
            }
        }
    }
}

fn unique_prefix() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("case{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn redis_memory_and_model_agree_to_the_microsecond() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = RedisServer::start();
    let case = proptest::collection::vec(rule(), 1..4)
        .prop_flat_map(|rules| steps(&rules).prop_map(move |steps| (rules.clone(), steps)));
    let cases = std::env::var("DIFFERENTIAL_CASES").map_or(300, |cases| cases.parse().unwrap());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |((rules, steps) in case)| {
        runtime.block_on(run(&server, rules, steps));
    });
}

/// The rule that the random steps can only meet by luck: what a raised limit allows is not denied, and a
/// lowered one binds at once.
#[tokio::test]
async fn a_changed_quota_counts_what_was_charged_before() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let stores = [
        Limiter::new(MemoryStore::new().manual_clock(clock.clone())),
        Limiter::new(store(&server).await.manual_clock(clock.clone())),
    ];
    let day = |limit| Policy::new("day", Quota::per_day(limit));
    let window = |limit| day(limit).algorithm(FixedWindow::anchored());
    let makers: [(&str, &dyn Fn(u64) -> Policy); 2] = [("gcra", &day), ("fixed window", &window)];
    for limiter in stores {
        for (name, limited_to) in makers {
            let key = Key::new(name);
            let take = async |limit, cost| limiter.check(&limited_to(limit), &key, cost).await.unwrap();
            assert!(take(10, 10).await.is_allowed(), "{name}");
            assert!(!take(10, 1).await.is_allowed(), "{name}");
            // Raised: ten of twenty are used.
            assert_eq!(take(20, 9).await.outcomes()[0].remaining(), 1, "{name}");
            // Lowered: all is used, and one more comes back within the new quota's time.
            let refused = take(4, 1).await;
            assert_eq!(refused.outcomes()[0].remaining(), 0, "{name}");
            let day = Duration::from_secs(86_400);
            assert!(
                matches!(refused.verdict(), Verdict::Deny { retry_after: Some(wait) } if wait <= day),
                "{name}"
            );
            clock.advance(refused.retry_after().unwrap());
            assert!(take(4, 1).await.is_allowed(), "{name}");
        }
    }
}
