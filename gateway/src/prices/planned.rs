//! What is known of a call before it is made.

use std::sync::Arc;

use tower_ratelimit::Key;

use super::{api::Api, learned::LearnedOutput, price::Price, settings::Settings, usage::Usage};

/// What is known of a call before it is made, and does not change until it is settled.
#[derive(Clone)]
pub(super) struct Planned {
    pub(super) api: Api,
    pub(super) model: String,
    /// The name of the entry with the price.
    pub(super) entry: Arc<str>,
    pub(super) price: Price,
    /// The version of the prices.
    pub(super) version: String,
    pub(super) estimate: Usage,
    /// The output of the estimate without what was learned: what the request allows, or what the meter
    /// assumes.
    pub(super) allowed: u64,
    /// The output that the meter assumes for a request without a limit.
    pub(super) assumed: u64,
    /// Whether the request limits its output.
    pub(super) has_limit: bool,
    /// Whether the usage of a stream is removed from the answer, because only the meter has asked for it.
    pub(super) hides_usage: bool,
    /// Whether the text of an answer without a reported usage is charged, and not the estimate.
    pub(super) counts_text: bool,
    /// What learns the output of the answer.
    pub(super) learned: Option<(LearnedOutput, Key)>,
    pub(super) settings: Arc<Settings>,
}
