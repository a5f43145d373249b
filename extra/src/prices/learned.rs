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
/// use tower_ratelimit_extra::prices::{Api, LearnedOutput, Price, Prices, UsageMeter};
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
/// assert!((900..1_080).contains(&estimate()?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LearnedOutput {
    percentile: u8,
    after: u32,
    histograms: Cache<(Key, Arc<str>), Arc<Mutex<Histogram>>>,
}

impl LearnedOutput {
    /// Nothing is learned yet.
    #[must_use]
    pub fn new() -> Self {
        Self { percentile: 90, after: 10, histograms: Cache::new(10_000) }
    }

    /// Sets the percentile of the earlier answers that is the estimate, from 1 to 100. Defaults to 90: one
    /// answer in ten is longer than its estimate, and is charged the rest when it ends.
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

    /// The estimated output of a call by `key`, in tokens. `None` if too few calls have been learned.
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
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}
