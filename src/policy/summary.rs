use std::fmt;

use super::FailureMode;
use crate::base::Quota;

/// The settings of a [`Policy`](super::Policy), to look at or to print. From [`Policy::summary`](super::Policy::summary),
/// which has an example.
///
/// With the feature `serde` it is serialized as an object of the values that its methods return. It cannot be read as a
/// policy again: the options of the algorithm are missing.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PolicySummary {
    pub(super) name: String,
    pub(super) quota: Quota,
    pub(super) algorithm: String,
    pub(super) capacity: u64,
    pub(super) debt: u64,
    pub(super) lease: u64,
    pub(super) has_penalty: bool,
    pub(super) content_bytes: bool,
    pub(super) enforced: f64,
    pub(super) on_store_failure: FailureMode,
}

impl PolicySummary {
    /// The name of the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limit per period, and the burst.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// The name of the algorithm, such as `gcra`.
    #[must_use]
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// The most units that can be charged at once.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The units by which [debits](super::Policy::debt) may exceed what remains. 0 without a debt.
    #[must_use]
    pub const fn debt(&self) -> u64 {
        self.debt
    }

    /// The most units of a key that one instance [leases](super::Policy::leased). 0 if nothing is leased.
    #[must_use]
    pub const fn lease(&self) -> u64 {
        self.lease
    }

    /// Whether keys can be [banned](super::Policy::penalty) under it.
    #[must_use]
    pub const fn has_penalty(&self) -> bool {
        self.has_penalty
    }

    /// Whether its units are [bytes of content](super::Policy::content_bytes).
    #[must_use]
    pub const fn content_bytes(&self) -> bool {
        self.content_bytes
    }

    /// The share of the keys for which the policy is [enforced](super::Policy::enforced_for), from 0 to 1.
    #[must_use]
    pub const fn enforced(&self) -> f64 {
        self.enforced
    }

    /// What happens to a request when the store gives no decision in time.
    #[must_use]
    pub const fn on_store_failure(&self) -> FailureMode {
        self.on_store_failure
    }
}

/// Everything but the name, and without what is not set: `5/min, gcra, failure mode local`.
impl fmt::Display for PolicySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.quota, self.algorithm)?;
        if self.content_bytes {
            f.write_str(", of bytes")?;
        }
        if self.debt > 0 {
            write!(f, ", debt up to {}", self.debt)?;
        }
        if self.lease > 0 {
            write!(f, ", leases up to {}", self.lease)?;
        }
        if self.has_penalty {
            f.write_str(", penalty")?;
        }
        if self.enforced == 0.0 {
            f.write_str(", shadow")?;
        } else if self.enforced < 1.0 {
            // In millionths, so four digits are enough.
            let percent = (self.enforced * 1e6).round() / 1e4;
            write!(f, ", enforced for {percent} % of the keys")?;
        }
        write!(f, ", failure mode {}", self.on_store_failure)
    }
}
