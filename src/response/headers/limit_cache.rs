//! Values of `RateLimit` that were written before.

use std::sync::OnceLock;

use http::HeaderValue;

use super::{
    dialects::{limit_items, shown_window},
    headers::{Dialect, RateLimitHeaders},
};
use crate::decision::{Decision, Outcome};

/// The values of `RateLimit` for one policy. Most algorithms give few of them: with a bucket, `t` follows from
/// `r`. To share a value takes a tenth of the instructions that it takes to write one.
///
/// A slot is filled once. So no lock is needed, and a policy with more values than slots, such as one with
/// windows, wastes a look at a slot and no more.
#[derive(Clone, Debug)]
pub(super) struct LimitCache(Box<[Slot]>);

/// `r`, `t`, and the value.
type Slot = OnceLock<([u64; 2], Option<HeaderValue>)>;

/// A power of two. 64 bytes each, and as much for the value.
const SLOTS: usize = 128;

impl LimitCache {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| Slot::new()).collect())
    }

    /// What [`limit_items`] writes for `outcome`, the only one of `decision`.
    #[inline]
    pub(super) fn item(
        &self,
        outcome: &Outcome,
        decision: &Decision,
        latest: u64,
        settings: &RateLimitHeaders,
    ) -> Option<HeaderValue> {
        if settings.ietf != Some(Dialect::Ietf) || settings.partition_key.is_some() {
            // The value depends on the cost or on the key.
            return written(outcome, decision, latest, settings);
        }
        // No `t` is 0.
        let (r, t) = (outcome.remaining(), shown_window(outcome, decision.is_denied(), latest).unwrap_or(0));
        // Denials differ in `t`, other decisions in `r`.
        let at = if r == 0 { t } else { r } as usize % SLOTS;
        let (numbers, value) =
            self.0[at].get_or_init(|| ([r, t], written(outcome, decision, latest, settings)));
        if *numbers == [r, t] { value.clone() } else { written(outcome, decision, latest, settings) }
    }
}

#[inline(never)]
fn written(
    outcome: &Outcome,
    decision: &Decision,
    latest: u64,
    settings: &RateLimitHeaders,
) -> Option<HeaderValue> {
    limit_items([outcome].into_iter(), decision, latest, settings)
}
