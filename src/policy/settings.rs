//! The settings of a policy, to print and to read.

use std::{fmt, sync::Arc};

use super::{FailureMode, Penalty, Policy, policy::EVERY_KEY};
use crate::{
    algorithm::{Algorithm, penalty::Strikes},
    base::Quota,
};

/// All settings of a policy except its name.
#[allow(missing_docs, reason = "the names of the settings")]
#[derive(Clone, Debug)]
pub struct PolicySettings {
    pub quota: Quota,
    pub algorithm: Arc<dyn Algorithm>,
    pub on_store_failure: FailureMode,
    /// 0 for none.
    pub lease: u64,
    pub debt: u64,
    pub penalty: Option<Penalty>,
    pub content_bytes: bool,
    pub enforced: f64,
}

impl Policy {
    /// All settings except the name.
    #[doc(hidden)]
    #[must_use]
    pub fn settings(&self) -> PolicySettings {
        let options = &self.0.options;
        PolicySettings {
            quota: self.0.quota,
            algorithm: self.counting().clone(),
            on_store_failure: options.on_store_failure,
            lease: options.lease,
            debt: self.debt_units(),
            penalty: self.bans().map(|bans| Penalty::of(Strikes::of(bans.arguments()))),
            content_bytes: options.bytes,
            enforced: self.enforced_share(),
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
