//! [`LearnedOutput`]: estimates from what earlier calls have used.

use std::{fmt, sync::Arc};

use moka::sync::Cache;
use parking_lot::Mutex;
use tower_ratelimit::Key;

use super::histogram::Histogram;

/// The weight that earlier calls keep when another one is learned.
const KEPT: f32 = 0.99;

/// Learns how many tokens the answers to a key have, by model, and estimates the next one: a percentile of
/// the earlier answers. Cloning gives another handle.
///
/// A call weighs 1 % less with each later one of the same key and model, so about the last hundred count. A
/// percentile is rounded up by at most a fifth. Only [reported](super::Basis::Reported) usages of
/// whole answers are learned, because an answer that was cut says nothing about the next one.
///
/// # What a client can teach
///
/// A client chooses what it asks for, so it can teach that its answers are short, and then send many requests
/// together whose answers are long. So what is learned never lowers an estimate below the higher of two:
///
/// * [a share](Self::at_least) of what the request allows, by default 25 %,
/// * what the [meter](super::UsageMeter::max_output) assumes for a request without a limit, or the limit of the
///   request if that is lower.
///
/// So a client is billed at most 100 / 25 = 4 times the limit by calls that run together. Under a budget of
/// 1,000,000 micro-dollars, at a micro-dollar a token, 40 calls of at most 100,000 tokens run together, which
/// bill at most 4,000,000. With 50 %, they bill at most twice the limit, and without learning at most the
/// limit: ten calls. When the answers end, they are charged what they exceed their estimates, up to the
/// policy's [debt](tower_ratelimit::Policy::max_debt); what exceeds it is not charged. An answer without a
/// [reported](super::Basis::Reported) usage is charged its estimate, within the same bound.
///
/// **Cold start:** until [ten](Self::after) calls of a key and a model have been learned, the estimate is the
/// one without learning.
///
/// At most [10,000](Self::capacity) pairs of a key and a model are kept, in about 600 bytes each, in this
/// process. The ones that are used least are dropped first, and start again.
///
/// # Example
///
/// ```
/// use tower_ratelimit::Key;
/// use tower_ratelimit_gateway::prices::{Api, LearnedOutput, Price, Prices, UsageMeter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let meter = UsageMeter::new(Prices::new("1").model("o3", Price::new("2", "8")));
/// let learned = LearnedOutput::new().percentile(90);
/// let (alice, body) = (Key::new("alice"), br#"{ "model": "o3", "max_tokens": 30000 }"#);
///
/// let estimate = || Ok::<_, Box<dyn std::error::Error>>(meter.call(Api::OpenAiChat, body)?.learned(&learned, &alice).estimate().output);
/// assert_eq!(estimate()?, 30_000);
/// for output in [100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000] {
///     learned.learn(&alice, "o3", output);
/// }
/// // A quarter of what the request allows, although nine answers in ten are shorter.
/// assert_eq!(estimate()?, 7_500);
/// for _ in 0..10 {
///     learned.learn(&alice, "o3", 9_000);
/// }
/// assert!((9_000..10_800).contains(&estimate()?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LearnedOutput {
    percentile: u8,
    share: u8,
    after: u32,
    histograms: Cache<(Key, Arc<str>), Arc<Mutex<Histogram>>>,
}

impl LearnedOutput {
    /// Nothing is learned yet.
    #[must_use]
    pub fn new() -> Self {
        Self { percentile: 90, share: 25, after: 10, histograms: Cache::new(10_000) }
    }

    /// Sets the percentile of the earlier answers that is the estimate, from 1 to 100. Defaults to 90: one
    /// answer in ten is longer than its estimate. It is charged the rest when it ends, up to the policy's debt.
    ///
    /// # Panics
    ///
    /// If it is 0 or above 100.
    #[must_use]
    #[track_caller]
    pub const fn percentile(mut self, percentile: u8) -> Self {
        assert!(percentile > 0 && percentile <= 100, "a percentile must be from 1 to 100");
        self.percentile = percentile;
        self
    }

    /// Sets the share of what a request allows, in percent from 1 to 100, below which an estimate never falls:
    /// see [what a client can teach](Self#what-a-client-can-teach). Defaults to 25.
    ///
    /// # Panics
    ///
    /// If it is 0 or above 100.
    #[must_use]
    #[track_caller]
    pub const fn at_least(mut self, percent: u8) -> Self {
        assert!(percent > 0 && percent <= 100, "a share must be from 1 to 100 percent");
        self.share = percent;
        self
    }

    /// The least estimate of a request that allows this number of tokens.
    pub(super) fn share_of(&self, allowed: u64) -> u64 {
        let share = (u128::from(allowed) * u128::from(self.share)).div_ceil(100);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Sets how many calls of a key and a model are learned before they are the estimate. Defaults to 10.
    #[must_use]
    pub const fn after(mut self, calls: u32) -> Self {
        self.after = calls;
        self
    }

    /// Sets how many pairs of a key and a model are kept. Defaults to 10,000. What was learned until then is
    /// forgotten.
    #[must_use]
    pub fn capacity(self, pairs: u64) -> Self {
        Self { histograms: Cache::new(pairs), ..self }
    }

    /// What was learned of the output of calls by `key`, in tokens. `None` if too few calls have been learned.
    /// A request that allows more than this may be [estimated higher](Self#what-a-client-can-teach).
    ///
    /// `model` is the name of its [entry](super::Prices#names) in the prices, without a `*`; for an unknown
    /// model, it is empty.
    #[must_use]
    pub fn estimate(&self, key: &Key, model: &str) -> Option<u64> {
        let histogram = self.histograms.get(&(key.clone(), model.into()))?;
        let histogram = histogram.lock();
        (histogram.added() >= self.after.max(1)).then(|| histogram.percentile(self.percentile))
    }

    /// Learns that an answer to `key` had this `output`, in tokens. A call with
    /// [`Call::learned`](super::Call::learned) does this.
    pub fn learn(&self, key: &Key, model: &str, output: u64) {
        let new = || Arc::new(Mutex::new(Histogram::new()));
        self.histograms.get_with((key.clone(), model.into()), new).lock().add(output, KEPT);
    }
}

impl Default for LearnedOutput {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows no key.
impl fmt::Debug for LearnedOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LearnedOutput")
            .field("percentile", &self.percentile)
            .field("at_least", &self.share)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}
