//! The settings of a meter, which its calls share.

use std::sync::{Arc, atomic::AtomicBool};

use tower_ratelimit::Units;

use super::{bill::Bill, source::PriceSource};

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) prices: PriceSource,
    pub(super) tokens: Option<&'static str>,
    pub(super) money: Option<&'static str>,
    pub(super) bytes_per_token: u64,
    pub(super) max_output: u64,
    /// The name of the limit in prepared chat completions. `None` if no limit is sent.
    pub(super) sent_limit: Option<&'static str>,
    /// The tiers that the prices are meant for, in addition to the usual ones.
    pub(super) tiers: Vec<String>,
    pub(super) max_buffer: usize,
    pub(super) on_settled: Option<Arc<dyn Fn(&Bill) + Send + Sync>>,
    /// Whether `on_settled` has panicked.
    pub(super) has_panicked: Arc<AtomicBool>,
    /// Whether an encoded body was logged.
    pub(super) logged: Arc<AtomicBool>,
}

impl Settings {
    /// The units of the rules, with their numbers.
    pub(super) fn units(&self, tokens: u64, micro_dollars: u64) -> Units<'static> {
        let all = [(self.tokens, tokens), (self.money, micro_dollars)];
        all.into_iter().filter_map(|(unit, number)| Some((unit?, number))).collect()
    }
}
