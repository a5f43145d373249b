use std::fmt;

use super::FailureMode;
use crate::base::Quota;

/// The settings of a [`Policy`](super::Policy), to print. From [`Policy::summary`](super::Policy::summary), which has an
/// example.
///
/// With the feature `serde` it is serialized as an object: `name`, `quota`, `algorithm`, `capacity`, `debt`, `lease`,
/// `has_penalty`, `content_bytes`, `enforced` (the share of the keys, from 0 to 1) and `on_store_failure`. It cannot be read
/// as a policy again: the options of the algorithm are missing.
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
