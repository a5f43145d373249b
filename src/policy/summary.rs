//! The settings of a policy, to print, to serialize and to compare.

use std::fmt;

use super::{FailureMode, Policy, policy::EVERY_KEY};
use crate::{
    algorithm::penalty::Strikes,
    base::{Quota, duration_text},
};

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
        let rows = self.settings().into_iter().zip(new.settings());
        let changed = rows.filter(|(old, new)| old != new);
        changed.map(|((name, old), (_, new))| format!("{name} {old} -> {new}")).collect::<Vec<_>>().join(", ")
    }

    fn settings(&self) -> [(&'static str, String); 9] {
        let options = &self.0.options;
        [
            ("quota", self.0.quota.to_string()),
            ("algorithm", self.algorithm_name().to_owned()),
            // They are in the text for debugging only.
            ("options", format!("{:?}", self.counting())),
            ("lease", options.lease.to_string()),
            ("debt", self.debt_units().to_string()),
            ("penalty", self.penalty_text()),
            ("content_bytes", options.bytes.to_string()),
            ("enforced", self.enforced_share().to_string()),
            ("failure mode", options.on_store_failure.to_string()),
        ]
    }

    fn penalty_text(&self) -> String {
        match self.bans().map(|bans| Strikes::of(bans.arguments())) {
            None => "none".to_owned(),
            Some(Strikes { after: 0, .. }) => "manual".to_owned(),
            Some(Strikes { after, within, first, longest, .. }) => {
                let [within, first, longest] = [within, first, longest].map(duration_text);
                format!("(after {after} in {within}, ban {first} up to {longest})")
            }
        }
    }
}

/// Everything but the name, and without what is not set.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.0.options;
        write!(f, "{}, {}", self.0.quota, self.algorithm_name())?;
        if options.bytes {
            f.write_str(", of bytes")?;
        }
        if let Some(debt) = &options.debt {
            write!(f, ", debt up to {}", debt.units)?;
        }
        if options.lease > 0 {
            write!(f, ", leases up to {}", options.lease)?;
        }
        if self.has_penalty() {
            f.write_str(", penalty")?;
        }
        match options.shadowed {
            0 => {}
            EVERY_KEY => f.write_str(", shadow")?,
            // In millionths, so four digits are enough.
            share => write!(f, ", enforced for {} % of the keys", f64::from(EVERY_KEY - share) / 1e4)?,
        }
        write!(f, ", failure mode {}", options.on_store_failure)
    }
}
