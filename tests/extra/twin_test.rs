//! `testing::TwinTest`: it passes for twins that agree, and names the step and both decisions for twins that do not.

use std::time::Duration;

#[path = "../../examples/custom_algorithm.rs"]
#[allow(dead_code, reason = "`main` of the example")]
mod example;

use example::DayAndNight;
use support::{InLua, RedisServer, size};
use tower_ratelimit::{
    Error, Policy, Quota,
    algorithm::{
        Algorithm, Concurrency, Evaluation, FixedWindow, Gcra, Input, KeyState, LeakyBucket, SlidingLog,
        SlidingWindow, TokenBucket, Twin,
    },
    policy::Penalty,
};
use tower_ratelimit_extra::testing::{TwinTest, TwinTestError};

#[tokio::test]
async fn it_passes_for_the_example() {
    let server = RedisServer::start();
    for (day, night) in [(5, 20), (1, 1), (1_000_000, 3)] {
        let policy = Policy::new("reports", Quota::per_hour(day)).algorithm(DayAndNight { night });
        // A cost above the limit by day is denied hour by hour.
        TwinTest::new(&policy)
            .exact_retry(day == night)
            .steps(size(200, 2_000))
            .run(&server.url())
            .await
            .unwrap();
    }
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn it_passes_for_every_built_in_algorithm() {
    let server = RedisServer::start();
    let second = Duration::from_secs(1);
    let odd = Quota::new(7, Duration::from_micros(1_000_003));
    let policies = [
        Policy::new("gcra", Quota::per_minute(10)).algorithm(Gcra::new()),
        Policy::new("odd gcra", odd.burst(3)).algorithm(Gcra::new()),
        Policy::new("tokens", Quota::per_minute(60).burst(20))
            .algorithm(TokenBucket::new().refill_every(second)),
        Policy::new("meter", odd).algorithm(LeakyBucket::meter()),
        Policy::new("queue", odd).algorithm(LeakyBucket::queue(2 * second)),
        Policy::new("anchored", Quota::per_second(5)).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", Quota::per_minute(7)).algorithm(FixedWindow::aligned()),
        Policy::new("month", Quota::per_month(7)),
        Policy::new("log", odd).algorithm(SlidingLog::new()),
        Policy::new("cells", Quota::per_minute(30)).algorithm(SlidingWindow::new()),
        Policy::concurrency("permits", 5),
        Policy::new("short permits", Quota::new(3, second)).algorithm(Concurrency::new()),
    ];
    for policy in policies {
        TwinTest::new(&policy).steps(size(100, 400)).run(&server.url()).await.unwrap();
    }
    // It renews permits of which fewer were granted than the charge asked for.
    let short = Policy::new("short permits", Quota::new(3, second)).algorithm(Concurrency::new());
    TwinTest::new(&short).steps(400).seed(9_341_651_170_171_374_108).run(&server.url()).await.unwrap();
}

#[tokio::test]
async fn it_tests_the_algorithm_without_the_policys_other_settings() {
    let server = RedisServer::start();
    let minute = Duration::from_secs(60);
    let plain = || Policy::new("p", Quota::per_minute(10));
    let rows = [
        ("shadow", plain().shadow()),
        ("rollout", plain().rollout(0.5)),
        ("penalty", plain().penalty(Penalty::after(2, minute))),
        ("lease", plain().max_lease(5)),
    ];
    for (name, policy) in rows {
        let report = TwinTest::new(&policy).steps(400).run(&server.url()).await;
        assert!(report.is_ok(), "{name}: {report:?}");
    }
}

/// Counts the units of each window of a second, with a mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mistake {
    /// Admits this many units too many.
    extra: u64,
    /// A denial forgets this many units.
    drained: u64,
    /// Retry times are too long by this many microseconds.
    late: u64,
    /// A denial within the limit has no retry time.
    hopeless: bool,
    /// Reports this many units too few.
    hidden: u64,
}

/// The same algorithm with a mistake in either form.
#[derive(Debug)]
struct Windows {
    lua: Mistake,
    twin: Mistake,
}

const SECOND: u64 = 1_000_000;

impl Algorithm for Windows {
    fn name(&self) -> &str {
        "windows"
    }
    fn lua(&self) -> &str {
        r"
        local SECOND = 1000000

        local function policy(limit, extra, drained, late, hopeless, hidden)
          return { limit = limit, extra = extra, drained = drained, late = late, hopeless = hopeless, hidden = hidden }
        end

        local function decide(p, cost, time, count)
          local started = now - now % SECOND
          local used, left = time == started and count or 0, started + SECOND - now
          local free = math.max(0, p.limit + p.extra - used)
          if cost > free then
            local retry = (cost > p.limit or p.hopeless == 1) and NEVER or left + p.late
            local shown, reset = math.max(0, free - p.hidden), used > 0 and left or 0
            if p.drained > 0 and used >= p.drained then
              return retry, shown, reset, nil, nil, left, started, used - p.drained
            end
            return retry, shown, reset
          end
          used = used + cost
          return 0, math.max(0, free - cost - p.hidden), used > 0 and left or 0, nil, nil, left, started, used
        end

        return { policy = policy, decide = decide }"
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let Mistake { extra, drained, late, hopeless, hidden } = self.lua;
        Ok(vec![quota.limit(), extra, drained, late, u64::from(hopeless), hidden])
    }
    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

impl Twin for Windows {
    fn decide(&self, input: &Input<'_>, cost: u64) -> Evaluation {
        let Mistake { extra, drained, late, hopeless, hidden } = self.twin;
        let (limit, started) = (input.arguments[0], input.now - input.now % SECOND);
        let used = input.state.filter(|state| state.time == started).map_or(0, |state| state.count);
        let left = started + SECOND - input.now;
        let free = (limit + extra).saturating_sub(used);
        let reset = |used| if used > 0 { left } else { 0 };
        if cost > free {
            let retry = (cost <= limit && !hopeless).then_some(left + late);
            let denied = Evaluation::deny(retry, free.saturating_sub(hidden), reset(used));
            return if drained > 0 && used >= drained {
                denied.write(KeyState::new(started, used - drained), left)
            } else {
                denied
            };
        }
        let used = used + cost;
        Evaluation::admit((free - cost).saturating_sub(hidden), reset(used))
            .write(KeyState::new(started, used), left)
    }
}

fn windows(lua: Mistake, twin: Mistake) -> TwinTest {
    TwinTest::new(&Policy::new("p", Quota::per_second(5)).algorithm(Windows { lua, twin }))
}

#[tokio::test]
async fn a_mistake_in_one_twin_is_a_disagreement() {
    let server = RedisServer::start();
    let right = Mistake::default();
    windows(right, right).run(&server.url()).await.unwrap();
    let mistakes = [
        Mistake { extra: 1, ..right },
        Mistake { drained: 1, ..right },
        Mistake { late: 1, ..right },
        Mistake { hopeless: true, ..right },
        Mistake { hidden: 1, ..right },
    ];
    for mistake in mistakes {
        for (lua, twin) in [(mistake, right), (right, mistake)] {
            let report = windows(lua, twin).run(&server.url()).await.expect_err(&format!("{mistake:?}"));
            let (step, seed) = (report.step().unwrap(), report.seed().unwrap());
            let first =
                format!("the twins of the algorithm windows disagree at step {step} with the seed {seed}\n");
            let text = report.to_string();
            assert!(text.starts_with(&first), "{mistake:?}: {text}");
            for part in ["\n    Redis:  ", "\n    memory: ", "units of key-", &format!("`.seed({seed})`")] {
                assert!(text.contains(part), "{mistake:?}: {part} is not in {text}");
            }
            // The seed repeats it.
            let again = windows(lua, twin).seed(seed).run(&server.url()).await.unwrap_err();
            assert_eq!(again.to_string(), text, "{mistake:?}");
        }
    }
}

#[tokio::test]
async fn a_mistake_in_both_twins_is_a_broken_rule() {
    let server = RedisServer::start();
    let right = Mistake::default();
    let rows = [
        (Mistake { drained: 1, ..right }, "a denied request changes nothing"),
        (Mistake { late: 1, ..right }, "a request is not admitted before its retry time"),
        (Mistake { hopeless: true, ..right }, "a denied cost within the capacity has a retry time"),
        (Mistake { hidden: 1, ..right }, "no more than the remaining units can be charged"),
        (Mistake { extra: 1, ..right }, "no more than the capacity can be charged"),
    ];
    for (mistake, rule) in rows {
        let report = windows(mistake, mistake).run(&server.url()).await.expect_err(rule);
        let text = report.to_string();
        let expected = format!("the algorithm windows breaks the rule \"{rule}\" at step ");
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[tokio::test]
async fn a_retry_time_that_does_not_help_is_reported_unless_it_need_not_be_exact() {
    let server = RedisServer::start();
    // By day the limit is one unit an hour, so waiting until the next hour does not admit two.
    let policy = Policy::new("reports", Quota::per_hour(1)).algorithm(DayAndNight { night: 2 });
    let report = TwinTest::new(&policy).steps(10_000).run(&server.url()).await.unwrap_err();
    assert!(report.to_string().contains("\"a request is admitted after its retry time\""), "{report}");
    TwinTest::new(&policy).exact_retry(false).run(&server.url()).await.unwrap();
}

#[tokio::test]
async fn a_test_that_cannot_run_says_why() {
    let server = RedisServer::start();
    let lonely = TwinTest::new(
        &Policy::new("p", Quota::per_second(5)).algorithm(InLua::new("lonely", "return { decide = type }")),
    );
    let report: TwinTestError = lonely.run(&server.url()).await.unwrap_err();
    assert_eq!((report.step(), report.seed()), (None, None));
    assert!(report.to_string().contains("the algorithm lonely, which has no twin in Rust"), "{report}");
    let test = TwinTest::new(&Policy::new("p", Quota::per_second(5)));
    let report = test.run("redis://127.0.0.1:1").await.unwrap_err();
    assert!(report.to_string().starts_with("the twins were not compared: "), "{report}");
}
