//! The settings of a policy.

use std::{collections::BTreeMap, sync::Arc};

use super::{Criticality, FailureMode, Headroom, Penalty, QuotaUnit};
use crate::{
    algorithm::{Algorithm, FixedWindow, Gcra},
    base::{Error, Quota},
};

/// All settings of a [`Policy`](crate::Policy) except its name: to show them, or to change several of them in
/// one step with [`Policy::with_settings`](crate::Policy::with_settings).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Policy, Quota, policy::QuotaUnit};
///
/// let api = Policy::new("api", Quota::per_second(1_000)).max_lease(50).max_debt(200);
/// let settings = api.settings();
/// assert_eq!((settings.max_lease, settings.max_debt, settings.enforced), (Some(50), 200, 1.0));
/// assert_eq!((settings.algorithm.name(), settings.failure_mode.to_string()), ("gcra", "local".to_owned()));
/// assert!(settings.penalty.is_none() && settings.quota_unit == QuotaUnit::Requests);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PolicySettings {
    /// The limit per period, and the burst.
    pub quota: Quota,
    /// What counts the quota. `Debug` shows its options. See [`Policy::algorithm`](crate::Policy::algorithm).
    pub algorithm: Arc<dyn Algorithm>,
    /// What happens to a request if the store makes no decision in time. See
    /// [`Policy::failure_mode`](crate::Policy::failure_mode).
    pub failure_mode: FailureMode,
    /// The most units of a key that an instance leases. `None` if it leases none. See
    /// [`Policy::max_lease`](crate::Policy::max_lease).
    pub max_lease: Option<u64>,
    /// The units that debits can charge beyond what remains. See
    /// [`Policy::max_debt`](crate::Policy::max_debt).
    pub max_debt: u64,
    /// When a key is banned. `None` if it never is. See [`Policy::penalty`](crate::Policy::penalty).
    pub penalty: Option<Penalty>,
    /// What requests that are not the most critical ones leave unused. See
    /// [`Policy::headroom`](crate::Policy::headroom).
    pub headroom: BTreeMap<Criticality, Headroom>,
    /// The unit of the quota. See [`Policy::quota_unit`](crate::Policy::quota_unit).
    pub quota_unit: QuotaUnit,
    /// The share of the keys for which the policy is enforced, from 0 to 1. See
    /// [`Policy::rollout`](crate::Policy::rollout).
    pub enforced: f64,
    /// The shares of the quota, in percent, whose use is reported. See
    /// [`Policy::notify_at`](crate::Policy::notify_at).
    pub notify_at: Vec<u8>,
    /// Whether keys of several kinds share its counts without a warning. See
    /// [`Policy::allow_mixed_keys`](crate::Policy::allow_mixed_keys).
    pub allows_mixed_keys: bool,
}

/// The most units that [`Gcra`] counts.
const MAX_GCRA_UNITS: u64 = 10_000_000_000_000;
const MAX_LEASED: u64 = 1_000_000_000_000;
/// The number of equal parts into which keys are divided, some of which a [rollout](crate::Policy::rollout)
/// enforces.
pub(super) const EVERY_KEY: u32 = 1_000_000;

impl PolicySettings {
    pub(super) fn new(quota: Quota) -> Self {
        let algorithm: Arc<dyn Algorithm> = match quota.calendar() {
            Some(_) => Arc::new(FixedWindow::aligned()),
            // It counts more than the default.
            None if quota.limit().max(quota.capacity()) > MAX_GCRA_UNITS => Arc::new(FixedWindow::anchored()),
            None => Arc::new(Gcra::new()),
        };
        Self {
            quota,
            algorithm,
            failure_mode: FailureMode::default(),
            max_lease: None,
            max_debt: 0,
            penalty: None,
            headroom: BTreeMap::new(),
            quota_unit: QuotaUnit::Requests,
            enforced: 1.0,
            notify_at: Vec::new(),
            allows_mixed_keys: false,
        }
    }

    /// Whether all settings but the algorithm are equal: only its name and arguments show whether algorithms
    /// are equal.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let values = |all: &Self| {
            let Self {
                quota,
                algorithm: _,
                failure_mode,
                max_lease,
                max_debt,
                penalty,
                ref headroom,
                quota_unit,
                enforced,
                ref notify_at,
                allows_mixed_keys,
            } = *all;
            let strikes = penalty.map(|penalty| penalty.strikes().ok());
            (
                (quota, failure_mode, max_lease, max_debt, strikes, quota_unit, enforced, allows_mixed_keys),
                (notify_at.clone(), headroom.clone()),
            )
        };
        values(self) == values(other)
    }

    /// Checks all settings but the quota, the debt and the penalty, which are checked where their numbers are
    /// computed. `can_lease` is whether the units of the algorithm can be leased exactly.
    pub(super) fn check(&self, can_lease: bool) -> Result<(), Error> {
        let problem = match self.max_lease {
            Some(most) if most == 0 || most > MAX_LEASED => {
                "a lease must be of 1 to 1,000,000,000,000 units: leave out `max_lease` for no lease"
            }
            Some(_) if !can_lease => {
                "the units of this algorithm cannot be leased exactly: leave out `max_lease`, \
                 or use `Gcra`, `TokenBucket`, `LeakyBucket::meter`, `FixedWindow` or `SlidingWindow`"
            }
            Some(_) if self.penalty.is_some() => {
                "a policy with a penalty cannot be leased, because an instance would spend leased units of a banned key: \
                 leave out `max_lease` or `penalty`"
            }
            _ if self.headroom.contains_key(&Criticality::CriticalPlus) => {
                "the most critical requests leave no headroom: set it for `Critical`, `SheddablePlus` or `Sheddable`"
            }
            _ if self.headroom.values().any(|headroom| matches!(headroom, Headroom::Percent(101..))) => {
                "a headroom must be from 0 to 100 percent"
            }
            _ if !self.notify_at.iter().all(|percent| (1..=100).contains(percent)) => {
                "a share to notify at must be from 1 to 100 percent"
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

    /// The number of the [`EVERY_KEY`] parts of the keys for which the policy is enforced.
    pub(super) fn enforced_keys(&self) -> u32 {
        // From 0 to 1, so it fits.
        (self.enforced * f64::from(EVERY_KEY)).round() as u32
    }
}
