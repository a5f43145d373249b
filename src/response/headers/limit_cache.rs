//! Values of `RateLimit` that were written before.

use std::sync::OnceLock;

use http::HeaderValue;

use super::{
    dialects::{limit_items, shown_window},
    headers::{Dialect, RateLimitHeaders},
};
use crate::decision::{Decision, Outcome};

/// The values of `RateLimit` for one policy, which responses share. Sharing a value takes a tenth of the
/// instructions of writing one, and no allocation. Most algorithms have few values: with a bucket, `t` follows
/// from `r`.
///
/// A slot is filled once, so it needs no lock. If a policy has more values than slots, as with windows, the
/// other responses look at a slot in vain, which takes a fifth of what sharing saves.
#[derive(Clone, Debug)]
pub(super) struct LimitCache(Box<[Slot]>);

/// `r`, `t`, and the value.
type Slot = OnceLock<([u64; 2], Option<HeaderValue>)>;

/// A slot takes 64 bytes, and its value about 100 more.
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
        if !matches!(settings.ietf, Some(Dialect::Ietf)) || settings.partition_key.is_some() {
            // The value depends on the cost or on the key.
            return written(outcome, decision, latest, settings);
        }
        // No `t` is 0.
        let (r, t) = (outcome.remaining(), shown_window(outcome, decision.is_denied(), latest).unwrap_or(0));
        // The denials of a bucket differ in `t`, and its other decisions in `r`.
        let at = if r == 0 { t } else { r } as usize % SLOTS;
        let (numbers, value) =
            self.0[at].get_or_init(|| ([r, t], written(outcome, decision, latest, settings)));
        if *numbers == [r, t] { value.clone() } else { written(outcome, decision, latest, settings) }
    }
}

/// The value, which [`limit_items`] writes.
// Not inlined, so that a response that shares its value saves no registers for this call.
#[inline(never)]
fn written(
    outcome: &Outcome,
    decision: &Decision,
    latest: u64,
    settings: &RateLimitHeaders,
) -> Option<HeaderValue> {
    limit_items([outcome].into_iter(), decision, latest, settings)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        base::Quota,
        decision::{Charge, Verdict},
        key::Key,
        policy::Policy,
    };

    #[test]
    fn a_shared_value_has_the_numbers_of_the_decision() {
        let policy = Policy::new("api", Quota::per_hour(1_000));
        let next = RateLimitHeaders::new(Dialect::IetfNext);
        let keyed = RateLimitHeaders::default().partition_key([7; 16]);
        for settings in [RateLimitHeaders::default(), next, keyed] {
            let cache = LimitCache::new();
            // Of two decisions whose numbers share a slot, the first one fills it.
            for (key, cost, remaining) in (0..1_000).map(|at| (at % 3, at % 5, at * 7 % 500)) {
                let deny = |seconds| Verdict::deny(Some(Duration::from_secs(seconds)));
                for (verdict, latest) in
                    [(Verdict::Admit, u64::MAX), (deny(remaining), u64::MAX), (deny(9), 9), (deny(90), 0)]
                {
                    let charge = Charge::new(&policy, &Key::new(key.to_string()), cost);
                    let remaining = if verdict.is_denied() { remaining % 2 } else { remaining };
                    let outcome = Outcome::new(&charge, verdict, remaining, Duration::from_secs(3_600));
                    let decision = Decision::new([outcome.clone()]);
                    let shared = cache.item(&outcome, &decision, latest, &settings);
                    assert_eq!(shared, limit_items([&outcome].into_iter(), &decision, latest, &settings));
                }
            }
        }
    }
}
