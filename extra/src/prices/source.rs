//! [`PriceSource`]: prices that may change.

use super::{live::LivePrices, prices::Prices};

/// Where a [`UsageMeter`](super::UsageMeter) finds prices: [`Prices`], or [`LivePrices`] that follow a file.
#[derive(Clone, Debug)]
pub struct PriceSource(Source);

#[derive(Clone, Debug)]
enum Source {
    Fixed(Prices),
    Live(LivePrices),
}

impl PriceSource {
    pub(super) fn current(&self) -> Prices {
        match &self.0 {
            Source::Fixed(prices) => prices.clone(),
            Source::Live(live) => live.current(),
        }
    }
}

impl From<Prices> for PriceSource {
    fn from(prices: Prices) -> Self {
        Self(Source::Fixed(prices))
    }
}

impl From<LivePrices> for PriceSource {
    fn from(live: LivePrices) -> Self {
        Self(Source::Live(live))
    }
}

impl From<&LivePrices> for PriceSource {
    fn from(live: &LivePrices) -> Self {
        live.clone().into()
    }
}
