//! The settings of a policy.

use super::FailureMode;
use crate::{
    algorithm::penalty::Strikes,
    base::{Error, Quota},
};

const MAX_LEASED: u64 = 1_000_000_000_000;
/// What the share of keys is measured in, for which a policy is enforced.
pub(super) const EVERY_KEY: u32 = 1_000_000;

/// All settings of a policy except its name and its algorithm.
#[allow(missing_docs, reason = "named as the setters of `Policy`")]
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySettings {
    pub quota: Quota,
    pub on_store_failure: FailureMode,
    pub lease: Option<u64>,
    pub debt: u64,
    pub penalty: Option<Strikes>,
    pub content_bytes: bool,
    /// The share of the keys for which it is not a shadow.
    pub enforced: f64,
}

impl PolicySettings {
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            quota,
            on_store_failure: FailureMode::default(),
            lease: None,
            debt: 0,
            penalty: None,
            content_bytes: false,
            enforced: 1.0,
        }
    }

    /// Checks all but the quota and the debt. `can_lease` is whether the units of the algorithm can be leased exactly.
    pub(super) fn check(&self, can_lease: bool) -> Result<(), Error> {
        let problem = match self.lease {
            Some(most) if most == 0 || most > MAX_LEASED => {
                "a lease must be of 1 to 1,000,000,000,000 units: leave out `leased` for no lease"
            }
            Some(_) if !can_lease => {
                "the units of this algorithm cannot be leased exactly: leave out `leased`, \
                 or use `Gcra`, `TokenBucket`, `LeakyBucket::meter`, `FixedWindow` or `SlidingWindow`"
            }
            Some(_) if self.penalty.is_some() => {
                "a policy with a penalty cannot be leased, because an instance would spend leased units of a banned key: \
                 leave out `leased` or `penalty`"
            }
            _ if !(0.0..=1.0).contains(&self.enforced) => {
                "the share of keys must be from 0 to 1: 0.25 enforces the policy for a quarter of them"
            }
            _ if self.enforced > 0.0 && self.enforced_keys() == 0 => {
                "the share of keys must be 0 or at least 0.000001: 0 makes the policy a shadow"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(problem))
    }

    /// For how many of [`EVERY_KEY`] the policy is enforced.
    pub(super) fn enforced_keys(&self) -> u32 {
        // From 0 to 1, so it fits.
        (self.enforced * f64::from(EVERY_KEY)).round() as u32
    }
}
