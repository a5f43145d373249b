//! `RedisStore`, `MemoryStore` and a naive model make the same decisions.
//!
//! ```text
//! DIFFERENTIAL_STEPS=1000000 cargo test --release -p tests differential::
//! ```
//!
//! runs that many steps with each algorithm instead of 2,000; `make test-long` takes 300,000. `PROPTEST_RNG_SEED=7` makes
//! the steps of a run the same as in another one.

use std::{
    mem,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::model::{Ask, Calendar, Counting, Model, Penalty, Receipt, Rule, Said, capacity};
use futures_util::future::{join, join_all};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{RedisPool, RedisServer, current_thread, pool, settings};
use tower_ratelimit::{
    Answer, Charge, Criticality, Decision, Error, ErrorKind, Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket, Weekday},
    decision::{Outcome, Verdict},
    policy::{Headroom, Penalty as PolicyPenalty},
    store::{ManualClock, RedisStoreBuilder},
};

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    SetBack(u64),
    Ask(Asked),
    Reset {
        policy: usize,
        key: usize,
    },
    /// A ban by an operator, if the policy has a penalty. A time of 0 ends one.
    Ban {
        policy: usize,
        key: usize,
        time: u64,
    },
    /// Change the quota of a policy and keep its counts.
    SetQuota {
        policy: usize,
        limit: u64,
        stretch: u64,
    },
    /// Change the quota of a policy to the one before, as instances do that change at different times.
    SwitchQuota {
        policy: usize,
    },
    /// Refund units of an earlier decision, of any age.
    RefundOf {
        which: usize,
        share: f64,
    },
    /// Wait exactly as long as the last denial requires.
    WaitForRetry,
    /// Decisions that are made together, so that they share a call to Redis.
    Together(Vec<Asked>),
}

/// A decision under one policy, or under all of them together.
#[derive(Clone, Debug)]
struct Asked {
    policy: Option<usize>,
    /// The last one has values of another program.
    key: usize,
    cost: u64,
    ask: Ask,
    /// Whether it leaves the headroom of the policies.
    is_sheddable: bool,
}

/// A decision that charged something, as returned by every store.
struct Charged {
    policies: Vec<(usize, Rule)>,
    key: usize,
    granted: u64,
    refunded: u64,
    receipts: Vec<Receipt>,
    decisions: Vec<Decision>,
}

/// A store of which only the verdict is compared.
const REMEMBERING: &str = "redis, remembering";
/// A store that makes the decisions of a batch in one call.
const BATCHED: &str = "redis, batched";
const KEYS: [&str; 2] = ["alice", "b{o}b"];
/// Its keys in the store [`BATCHED`] are hashes, which no algorithm stores.
const FOREIGN: &str = "mallory";
const STEPS: usize = 80;

fn period() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(1_000_000),
        Just(60_000_000),
        Just(86_400_000_000),
        1_000..10_000_000_u64,
        1_000..=34_560_000_000_000_u64,
    ]
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..20_u64, 3 => 1..2_000_u64, 2 => 1..10_000_000_u64, 1 => 1..=999_999_999_999_999_u64]
}

/// The algorithms by name, each with random options.
const ALGORITHMS: [&str; 9] =
    ["gcra", "meter", "tokens", "queue", "anchored", "aligned", "calendar", "log", "cells"];

const DAY: u64 = 86_400_000_000;
/// Periods of aligned windows.
const ALIGNED: [u64; 8] = [1_000, 40_000, 1_000_000, 7_500_000, 60_000_000, 3_600_000_000, DAY, 7 * DAY];
/// With their nominal days. Days and weeks are counted by a calendar in zones with a name.
const UNITS: [(&str, u64); 5] = [("month", 30), ("quarter", 90), ("year", 365), ("week", 7), ("day", 1)];
const ZONES: [&str; 5] = ["+00:00", "+05:45", "America/Sao_Paulo", "Pacific/Apia", "Europe/Berlin"];

/// A calendar, and the nominal length of its windows.
fn calendar(random: u64) -> (Calendar, u64) {
    let (zone, unit) = (random % 5, random / 5 % 5);
    let (unit, days) = UNITS[if zone < 2 { unit as usize % 3 } else { unit as usize }];
    let first = match unit {
        "day" => 0,
        "week" => random / 25 % 7,
        "month" => 1 + random / 25 % 31,
        _ => 1 + random / 25 % 12,
    };
    (Calendar { unit, first: first as i8, zone: ZONES[zone as usize] }, days * DAY)
}

/// The most units that an algorithm counts, by its name here or in a key.
fn most(algorithm: &str) -> u64 {
    match algorithm {
        "gcra" | "meter" | "tokens" | "token-bucket" => 10_000_000_000_000,
        "anchored" | "aligned" | "calendar" | "fixed-window" => 999_999_999_999_999,
        _ => 1_000_000_000_000,
    }
}

fn rule(algorithm: &'static str) -> impl Strategy<Value = Rule> {
    let burst = prop_oneof![Just(0), 1..50_u64, 1..5_000_u64];
    let debt = prop_oneof![3 => Just(0), 1 => 1..50_u64, 1 => 1..5_000_u64];
    (limit(), period(), burst, any::<u64>(), 0..100_u64, 1..30_u64, debt).prop_map(
        move |(limit, mut period, burst, random, percent, cells, debt)| {
            // Room for the units that a step of tokens is rounded up to.
            let mut limit = limit.min(most(algorithm) - 100);
            let bursting = matches!(algorithm, "gcra" | "meter" | "tokens") && burst > 0;
            let mut burst = if bursting || algorithm == "queue" { burst.max(1) } else { limit };
            let counting = match algorithm {
                "gcra" => Counting::Gcra,
                "meter" => Counting::Meter,
                "tokens" => {
                    // A step must add a whole number of tokens.
                    let step = (random % 2 == 0).then(|| {
                        let parts = 1 + random % 10;
                        period = period / parts / 1_000 * parts * 1_000 + parts * 1_000;
                        limit = limit.div_ceil(parts) * parts;
                        period / parts
                    });
                    let initial = if random % 3 == 0 { burst } else { burst * percent / 100 };
                    if !bursting {
                        burst = limit;
                    }
                    Counting::Tokens { initial: initial.min(burst), step }
                }
                "queue" => {
                    // At most 1,000,000,000,000 units may be in the queue.
                    let longest = (3 * period)
                        .min(34_560_000_000_000)
                        .min(period.saturating_mul(1_000_000_000_000 / limit));
                    Counting::Queue { wait: random % longest }
                }
                "anchored" => Counting::Anchored,
                "aligned" => {
                    period = ALIGNED[(random % 8) as usize];
                    Counting::Aligned(random / 8 % period)
                }
                "calendar" => {
                    let (calendar, nominal) = calendar(random);
                    period = nominal;
                    Counting::Calendar(calendar)
                }
                "log" => Counting::Log,
                _ => {
                    period = period.div_ceil(cells * 1_000) * cells * 1_000;
                    Counting::Cells(cells)
                }
            };
            if period > 34_560_000_000_000 {
                period = 34_560_000_000_000 / 30_000_000 * 30_000_000;
                if let Counting::Cells(_) = counting {
                    return Rule {
                        counting: Counting::Cells(30),
                        limit,
                        period,
                        burst,
                        debt,
                        shadow: false,
                        penalty: None,
                        headroom: 0,
                    };
                }
            }
            // A burst must refill within 100 years.
            if u128::from(burst) * u128::from(period) / u128::from(limit) > 3_000_000_000_000_000 {
                burst = 1;
            }
            let debt = bounded(debt, counting, limit, period, burst);
            let counting = match counting {
                Counting::Tokens { initial, step } => Counting::Tokens {
                    initial: initial.min(burst),
                    // The step after the corrections above, if it still adds whole tokens.
                    step: step.filter(|step| {
                        *step >= 1_000 && u128::from(*step) * u128::from(limit) % u128::from(period) == 0
                    }),
                },
                other => other,
            };
            Rule { counting, limit, period, burst, debt, shadow: false, penalty: None, headroom: 0 }
        },
    )
}

const WEEKDAYS: [Weekday; 7] = [
    Weekday::Monday,
    Weekday::Tuesday,
    Weekday::Wednesday,
    Weekday::Thursday,
    Weekday::Friday,
    Weekday::Saturday,
    Weekday::Sunday,
];

/// The algorithm's part of a key.
fn algorithm(rule: Rule) -> &'static str {
    match rule.counting {
        Counting::Gcra => "gcra",
        Counting::Meter | Counting::Queue { .. } => "leaky-bucket",
        Counting::Tokens { .. } => "token-bucket",
        Counting::Anchored | Counting::Aligned(_) | Counting::Calendar(_) => "fixed-window",
        Counting::Log => "sliding-log",
        Counting::Cells(_) => "sliding-window",
    }
}

fn policy(name: &str, rule: Rule) -> Policy {
    let quota = Quota::new(rule.limit, Duration::from_micros(rule.period));
    let bursting = if rule.burst == rule.limit { quota } else { quota.burst(rule.burst) };
    let policy = match rule.counting {
        Counting::Gcra => Policy::new(name, bursting),
        Counting::Meter => Policy::new(name, bursting).algorithm(LeakyBucket::meter()),
        Counting::Tokens { initial, step } => {
            let mut bucket = TokenBucket::new().starting_at(initial);
            if let Some(step) = step {
                bucket = bucket.refill_every(Duration::from_micros(step));
            }
            Policy::new(name, bursting).algorithm(bucket)
        }
        Counting::Queue { wait } => {
            let queue = LeakyBucket::queue(Duration::from_micros(wait)).delay_after(rule.burst);
            Policy::new(name, quota).algorithm(queue)
        }
        Counting::Anchored => Policy::new(name, quota).algorithm(FixedWindow::anchored()),
        Counting::Aligned(offset) => {
            // Weeks start on a Monday, four days after 1970.
            let monday = if rule.period == 7 * DAY { 4 * DAY } else { 0 };
            let west = Duration::from_micros((offset + rule.period - monday) % rule.period);
            Policy::new(name, quota).algorithm(FixedWindow::aligned().utc_offset_west(west))
        }
        Counting::Calendar(Calendar { unit, first, zone }) => {
            let windows = match zone.strip_prefix("+05:45") {
                Some(_) => FixedWindow::aligned().utc_offset_east(Duration::from_secs(345 * 60)),
                None if zone == "+00:00" => FixedWindow::aligned(),
                None => FixedWindow::aligned().time_zone(zone),
            };
            let windows = match (unit, u8::try_from(first).unwrap()) {
                ("day", _) => windows,
                ("week", day) => windows.from_weekday(WEEKDAYS[usize::from(day)]),
                ("month", day) => windows.from_day(day),
                (_, month) => windows.from_month(month),
            };
            let quota: Quota = format!("{}/{unit}", rule.limit).parse().unwrap();
            Policy::new(name, quota.with_limit(rule.limit).unwrap()).algorithm(windows)
        }
        Counting::Log => Policy::new(name, quota).algorithm(SlidingLog::new()),
        Counting::Cells(cells) => {
            let cells = u32::try_from(cells).unwrap();
            Policy::new(name, quota).algorithm(SlidingWindow::new().segments(cells))
        }
    };
    let mut policy = policy.max_debt(rule.debt);
    if rule.headroom > 0 {
        policy = policy.headroom(Criticality::Sheddable, Headroom::Units(rule.headroom));
    }
    if let Some(Penalty { after, within, first, longest }) = rule.penalty {
        let [within, first, longest] = [within, first, longest].map(Duration::from_micros);
        policy = policy.penalty(PolicyPenalty::after(after, within).ban(first).up_to(longest));
    }
    if rule.shadow { policy.shadow() } else { policy }
}

/// The rule with a random penalty, on the scale of its period.
fn punishing(rule: Rule) -> impl Strategy<Value = Rule> {
    let parts = || proptest::sample::select([1, 10, 30, 200].as_slice());
    (1..5_u64, parts(), parts(), 1..10_u64).prop_map(move |(after, window, ban, growth)| {
        let within = (rule.period / 10 * window).clamp(1_000, 34_560_000_000_000);
        let first = (rule.period / 10 * ban).clamp(1_000, 300_000_000_000_000);
        let longest = (first * growth).min(315_360_000_000_000);
        Rule { penalty: Some(Penalty { after, within, first, longest }), ..rule }
    })
}

/// The debt, or 0 if it is out of the bounds of a quota.
fn bounded(debt: u64, counting: Counting, limit: u64, period: u64, burst: u64) -> u64 {
    let debt = if matches!(counting, Counting::Calendar(_)) { debt.min(24 * limit) } else { debt };
    let room = u128::from(limit.max(burst) + debt);
    let drains = room * u128::from(period) / u128::from(limit);
    if room <= 1_000_000_000_000 && drains <= 3_000_000_000_000_000 { debt } else { 0 }
}

/// The rule after a change of quota. Values that depend on both the limit and the period stay whole.
fn changed(rule: Rule, limit: u64, stretch: u64) -> Rule {
    let period = match rule.counting {
        Counting::Tokens { step: Some(_), .. } | Counting::Aligned(_) | Counting::Calendar(_) => rule.period,
        _ if rule.period <= 1_000_000_000_000 => rule.period * stretch,
        _ => rule.period,
    };
    let limit = limit.min(most(algorithm(rule)));
    let limit = match rule.counting {
        Counting::Tokens { step: Some(_), .. } => {
            rule.limit * limit.min(1_000_000_000_000 / rule.limit).clamp(1, 5)
        }
        _ => limit,
    };
    let burst = if rule.burst == rule.limit && !matches!(rule.counting, Counting::Queue { .. }) {
        limit
    } else if u128::from(rule.burst) * u128::from(period) / u128::from(limit) > 3_000_000_000_000_000 {
        return rule;
    } else {
        rule.burst
    };
    let counting = match rule.counting {
        Counting::Tokens { initial, step } => Counting::Tokens { initial: initial.min(burst), step },
        Counting::Queue { wait }
            if u128::from(wait) * u128::from(limit) / u128::from(period) > 1_000_000_000_000 =>
        {
            return rule;
        }
        other => other,
    };
    Rule {
        counting,
        limit,
        period,
        burst,
        debt: bounded(rule.debt, counting, limit, period, burst),
        shadow: rule.shadow,
        penalty: rule.penalty,
        headroom: rule.headroom,
    }
}

/// Steps whose times and costs match the scale of `rules`.
fn steps(rules: &[Rule]) -> impl Strategy<Value = Vec<Step>> + use<> {
    // Debts of several windows are not ended by a limit of another scale.
    let owes = rules.iter().any(|rule| rule.debt >= rule.limit);
    let (debits, limit) = if owes { (6, (1..40_u64).boxed()) } else { (1, limit().boxed()) };
    let (policies, rules) = (rules.len(), rules.to_vec());
    let time = {
        let rules = rules.clone();
        (0..policies, 0..5_u8, 0.0..1.5_f64).prop_map(move |(policy, size, share)| {
            let Rule { period, limit, .. } = rules[policy];
            match size {
                0 => 1,
                1 => period / limit,
                2 => (period as f64 * share) as u64,
                3 => (period as f64 * share / 10.0) as u64,
                _ => (period as f64 / limit as f64 * share * 3.0) as u64,
            }
        })
    };
    let cost = (0..policies, 0..6_u8, 0.0..1.2_f64).prop_map(move |(policy, size, share)| {
        let capacity = capacity(rules[policy]);
        match size {
            0 => 0,
            1 | 2 => 1,
            3 => capacity,
            4 => capacity + 1,
            _ => (capacity as f64 * share) as u64,
        }
    });
    let what = prop_oneof![6 => Just(Ask::Take), 2 => Just(Ask::Peek), 1 => Just(Ask::TakeUpTo), debits => Just(Ask::Debit), 1 => Just(Ask::Refund)];
    let asked = |keys| {
        (proptest::option::weighted(0.8, 0..policies), 0..keys, cost.clone(), what.clone(), any::<bool>())
            .prop_map(|(policy, key, cost, ask, is_sheddable)| Asked { policy, key, cost, ask, is_sheddable })
    };
    let ask = asked(KEYS.len()).prop_map(Step::Ask);
    let asked = asked(KEYS.len() + 1);
    let ban = (0..policies, 0..KEYS.len(), prop_oneof![Just(0), 1_000..100_000_000_u64])
        .prop_map(|(policy, key, time)| Step::Ban { policy, key, time });
    let set_quota = (0..policies, limit, 1..4_u64).prop_map(|(policy, limit, stretch)| Step::SetQuota {
        policy,
        limit,
        stretch,
    });
    let refund_of = (0..1_000_usize, 0.1..1.5_f64).prop_map(|(which, share)| Step::RefundOf { which, share });
    let step = prop_oneof![
        24 => ask,
        6 => refund_of,
        8 => time.clone().prop_map(Step::Advance),
        2 => time.prop_map(Step::SetBack),
        2 => (0..policies, 0..KEYS.len()).prop_map(|(policy, key)| Step::Reset { policy, key }),
        1 => ban,
        2 => set_quota,
        3 => (0..policies).prop_map(|policy| Step::SwitchQuota { policy }),
        6 => Just(Step::WaitForRetry),
        2 => proptest::collection::vec(asked, 2..16).prop_map(Step::Together),
    ];
    proptest::collection::vec(step, STEPS / 2..STEPS)
}

/// Runs the same steps on every store and on the model.
struct Contest {
    clock: ManualClock,
    /// Whether the time of the runtime advances too, for a store that has no manual clock. It is never set back.
    has_real_clock: bool,
    stores: Vec<(&'static str, Limiter)>,
    model: Model,
    rules: Vec<Rule>,
    /// The rules before the latest change of their quotas.
    previous: Vec<Rule>,
    policies: Vec<Policy>,
    charged: Vec<Charged>,
    retry: Option<Duration>,
}

impl Contest {
    fn new(server: &RedisServer, pool: &RedisPool, rules: Vec<Rule>) -> Self {
        let () = server.command(&["FLUSHALL"]);
        let clock = ManualClock::new();
        let redis = |settings: RedisStoreBuilder| {
            Limiter::new(settings.manual_clock(clock.clone()).build(pool.clone()).unwrap())
        };
        let memory = MemoryStore::with_clock(clock.clone());
        let mut stores = vec![("memory", Limiter::new(memory))];
        // A ban writes no other state, so a bucket that starts below its burst may be new again at each denial of the ban. The
        // deny cache reports the wait of the first one.
        let forgets = |rule: &Rule| rule.penalty.is_some() && starts_below_its_burst(rule);
        // The deny cache reports the wait of the first denial, which a more critical request may have made longer.
        let keeps = |rule: &Rule| rule.headroom > 0;
        if rules.len() == 1 && !rules.iter().any(|rule| forgets(rule) || keeps(rule)) {
            stores.push(("redis", redis(settings())));
        } else {
            // The deny cache may report a state up to a second old for policies that did not deny.
            stores.push((REMEMBERING, redis(settings().prefix("remembering"))));
            stores.push(("redis", redis(settings().deny_cache(Duration::ZERO))));
        }
        let redis = Limiter::new(
            settings()
                .prefix("batched")
                .deny_cache(Duration::ZERO)
                .manual_clock(clock.clone())
                .build(pool.clone())
                .unwrap(),
        );
        stores.push((BATCHED, redis));
        for (i, rule) in rules.iter().enumerate() {
            let key = format!("batched:p{i}:{}:{{{FOREIGN}}}", algorithm(*rule));
            let () = server.command(&["HSET", &key, "a", "b"]);
        }
        Self::of(stores, clock, rules)
    }

    /// A store that keeps all states, and one that drops them when they expire. The time of the runtime must be paused.
    async fn in_memory(rules: Vec<Rule>) -> Self {
        let (clock, expiring) = (ManualClock::new(), Limiter::new(MemoryStore::new()));
        // The time that the store was built at: the window of this policy ends on a Monday, as the day 4 after 1970 was.
        let (period, first) = (Duration::from_secs(7 * 86_400), Duration::from_secs(4 * 86_400));
        let epoch = Policy::new("clock", Quota::per_week(1)).algorithm(FixedWindow::aligned());
        let reset = expiring.check(&epoch, &Key::new("clock"), 1).await.unwrap().outcomes()[0].reset_after();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let windows = u32::try_from((wall + reset - first).as_secs() / period.as_secs()).unwrap();
        clock.set(first + period * windows - reset);
        let keeping = Limiter::new(MemoryStore::with_clock(clock.clone()));
        let contest = Self::of(vec![("memory", keeping), ("memory, expiring", expiring)], clock, rules);
        Self { has_real_clock: true, ..contest }
    }

    fn of(stores: Vec<(&'static str, Limiter)>, clock: ManualClock, rules: Vec<Rule>) -> Self {
        Self {
            stores,
            clock,
            has_real_clock: false,
            model: Model::default(),
            policies: rules.iter().enumerate().map(|(i, rule)| policy(&format!("p{i}"), *rule)).collect(),
            previous: rules.clone(),
            rules,
            charged: Vec::new(),
            retry: None,
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Advance(by) => self.advance(Duration::from_micros(by)).await,
            // A real clock is not set back. Redis drops the counts of a key that expired before its quota was slowed down.
            Step::SetBack(_) | Step::SetQuota { .. } | Step::SwitchQuota { .. } if self.has_real_clock => {}
            Step::SetBack(by) => self.clock.step_back(Duration::from_micros(by)),
            Step::Ask(Asked { policy: Some(policy), ask: Ask::Refund, .. }) if self.forgets(policy) => {}
            Step::Ask(asked @ Asked { policy: Some(policy), .. }) => self.ask(&[policy], asked).await,
            Step::Ask(asked) => {
                let all = self.all_policies();
                // The others do not support several policies in one decision.
                let ask = if matches!(asked.ask, Ask::Peek | Ask::Debit) { asked.ask } else { Ask::Take };
                self.ask(&all, Asked { ask, ..asked }).await;
            }
            Step::Reset { policy, key } => {
                self.model.reset(policy, KEYS[key], u64::try_from(self.clock.now().as_micros()).unwrap());
                for (_, limiter) in &self.stores {
                    limiter.operator().reset(&self.policies[policy], &Key::new(KEYS[key])).await.unwrap();
                }
                if self.has_real_clock {
                    // A store that had dropped an expired state has no mark, which a charge in this microsecond would show.
                    self.advance(Duration::from_micros(1)).await;
                }
            }
            Step::Ban { policy: i, key, time } => {
                let Some(penalty) = self.rules[i].penalty else { return };
                let now = u64::try_from(self.clock.now().as_micros()).unwrap();
                self.model.ban(i, penalty, KEYS[key], time, now);
                let (policy, key) = (&self.policies[i], Key::new(KEYS[key]));
                for (_, limiter) in &self.stores {
                    match time {
                        0 => limiter.operator().unban(policy, &key).await.unwrap(),
                        _ => limiter.operator().ban(policy, &key, Duration::from_micros(time)).await.unwrap(),
                    }
                }
            }
            Step::SetQuota { policy, limit, stretch } => {
                self.previous[policy] = changed(self.rules[policy], limit, stretch);
                self.switch_quota(policy);
            }
            // A narrower cell: the retry time counts one that has not ended as ended now, so it may be too short.
            Step::SwitchQuota { policy } if matches!(self.rules[policy].counting, Counting::Cells(_)) => {}
            Step::SwitchQuota { policy } => self.switch_quota(policy),
            Step::RefundOf { which, share } => self.refund_of(which, share).await,
            Step::Together(asked) => self.ask_together(&asked).await,
            Step::WaitForRetry => {
                if let Some(wait) = self.retry.take() {
                    self.advance(wait).await;
                }
            }
        }
    }

    fn switch_quota(&mut self, i: usize) {
        mem::swap(&mut self.rules[i], &mut self.previous[i]);
        self.policies[i] = policy(&format!("p{i}"), self.rules[i]);
    }

    /// Numbers are exact up to the year 2255. A quota may take 95 years to refill, plus up to 18 years of refunded
    /// units, so advances beyond 2^52 microseconds are skipped.
    async fn advance(&self, by: Duration) {
        if self.reaches(by) {
            self.clock.advance(by);
            if self.has_real_clock {
                tokio::time::advance(by).await;
            }
        }
    }

    fn reaches(&self, wait: Duration) -> bool {
        (self.clock.now() + wait).as_micros() < 1 << 52
    }

    /// Whether an operator's refund to a key that counts as new depends on whether the store still has its state.
    fn forgets(&self, policy: usize) -> bool {
        self.has_real_clock && starts_below_its_burst(&self.rules[policy])
    }

    /// All policies, the shadows last, as decisions have them.
    fn all_policies(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.rules.len()).collect();
        all.sort_by_key(|policy| self.rules[*policy].shadow);
        all
    }

    /// The rule of a policy with the headroom for a request. One of a policy and a key has no criticality.
    fn rule_for(&self, i: usize, asked: &Asked) -> Rule {
        let leaves = asked.is_sheddable && matches!(asked.ask, Ask::Take | Ask::Peek | Ask::Debit);
        Rule { headroom: if leaves { self.rules[i].headroom } else { 0 }, ..self.rules[i] }
    }

    fn charge_for(&self, i: usize, key: &Key, asked: &Asked) -> Charge {
        let charge = Charge::new(&self.policies[i], key, asked.cost);
        if asked.is_sheddable { charge.with_criticality(Criticality::Sheddable) } else { charge }
    }

    async fn ask(&mut self, policies: &[usize], asked_for: Asked) {
        let Asked { key, cost, ask, .. } = asked_for;
        let now = u64::try_from(self.clock.now().as_micros()).unwrap();
        let asked: Vec<_> =
            policies.iter().map(|&i| (i, self.rule_for(i, &asked_for), KEYS[key], cost)).collect();
        let expected = self.model.decide(ask, &asked, now);
        let moved_by_denial = self.model.moved_by_denial;
        let receipts = self.model.receipts.clone();
        let mut decisions = Vec::new();
        let charges: Vec<_> =
            policies.iter().map(|&i| self.charge_for(i, &Key::new(KEYS[key]), &asked_for)).collect();
        for (name, limiter) in &self.stores {
            let (policy, key) = (charges[0].policy(), charges[0].key());
            let decision = match ask {
                Ask::Take => limiter.check_all(&charges).await,
                Ask::Peek => limiter.peek_all(&charges).await,
                Ask::TakeUpTo => limiter.check_up_to(policy, key, cost).await,
                Ask::Debit => limiter.debit(&admitted(&charges), cost).await,
                Ask::Refund => limiter.operator().refund_latest(policy, key, cost).await,
                Ask::RefundOf => unreachable!("handled by its own step"),
            };
            let decision = decision.unwrap();
            assert!(decision.failure().is_none(), "{name}: {decision:?}");
            decisions.push(decision.clone());
            if *name == REMEMBERING && decision.verdict().is_denied() {
                assert!(expected.iter().any(|said| !said.admitted), "{name}, {asked:?}, {ask:?} at {now}");
                continue;
            }
            assert_eq!(said(&decision), expected, "{name}, {asked:?}, {ask:?} at {now}");
        }
        if moved_by_denial {
            self.stop_remembering();
        }
        // The debits of several policies may differ.
        let is_refundable = match ask {
            Ask::Take | Ask::TakeUpTo => true,
            Ask::Debit => policies.len() == 1,
            _ => false,
        };
        let granted = expected[0].granted;
        if is_refundable && granted > 0 && expected.iter().all(|said| said.admitted) {
            let policies = policies.iter().map(|&i| (i, self.rule_for(i, &asked_for))).collect();
            self.charged.push(Charged { policies, key, granted, refunded: 0, receipts, decisions });
        }
        let enforced: Vec<_> = policies
            .iter()
            .zip(&expected)
            .filter(|(i, _)| !self.rules[**i].shadow)
            .map(|(_, said)| said)
            .collect();
        if ask == Ask::Take && enforced.iter().any(|said| !said.admitted) {
            let waits: Option<Vec<_>> =
                enforced.iter().filter(|said| !said.admitted).map(|said| said.retry).collect();
            self.retry = waits.and_then(|waits| waits.into_iter().max());
            // During the wait of one policy, or a ban, another one may expire the state of a key that does not start full.
            let outlasts = policies.len() > 1 || self.rules.iter().any(|rule| rule.penalty.is_some());
            if outlasts && self.rules.iter().any(starts_below_its_burst) {
                return;
            }
            if let Some(wait) = self.retry.filter(|wait| self.reaches(*wait) && !self.has_real_clock) {
                self.retry_is_exact(&charges, wait).await;
            }
        }
    }

    /// Stops the comparison with the store [`REMEMBERING`], after a denial that changes the state of a key: one that is
    /// new and does not start full, or one that is stale. A denial from the deny cache changes nothing in Redis, and the
    /// next one does.
    fn stop_remembering(&mut self) {
        let Some(place) = self.stores.iter().position(|(name, _)| *name == REMEMBERING) else { return };
        self.stores.remove(place);
        for charged in &mut self.charged {
            charged.decisions.remove(place);
        }
    }

    async fn ask_together(&mut self, asked: &[Asked]) {
        let now = u64::try_from(self.clock.now().as_micros()).unwrap();
        let (mut batch, mut moved_by_denial) = (Vec::new(), false);
        for asked in asked {
            let Asked { policy, key, cost, ask, .. } = asked;
            let policies = policy.map_or_else(|| self.all_policies(), |policy| vec![policy]);
            let has_log = policies.iter().any(|&i| self.rules[i].counting == Counting::Log);
            let ask = match ask {
                Ask::Peek => Ask::Peek,
                Ask::Debit => Ask::Debit,
                // The others do not support several policies in one decision.
                _ if policies.len() > 1 => Ask::Take,
                // It may block Redis for as long as a whole batch, so it is always sent alone. Two calls have no order.
                Ask::Refund if has_log || self.forgets(policies[0]) => Ask::Take,
                ask => *ask,
            };
            let name = KEYS.get(*key).copied();
            let asked_for = Asked { ask, ..asked.clone() };
            let expected = name.map(|name| {
                let asked: Vec<_> =
                    policies.iter().map(|&i| (i, self.rule_for(i, &asked_for), name, *cost)).collect();
                let expected = self.model.decide(ask, &asked, now);
                moved_by_denial |= self.model.moved_by_denial;
                expected
            });
            let key = Key::new(name.unwrap_or(FOREIGN));
            let charges: Vec<_> = policies.iter().map(|&i| self.charge_for(i, &key, &asked_for)).collect();
            batch.push((charges, ask, expected));
        }
        if moved_by_denial {
            self.stop_remembering();
        }
        for (name, limiter) in &self.stores {
            let decide = |(charges, ask, _): &(Vec<Charge>, Ask, _)| {
                let (policy, key, cost) = (charges[0].policy(), charges[0].key(), charges[0].cost());
                match ask {
                    Ask::Take => limiter.check_all(charges),
                    Ask::Peek => limiter.peek_all(charges),
                    Ask::TakeUpTo => limiter.check_up_to(policy, key, cost),
                    Ask::Debit => limiter.debit(&admitted(charges), cost),
                    Ask::Refund => limiter.operator().refund_latest(policy, key, cost),
                    Ask::RefundOf => unreachable!("not in a batch"),
                }
            };
            let decisions = if *name == BATCHED {
                // The first decision is sent alone; the others wait for the lane, in their order.
                let alone = limiter.peek(&self.policies[0], &Key::new("alone"), 0);
                let decisions = join_all(batch.iter().map(decide));
                join(alone, decisions).await.1
            } else {
                let mut decisions = Vec::new();
                for asked in &batch {
                    // Only one store has the foreign keys.
                    decisions.push(match &asked.2 {
                        Some(_) => decide(asked).await,
                        None => Err(Error::new(ErrorKind::StoreFailed, "foreign")),
                    });
                }
                decisions
            };
            for ((charges, ask, expected), decision) in batch.iter().zip(decisions) {
                let context = || format!("{name}, {charges:?}, {ask:?} at {now} in {batch:?}");
                match (expected, decision) {
                    (None, decision) => {
                        let failed = decision.as_ref().map_or(true, |decision| decision.failure().is_some());
                        assert!(failed, "{decision:?}: {}", context());
                    }
                    (Some(_), Err(error)) => panic!("{error}: {}", context()),
                    (Some(expected), Ok(decision)) => {
                        if *name == REMEMBERING && decision.verdict().is_denied() {
                            assert!(expected.iter().any(|said| !said.admitted), "{}", context());
                            continue;
                        }
                        assert_eq!(said(&decision), *expected, "{}", context());
                    }
                }
            }
        }
    }

    async fn refund_of(&mut self, which: usize, share: f64) {
        let now = u64::try_from(self.clock.now().as_micros()).unwrap();
        let count = self.charged.len();
        if count == 0 {
            return;
        }
        let charged = &mut self.charged[which % count];
        let asked_for = (charged.granted as f64 * share).ceil() as u64;
        // All refunds together never exceed the charge.
        let units = asked_for.min(charged.granted - charged.refunded);
        charged.refunded += units;
        let asked: Vec<_> =
            charged.policies.iter().map(|&(i, rule)| (i, rule, KEYS[charged.key], units)).collect();
        self.model.receipts.clone_from(&charged.receipts);
        let expected = self.model.decide(Ask::RefundOf, &asked, now);
        for ((name, limiter), decision) in self.stores.iter().zip(&charged.decisions) {
            let decision = limiter.refund(decision, asked_for).await.unwrap();
            assert_eq!(
                said(&decision),
                expected,
                "{name}, {asked:?}, refund of {:?} at {now}",
                charged.receipts
            );
        }
    }

    /// A request is denied one microsecond before the wait of the denial is over, and admitted after it.
    async fn retry_is_exact(&self, charges: &[Charge], wait: Duration) {
        let tick = Duration::from_micros(1);
        for (name, limiter) in &self.stores {
            let mut verdicts = Vec::new();
            for pause in [wait - tick, tick] {
                self.clock.advance(pause);
                let peeked = limiter.peek_all(charges).await.unwrap();
                assert!(peeked.failure().is_none(), "{name}: {peeked:?}");
                verdicts.push(!peeked.verdict().is_denied());
            }
            assert_eq!(verdicts, [false, true], "{name}, {charges:?}, {wait:?}");
            self.clock.step_back(wait);
        }
    }
}

/// A decision that admitted `charges`, to debit.
fn admitted(charges: &[Charge]) -> Decision {
    Decision::new(charges.iter().map(|charge| Outcome::new(charge, Verdict::Admit, 0, Duration::ZERO)))
}

fn starts_below_its_burst(rule: &Rule) -> bool {
    matches!(rule.counting, Counting::Tokens { initial, .. } if initial < rule.burst)
}

fn said(decision: &Decision) -> Vec<Said> {
    let said = |outcome: &Outcome| Said {
        admitted: !outcome.verdict().is_denied(),
        granted: outcome.granted(),
        remaining: outcome.remaining(),
        reset: outcome.reset_after(),
        delay: match outcome.verdict() {
            Verdict::Delay(delay) => delay,
            _ => Duration::ZERO,
        },
        retry: outcome.verdict().retry_after(),
        banned: outcome.banned_for(),
    };
    decision.outcomes().iter().chain(decision.shadows()).map(said).collect()
}

/// Runs random sequences of steps under policies drawn from `rules`.
fn contest(default_steps: usize, rules: impl Strategy<Value = Vec<Rule>>) {
    // One thread, so that the decisions of a batch have an order.
    let runtime = current_thread();
    let server = RedisServer::start();
    let pool = runtime.block_on(pool(&server));
    let steps_wanted =
        std::env::var("DIFFERENTIAL_STEPS").map_or(default_steps, |steps| steps.parse().unwrap());
    let cases = u32::try_from(steps_wanted.div_ceil(STEPS * 3 / 4)).unwrap();
    let case = rules.prop_flat_map(|rules| (Just(rules.clone()), steps(&rules)));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&case, |(rules, steps)| {
            runtime.block_on(async {
                let mut contest = Contest::new(&server, &pool, rules);
                for step in steps {
                    contest.step(step).await;
                }
            });
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// What a store drops when it expires changes no decision, of none of the algorithms: a state is kept as long as it matters,
/// for charges, refunds and bans.
#[test]
fn a_store_that_drops_expired_states_agrees_to_the_microsecond() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let steps_wanted: usize =
        std::env::var("DIFFERENTIAL_STEPS").map_or(3_000, |steps| steps.parse().unwrap());
    let cases = u32::try_from(steps_wanted.div_ceil(STEPS * 3 / 4)).unwrap();
    let rules = proptest::sample::select(ALGORITHMS.as_slice()).prop_flat_map(rule);
    let punished = (rules, any::<bool>()).prop_flat_map(|(rule, is_punished)| match is_punished {
        true => punishing(rule).boxed(),
        false => Just(rule).boxed(),
    });
    let case =
        proptest::collection::vec(punished, 1..3).prop_flat_map(|rules| (Just(rules.clone()), steps(&rules)));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&case, |(rules, steps)| {
            runtime.block_on(async {
                let mut contest = Contest::in_memory(rules).await;
                for step in steps {
                    contest.step(step).await;
                }
            });
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

macro_rules! each_agrees {
    ($($name:ident: $algorithm:literal),+ $(,)?) => { $(
        #[test]
        fn $name() {
            contest(2_000, rule($algorithm).prop_map(|rule| vec![rule]));
        }
    )+ };
}

each_agrees! {
    gcra_agrees_to_the_microsecond: "gcra",
    the_meter_agrees_to_the_microsecond: "meter",
    the_token_bucket_agrees_to_the_microsecond: "tokens",
    the_queue_agrees_to_the_microsecond: "queue",
    anchored_windows_agree_to_the_microsecond: "anchored",
    aligned_windows_agree_to_the_microsecond: "aligned",
    calendar_windows_agree_to_the_microsecond: "calendar",
    the_sliding_log_agrees_to_the_microsecond: "log",
    the_sliding_window_agrees_to_the_microsecond: "cells",
}

/// Random debts are rarely of several windows.
#[test]
fn windows_with_a_debt_agree_to_the_microsecond() {
    let rule = proptest::sample::select(&["anchored", "aligned", "calendar"][..]).prop_flat_map(rule);
    let owing = (rule, 1..20_u64, 1..5_u64, 0..20_u64).prop_map(|(rule, limit, windows, more)| {
        vec![Rule { limit, burst: limit, debt: limit * windows + more.min(limit), ..rule }]
    });
    contest(800, owing);
}

#[test]
fn several_policies_in_one_decision_agree_to_the_microsecond() {
    let rules = proptest::sample::select(ALGORITHMS.as_slice()).prop_flat_map(rule);
    let shadow = (rules, proptest::bool::weighted(0.3))
        .prop_map(|(rule, is_shadow)| Rule { shadow: is_shadow, ..rule });
    contest(1_000, proptest::collection::vec(shadow, 2..4));
}

#[test]
fn a_penalty_agrees_to_the_microsecond() {
    let rule = proptest::sample::select(ALGORITHMS.as_slice()).prop_flat_map(rule).prop_flat_map(punishing);
    contest(1_000, rule.prop_map(|rule| vec![rule]));
}

#[test]
fn several_policies_with_penalties_agree_to_the_microsecond() {
    let rules = proptest::sample::select(ALGORITHMS.as_slice()).prop_flat_map(rule);
    let mixed = (rules, 0..6_u8).prop_flat_map(|(rule, kind)| match kind {
        0 => Just(rule).boxed(),
        1 => punishing(Rule { shadow: true, ..rule }).boxed(),
        _ => punishing(rule).boxed(),
    });
    contest(1_000, proptest::collection::vec(mixed, 2..4));
}

/// Half of the requests leave a part of the capacity to the others, at times all of it.
#[test]
fn headroom_agrees_to_the_microsecond() {
    let rules = proptest::sample::select(ALGORITHMS.as_slice()).prop_flat_map(rule);
    let keeping = (rules, 0.0..1.3_f64).prop_map(|(rule, share)| {
        let headroom = (capacity(rule) as f64 * share) as u64;
        Rule { headroom: headroom.max(1), ..rule }
    });
    let mixed = (keeping, 0..4_u8).prop_flat_map(|(rule, kind)| match kind {
        0 => punishing(rule).boxed(),
        1 => Just(Rule { shadow: true, ..rule }).boxed(),
        _ => Just(rule).boxed(),
    });
    contest(4_000, proptest::collection::vec(mixed, 1..3));
}

/// Random limits are rarely so large: a cell that takes in two others counts no more units than fit into its bytes.
#[test]
fn cells_of_a_trillion_units_agree_after_they_became_wider() {
    let runtime = current_thread();
    let server = RedisServer::start();
    let pool = runtime.block_on(pool(&server));
    let (limit, period) = (800_000_000_000, 60_000_000);
    let counting = Counting::Cells(1);
    let rule =
        Rule { counting, limit, period, burst: limit, debt: 0, shadow: false, penalty: None, headroom: 0 };
    let ask = |cost, ask| Step::Ask(Asked { policy: None, key: 0, cost, ask, is_sheddable: false });
    let steps = [
        ask(limit, Ask::Take),
        Step::Advance(period * 3 / 2),
        ask(limit / 2, Ask::Take),
        Step::SetQuota { policy: 0, limit: 700_000, stretch: 2 },
        ask(1, Ask::Take),
        Step::WaitForRetry,
        ask(1, Ask::Take),
    ];
    runtime.block_on(async {
        let mut contest = Contest::new(&server, &pool, vec![rule]);
        for step in steps {
            contest.step(step).await;
        }
    });
}

/// Random steps rarely cover this rule: a raised limit admits more immediately, and a lowered one denies immediately.
#[tokio::test]
async fn a_changed_quota_counts_what_was_charged_before() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let stores = [
        Limiter::new(MemoryStore::with_clock(clock.clone())),
        Limiter::new(settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap()),
    ];
    for limiter in stores {
        for algorithm in ALGORITHMS {
            let counting = usual(algorithm);
            let key = Key::new(algorithm);
            let limited_to = |limit| {
                policy(
                    "day",
                    Rule {
                        counting,
                        limit,
                        period: 86_400_000_000,
                        burst: limit,
                        debt: 0,
                        shadow: false,
                        penalty: None,
                        headroom: 0,
                    },
                )
            };
            let take = async |limit, cost| limiter.check(&limited_to(limit), &key, cost).await.unwrap();
            assert!(!take(10, 10).await.verdict().is_denied(), "{algorithm}");
            assert!(take(10, 1).await.verdict().is_denied(), "{algorithm}");
            // Raised: ten of twenty are used.
            assert_eq!(take(20, 9).await.remaining(), Some(1), "{algorithm}");
            // Lowered: all units are used, and one is available again within the time in which the quota refills.
            let denied = take(4, 1).await;
            assert_eq!(denied.remaining(), Some(0), "{algorithm}");
            let wait = denied.retry_after().unwrap();
            assert!(wait <= Duration::from_secs(86_400 + 3_600), "{algorithm}: {wait:?}");
            clock.advance(wait);
            assert!(!take(4, 1).await.verdict().is_denied(), "{algorithm}");
        }
    }
}

/// The counting of each algorithm with its usual options.
fn usual(algorithm: &str) -> Counting {
    match algorithm {
        "gcra" => Counting::Gcra,
        "meter" => Counting::Meter,
        "tokens" => Counting::Tokens { initial: u64::MAX, step: None },
        // The capacity of a queue is the units that may wait: here, one period of the quota.
        "queue" => Counting::Queue { wait: 0 },
        "anchored" => Counting::Anchored,
        "aligned" => Counting::Aligned(0),
        "log" => Counting::Log,
        _ => Counting::Cells(24),
    }
}

/// `MemoryStore` and `RedisStore` with one clock. The latter has no deny cache.
async fn both(server: &RedisServer, clock: &ManualClock) -> [(&'static str, Limiter); 2] {
    // One connection, so that decisions which wait share its next call.
    let redis = settings().deny_cache(Duration::ZERO).manual_clock(clock.clone()).pool_size(1);
    [
        ("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))),
        ("redis", Limiter::new(redis.connect(&server.url()).await.unwrap())),
    ]
}

/// Makes decisions of `limiter` in one call. The first one is sent alone; the others wait, in their order.
async fn in_one_call(
    limiter: &Limiter,
    policy: &Policy,
    decisions: impl IntoIterator<Item = Answer<Decision>>,
) -> Vec<Decision> {
    let alone = limiter.peek(policy, &Key::new("alone"), 0);
    join(alone, join_all(decisions)).await.1.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn one_call_may_decide_under_two_quotas_of_a_policy() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let [memory, redis] = both(&server, &clock).await.map(|(_, limiter)| limiter);
    for algorithm in ALGORITHMS {
        let per = |hours: u64| {
            policy(
                "p",
                Rule {
                    counting: usual(algorithm),
                    limit: 10,
                    period: hours * 3_600_000_000,
                    burst: 10,
                    debt: 0,
                    shadow: false,
                    penalty: None,
                    headroom: 0,
                },
            )
        };
        let (hour, day, key) = (per(1), per(24), Key::new(algorithm));
        for limiter in [&memory, &redis] {
            assert!(!limiter.check(&day, &key, 3).await.unwrap().verdict().is_denied(), "{algorithm}");
        }
        clock.advance(Duration::from_secs(2 * 3_600));
        for limiter in [&memory, &redis] {
            assert!(!limiter.check(&day, &key, 2).await.unwrap().verdict().is_denied(), "{algorithm}");
        }
        let decisions = |limiter: &Limiter| {
            [
                limiter.peek(&day, &key, 0),
                limiter.peek(&hour, &key, 0),
                limiter.peek(&day, &key, 9),
                // A charge under the shorter period would drop what counts under the longer one.
                limiter.check(&day, &key, 1),
                limiter.peek(&hour, &key, 9),
            ]
        };
        let together = in_one_call(&redis, &day, decisions(&redis)).await;
        for (decision, together) in decisions(&memory).into_iter().zip(together) {
            assert_eq!(said(&together), said(&decision.await.unwrap()), "{algorithm}");
        }
        clock.advance(Duration::from_secs(86_400));
    }
}

#[tokio::test]
async fn a_call_may_create_a_key_and_refund_nothing_of_a_charge_from_before_its_reset() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let [_, (_, limiter)] = both(&server, &clock).await;
    for algorithm in ["anchored", "aligned", "cells"] {
        let counting = usual(algorithm);
        let policy = policy(
            "p",
            Rule {
                counting,
                limit: 10,
                period: 86_400_000_000,
                burst: 10,
                debt: 0,
                shadow: false,
                penalty: None,
                headroom: 0,
            },
        );
        let key = Key::new(algorithm);
        let before = limiter.check(&policy, &key, 2).await.unwrap();
        limiter.operator().reset(&policy, &key).await.unwrap();
        let decisions = [limiter.check(&policy, &key, 3), limiter.refund(&before, 1)];
        for decision in in_one_call(&limiter, &policy, decisions).await {
            assert!(decision.failure().is_none(), "{algorithm}: {decision:?}");
        }
        assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(7), "{algorithm}");
    }
}

/// Two cells that a wider one merges may have more units than Redis stores per cell.
#[tokio::test]
async fn a_merged_cell_holds_the_most_units_that_fit() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let limit = 1_000_000_000_000;
    let cells = |cells: u64, seconds: u64| {
        policy(
            "p",
            Rule {
                counting: Counting::Cells(cells),
                limit,
                period: seconds * 1_000_000,
                burst: limit,
                debt: 0,
                shadow: false,
                penalty: None,
                headroom: 0,
            },
        )
    };
    // The clock starts 600 seconds into a narrow cell, and 5600 seconds into a wide one.
    let (narrow, wide, key) = (cells(2, 2_000), cells(1, 10_000), Key::new("alice"));
    let stores = both(&server, &clock).await;
    for (name, limiter) in &stores {
        assert!(!limiter.check(&narrow, &key, limit).await.unwrap().verdict().is_denied(), "{name}");
    }
    // A tenth of the first cell still counts.
    clock.advance(Duration::from_secs(2_300));
    for (name, limiter) in &stores {
        assert!(!limiter.check(&narrow, &key, limit / 10 * 9).await.unwrap().verdict().is_denied(), "{name}");
        assert_eq!(limiter.peek(&wide, &key, 0).await.unwrap().remaining(), Some(0), "{name}");
    }
    // Half of the merged cell still counts, rounded down.
    clock.advance(Duration::from_secs(7_100));
    for (name, limiter) in &stores {
        let remaining = limiter.peek(&wide, &key, 0).await.unwrap().remaining();
        assert_eq!(remaining, Some(limit - (1 << 39) + 1), "{name}");
    }
}

#[tokio::test]
async fn refunds_of_several_charges_in_one_call_refund_each_its_own() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let [_, (_, limiter)] = both(&server, &clock).await;
    for algorithm in ["anchored", "aligned", "cells"] {
        let rule = Rule {
            counting: usual(algorithm),
            limit: 10,
            period: 60_000_000,
            burst: 10,
            debt: 0,
            shadow: false,
            penalty: None,
            headroom: 0,
        };
        let (policy, key) = (policy("p", rule), Key::new(algorithm));
        let expired = limiter.check(&policy, &key, 2).await.unwrap();
        clock.advance(Duration::from_secs(180));
        let current = limiter.check(&policy, &key, 2).await.unwrap();
        let decisions = [limiter.refund(&current, 1), limiter.refund(&expired, 1)];
        let remaining = in_one_call(&limiter, &policy, decisions).await.last().unwrap().remaining();
        assert_eq!(remaining, Some(9), "{algorithm}");
    }
}

#[tokio::test]
async fn a_call_with_many_policies_decides_each_charge_under_its_own() {
    let server = RedisServer::start();
    let [_, (_, limiter)] = both(&server, &ManualClock::new()).await;
    let gcra = |limit| {
        policy(
            "p",
            Rule {
                counting: Counting::Gcra,
                limit,
                period: 60_000_000,
                burst: limit,
                debt: 0,
                shadow: false,
                penalty: None,
                headroom: 0,
            },
        )
    };
    let policies: Vec<Policy> = (1..=20).map(gcra).collect();
    // The latest ones again.
    let asked = policies.iter().chain(&policies[12..]);
    let decisions = asked.map(|policy| limiter.peek(policy, &Key::new("alice"), 0));
    let remaining: Vec<u64> = in_one_call(&limiter, &policies[0], decisions)
        .await
        .iter()
        .map(|decision| decision.remaining().unwrap())
        .collect();
    assert_eq!(remaining, (1..=20).chain(13..=20).collect::<Vec<_>>());
}

/// A batch writes a state once for all keys that end in it. Here keys end in the same state after different costs and
/// refunds, and in different ones after the same cost.
#[tokio::test]
async fn keys_of_a_batch_keep_their_own_states() {
    let server = RedisServer::start();
    let quota = Quota::per_minute(60);
    let policies = [
        Policy::new("gcra", quota),
        Policy::new("meter", quota).algorithm(LeakyBucket::meter()),
        Policy::new("tokens", quota).algorithm(TokenBucket::new()),
        Policy::new("queue", quota).algorithm(LeakyBucket::queue(Duration::from_secs(60))),
        Policy::new("window", quota).algorithm(FixedWindow::anchored()),
        Policy::new("sliding", quota).algorithm(SlidingWindow::new().segments(10)),
        Policy::new("log", quota).algorithm(SlidingLog::new()),
    ];
    // Two policies are decided by another driver than one.
    let sets = policies.iter().map(|policy| vec![policy]).chain(policies.iter().map(|policy| {
        let mut both = vec![policy];
        both.push(&policies[usize::from(policy.name() == "gcra")]);
        both
    }));
    for (set, policies) in sets.enumerate() {
        let clock = ManualClock::new();
        let redis =
            settings().prefix(format!("set-{set}")).manual_clock(clock.clone()).deny_cache(Duration::ZERO);
        let stores = [
            Limiter::new(redis.connect(&server.url()).await.unwrap()),
            Limiter::new(MemoryStore::with_clock(clock.clone())),
        ];
        let charges = |key: u64, cost: u64| -> Vec<Charge> {
            policies.iter().map(|policy| Charge::new(policy, &Key::new(key.to_string()), cost)).collect()
        };
        let (start, mut seen) = (clock.now(), [Vec::new(), Vec::new()]);
        for (limiter, seen) in stores.iter().zip(&mut seen) {
            clock.set(start);
            let mut charged = Vec::new();
            // Of neighbors, the first two were charged the same at other times, the next two differ by the cost, and the
            // last ones by the state.
            let costs = [[1, 2, 5], [2, 1, 5], [1, 1, 6], [3, 3, 6]];
            let cost = |key: u64, step: usize| costs[key as usize % costs.len()][step];
            for step in 0..2 {
                for key in 0..48 {
                    charged.push(limiter.check_all(&charges(key, cost(key, step))).await.unwrap());
                }
                clock.advance(Duration::from_secs(10));
            }
            let batch = join_all((0..48).map(|key| limiter.check_all(&charges(key, cost(key, 2)))));
            charged.extend(batch.await.into_iter().map(Result::unwrap));
            for key in (0..6).flat_map(|_| 0..48) {
                if key == 0 {
                    clock.advance(Duration::from_secs(9));
                }
                charged.push(limiter.peek_all(&charges(key, 1)).await.unwrap());
            }
            for (i, decision) in charged.iter().enumerate() {
                let refunded = limiter.refund(decision, 1 + i as u64 % 3).await.unwrap();
                let said = |decision: &Decision| -> Vec<(Verdict, u64, Duration)> {
                    let outcomes = decision.outcomes().iter();
                    outcomes
                        .map(|outcome| (outcome.verdict(), outcome.remaining(), outcome.reset_after()))
                        .collect()
                };
                seen.push((i, said(decision), said(&refunded)));
            }
        }
        let [redis, memory] = seen;
        for (redis, memory) in redis.into_iter().zip(memory) {
            assert_eq!(redis, memory, "{policies:?}");
        }
    }
}

/// Under policies whose decisions `lua/usual.lua` makes, so it leaves none to be made after the others.
#[tokio::test]
async fn decisions_of_a_batch_that_share_keys_are_made_one_after_the_other() {
    let server = RedisServer::start();
    let quota = Quota::per_minute(20);
    let policies = [
        Policy::new("gcra", quota),
        Policy::new("tokens", quota).algorithm(TokenBucket::new()),
        Policy::new("window", quota).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", quota).algorithm(FixedWindow::aligned()),
        Policy::new("sliding", quota).algorithm(SlidingWindow::new().segments(3)),
        Policy::new("month", Quota::per_month(20)),
    ];
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = ManualClock::new();
        let redis = settings().prefix(format!("seed-{seed}")).manual_clock(clock.clone());
        let redis = redis.deny_cache(Duration::ZERO).pool_size(1).connect(&server.url()).await.unwrap();
        let (redis, memory) = (Limiter::new(redis), Limiter::new(MemoryStore::with_clock(clock.clone())));
        // All decisions on one key and policy, or on few of each.
        let (most_keys, most_policies) = if seed % 3 == 0 { (1, 1) } else { (4, policies.len()) };
        for _ in 0..4 {
            let decisions: Vec<Vec<Charge>> = (0..24)
                .map(|_| {
                    let mut chosen: Vec<_> = policies.iter().take(most_policies).collect();
                    random.shuffle(&mut chosen);
                    let charge = |policy: &&Policy| {
                        // The last keys have one use each.
                        let key = random.u64(0..most_keys) * random.u64(1..200);
                        Charge::new(policy, &Key::new(key.to_string()), random.u64(0..5))
                    };
                    let width = 1 + seed as usize % 3;
                    chosen.iter().take(width).map(charge).collect()
                })
                .collect();
            let batch = join_all(decisions.iter().map(|charges| redis.check_all(charges))).await;
            for (charges, decided) in decisions.iter().zip(batch) {
                let expected = memory.check_all(charges).await.unwrap();
                let decided = decided.unwrap();
                assert!(decided.failure().is_none(), "seed {seed}: {:?}", decided.failure());
                assert_eq!(decided.outcomes(), expected.outcomes(), "seed {seed}: {charges:?}");
            }
            clock.advance(Duration::from_millis(random.u64(0..9_000)));
        }
    }
}
