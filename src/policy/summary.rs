use std::fmt;

use super::FailureMode;
use crate::base::Quota;

/// The settings of a policy, to print and to serialize. It cannot be read as a policy again: the options of the algorithm
/// are missing.
#[allow(missing_docs, reason = "the names of the settings")]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PolicySummary {
    pub name: String,
    pub quota: Quota,
    pub algorithm: String,
    pub capacity: u64,
    pub debt: u64,
    pub lease: u64,
    pub has_penalty: bool,
    pub content_bytes: bool,
    pub enforced: f64,
    pub on_store_failure: FailureMode,
}

/// Everything but the name, and without what is not set.
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
