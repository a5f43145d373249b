//! [`TwinTest`]: the settings of a test, and its run.

use std::{collections::VecDeque, time::Duration};

use tower_ratelimit::{Limiter, MemoryStore, Policy, RedisStore, store::ManualClock};

use super::{
    contest::Contest,
    failure::{Report, TwinTestError},
    random::Random,
    step::{Step, period_micros},
};

/// Compares the Lua file of an algorithm with its twin in Rust, by random steps.
///
/// A step moves a clock forward or back, or makes decisions: charges, peeks, refunds, resets, decisions
/// together with another policy, and batches with several requests for one key. After each the test compares
/// the verdicts, the remaining units, the delays, and the retry and reset times. It also checks these rules:
///
/// * A cost of 0 is admitted.
/// * A denied request changes nothing.
/// * The remaining units can be charged, and no more. They are at most the capacity.
/// * A request is not admitted before its retry time, and is admitted then; see
///   [`exact_retry`](Self::exact_retry).
/// * A cost above the capacity is denied without a retry time, and no other cost is.
///
/// The quota is the scale of times and costs. Test a small limit, a large one, and one that does not divide
/// its period.
///
/// It does not check that a state lives long enough, because a manual clock does not expire keys.
///
/// See the [module](super) for an example.
#[derive(Clone, Debug)]
#[must_use = "nothing is tested until `run` is called"]
pub struct TwinTest {
    policy: Policy,
    steps: usize,
    seed: Option<u64>,
    exact_retry: bool,
}

/// Each round starts with new keys and another time.
const STEPS_OF_A_ROUND: usize = 100;
/// The steps before a failure that a report shows.
const REPORTED_STEPS: usize = 12;

impl TwinTest {
    /// A test of the algorithm of `policy` with its quota. A penalty, a lease and a rollout are not tested.
    pub fn new(policy: &Policy) -> Self {
        let mut settings = policy.settings().clone();
        (settings.enforced, settings.max_lease, settings.penalty) = (1.0, None, None);
        // This cannot fail: the other settings are valid without these three.
        let policy = policy.with_settings(settings).unwrap_or_else(|_| policy.clone());
        Self { policy, steps: 2_000, seed: None, exact_retry: true }
    }

    /// The number of steps. Defaults to 2,000, which take a few seconds.
    pub const fn steps(mut self, steps: usize) -> Self {
        self.steps = steps;
        self
    }

    /// Repeats the steps of a report. Defaults to a new seed in each run.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Whether a denied request is always admitted after its retry time, if the key is not charged in the
    /// meantime. Set it to false if the algorithm reports only when to try again. Defaults to true.
    pub const fn exact_retry(mut self, exact: bool) -> Self {
        self.exact_retry = exact;
        self
    }

    /// Runs the test with the Redis server at `url`.
    ///
    /// Writes keys under a separate prefix, and removes them. Needs a Tokio runtime.
    ///
    /// # Errors
    ///
    /// The first disagreement or broken rule, as a report; or why the test could not run.
    pub async fn run(&self, url: &str) -> Result<(), TwinTestError> {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let clock = ManualClock::new();
        let redis = RedisStore::builder()
            // Other tests may use the server too.
            .prefix(format!("twin-test-{:016x}", fastrand::u64(..)))
            .deadline(Duration::from_secs(10))
            // Every decision is made by the Lua file.
            .deny_cache(Duration::ZERO)
            .manual_clock(clock.clone())
            .connect(url)
            .await
            .map_err(TwinTestError::setup)?;
        let memory = MemoryStore::with_clock(clock.clone());
        Limiter::new(memory.clone()).supports(&self.policy).map_err(TwinTestError::setup)?;
        let mut contest = Contest::new(redis, memory, clock, self.policy.clone(), self.exact_retry);
        let result = self.steps_of(seed, &mut contest).await;
        let cleaned = contest.clear().await.map_err(TwinTestError::setup);
        result.and(cleaned)
    }

    async fn steps_of(&self, seed: u64, contest: &mut Contest) -> Result<(), TwinTestError> {
        let mut random = Random::new(seed);
        let mut before = VecDeque::new();
        for step in 1..=self.steps {
            if step % STEPS_OF_A_ROUND == 1 {
                let periods = random.up_to(10 * period_micros(&self.policy));
                contest.start(Duration::from_micros(periods)).await.map_err(TwinTestError::setup)?;
                before.clear();
            }
            let taken = Step::random(&mut random, &self.policy);
            match contest.take(&taken).await {
                Ok(said) if said.is_empty() => before.push_back(format!("{step}: {taken}")),
                Ok(said) => before.push_back(format!("{step}: {taken}: {said}")),
                Err(finding) => {
                    let algorithm = self.policy.settings().algorithm.name().to_owned();
                    return Err(TwinTestError::found(Report {
                        algorithm,
                        seed,
                        step,
                        finding,
                        before: before.into(),
                    }));
                }
            }
            if before.len() > REPORTED_STEPS {
                before.pop_front();
            }
        }
        Ok(())
    }
}
