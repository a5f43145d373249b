//! The settings of a policy, to print, to serialize and to compare.

use std::fmt;

use super::{FailureMode, Policy};
use crate::base::{Quota, duration_text};

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

impl Policy {
    /// All settings, to serialize.
    #[doc(hidden)]
    #[must_use]
    pub fn summary(&self) -> PolicySummary {
        let options = &self.0.options;
        PolicySummary {
            name: self.name().to_owned(),
            quota: self.0.quota,
            algorithm: self.algorithm_name().to_owned(),
            capacity: self.capacity(),
            debt: self.debt_units(),
            lease: options.lease,
            has_penalty: self.has_penalty(),
            content_bytes: options.bytes,
            enforced: self.enforced_share(),
            on_store_failure: options.on_store_failure,
        }
    }

    /// The settings that differ in `new`, each as `name old -> new`, for a log. Empty if both are equal.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota};
    ///
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// let new = Policy::new("login", Quota::per_minute(10)).debt(20);
    /// assert_eq!(login.changes_to(&new), "quota 5/min -> 10/min, debt 0 -> 20");
    /// ```
    #[doc(hidden)]
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> String {
        let (before, after) = (self.summary(), new.summary());
        let algorithms = [self, new].map(|policy| format!("{:?}", policy.counting()));
        let is_renamed = before.algorithm != after.algorithm;
        // The options are in the text for debugging only.
        let [old_algorithm, new_algorithm] =
            if is_renamed { [before.algorithm, after.algorithm] } else { algorithms };
        let rows = [
            ("quota", before.quota.to_string(), after.quota.to_string()),
            ("algorithm", old_algorithm, new_algorithm),
            ("lease", before.lease.to_string(), after.lease.to_string()),
            ("debt", before.debt.to_string(), after.debt.to_string()),
            ("penalty", self.penalty_text(), new.penalty_text()),
            ("content_bytes", before.content_bytes.to_string(), after.content_bytes.to_string()),
            ("enforced", before.enforced.to_string(), after.enforced.to_string()),
            ("failure mode", before.on_store_failure.to_string(), after.on_store_failure.to_string()),
        ];
        let changed = rows.into_iter().filter(|(_, old, new)| old != new);
        changed.map(|(name, old, new)| format!("{name} {old} -> {new}")).collect::<Vec<_>>().join(", ")
    }

    fn penalty_text(&self) -> String {
        match self.bans().map(Self::arguments) {
            None => "none".to_owned(),
            Some([after, within, first, longest, ..]) if *after > 0 => {
                let [within, first, longest] = [within, first, longest].map(|micros| duration_text(*micros));
                format!("(after {after} in {within}, ban {first} up to {longest})")
            }
            Some(_) => "manual".to_owned(),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary().fmt(f)
    }
}
