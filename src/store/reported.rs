//! [`Reported`]: which shares of quotas this process has reported lately.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher as _, RandomState},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{base::time::wall_micros, decision::ThresholdEvent};

/// The most shares of keys that are remembered: about 150 KB.
const MOST: usize = 4_096;

/// The shares of keys that this process has reported lately, so that a key that stays near a share, or whose charges
/// are refunded, is reported once.
#[derive(Default)]
pub(super) struct Reported {
    hasher: RandomState,
    /// By hash, when the share was reached the last time, in microseconds since 1970.
    reached: HashMap<u64, u64>,
    /// The hashes, the earliest first.
    order: VecDeque<u64>,
}

impl Reported {
    /// Whether `event` is not a repeat: of its window or, without windows, of one that is less than a period old.
    pub(super) fn is_new(&mut self, event: &ThresholdEvent<'_>) -> bool {
        let ThresholdEvent { policy, key, percent, limit, ends, .. } = event;
        let ends =
            ends.and_then(|ends: SystemTime| ends.duration_since(UNIX_EPOCH).ok()).map(|ends| ends.as_secs());
        let hash = self.hasher.hash_one((policy.label(), key, percent, limit, ends));
        // A custom store does not report the time.
        let made = Some(event.made()).filter(|made| *made > 0).unwrap_or_else(wall_micros);
        if let Some(before) = self.reached.insert(hash, made) {
            return ends.is_none() && made.saturating_sub(before) >= policy.quota().period_micros();
        }
        self.order.push_back(hash);
        if self.order.len() > MOST
            && let Some(earliest) = self.order.pop_front()
        {
            self.reached.remove(&earliest);
        }
        true
    }
}
