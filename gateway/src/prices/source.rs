//! [`PriceSource`]: prices that may change.

use tokio::sync::watch;

use super::prices::Prices;

/// Where a [`UsageMeter`](super::UsageMeter) finds prices: [`Prices`], or [`watched`](Self::watched) ones. `LivePrices` of
/// `tower-ratelimit-operate`, which follow a file, are such a source too.
#[derive(Clone, Debug)]
pub struct PriceSource(Source);

#[derive(Clone, Debug)]
enum Source {
    Fixed(Prices),
    Watched(watch::Receiver<Prices>),
}

impl PriceSource {
    /// The latest prices of a channel, such as one that a task feeds from a database. A call keeps the prices that it
    /// began with. If the sender is dropped, the last prices stay.
    ///
    /// # Example
    ///
    /// ```
    /// use tokio::sync::watch;
    /// use tower_ratelimit_gateway::prices::{Api, Price, PriceSource, Prices, UsageMeter};
    ///
    /// let table = |output| Prices::new("1").model("o3", Price::new("2", output));
    /// let (sender, receiver) = watch::channel(table("8"));
    /// let meter = UsageMeter::new(PriceSource::watched(receiver));
    /// let dollars = || {
    ///     let call = meter.call(Api::OpenAiChat, br#"{ "model": "o3", "max_tokens": 1000000 }"#).unwrap();
    ///     call.estimated_micro_dollars() / 1_000_000
    /// };
    ///
    /// assert_eq!(dollars(), 8);
    /// sender.send_replace(table("6"));
    /// assert_eq!(dollars(), 6);
    /// ```
    #[must_use]
    pub const fn watched(prices: watch::Receiver<Prices>) -> Self {
        Self(Source::Watched(prices))
    }

    pub(super) fn current(&self) -> Prices {
        match &self.0 {
            Source::Fixed(prices) => prices.clone(),
            Source::Watched(prices) => prices.borrow().clone(),
        }
    }
}

impl From<Prices> for PriceSource {
    fn from(prices: Prices) -> Self {
        Self(Source::Fixed(prices))
    }
}
