//! The entries of a policy.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Deserializer, de::Unexpected};
use tower_ratelimit::policy::{Headroom, QuotaUnit};
use tower_ratelimit::{
    Criticality, Error, ErrorKind, FailureMode, Policy, Quota,
    algorithm::{Algorithm, Gcra},
};

use super::{
    algorithm::AlgorithmTable,
    penalty::PenaltyEntry,
    quota::QuotaEntry,
    table::{Table, TextOrTable},
};

/// The table of a policy, or entries that change another policy. An entry that is left out stays as it is;
/// `null` stands for its default.
#[derive(Debug, Deserialize)]
#[serde(rename = "a policy", deny_unknown_fields)]
pub(crate) struct PolicyChanges {
    name: Option<String>,
    quota: Option<TextOrTable<QuotaEntry>>,
    #[serde(default, deserialize_with = "entry")]
    algorithm: Entry<TextOrTable<AlgorithmTable>>,
    #[serde(default, deserialize_with = "entry")]
    failure_mode: Entry<FailureMode>,
    #[serde(default, deserialize_with = "entry")]
    max_lease: Entry<u64>,
    #[serde(default, deserialize_with = "entry")]
    max_debt: Entry<u64>,
    #[serde(default, deserialize_with = "entry")]
    penalty: Entry<TextOrTable<PenaltyEntry>>,
    #[serde(default, deserialize_with = "entry")]
    headroom: Entry<BTreeMap<Criticality, Headroom>>,
    #[serde(default, deserialize_with = "entry")]
    enforced: Entry<f64>,
    #[serde(default, deserialize_with = "entry")]
    quota_unit: Entry<QuotaUnit>,
    #[serde(default, deserialize_with = "entry")]
    notify_at: Entry<Vec<u8>>,
}

/// An entry: `None` if the table leaves it out, `Some(None)` if it is `null`, which stands for its default.
type Entry<T> = Option<Option<T>>;

fn entry<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Entry<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// No text stands for it. A list of its values does not either, which serde would read without the names of
/// the entries.
impl Table for PolicyChanges {
    const EXPECTED: &'static str = "a table of the policy's entries";

    fn of_text<E: serde::de::Error>(text: &str) -> Result<Self, E> {
        Err(E::invalid_type(Unexpected::Str(text), &Self::EXPECTED))
    }
}

/// What counts a quota if nothing else is set.
fn default_algorithm(quota: Quota) -> Arc<dyn Algorithm> {
    Policy::new("default", quota).settings().algorithm.clone()
}

impl PolicyChanges {
    /// The entry `name`. [`apply`](Self::apply) does not read it.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The entry `quota`.
    pub(crate) fn quota(&self) -> Option<Quota> {
        self.quota.as_ref().map(|TextOrTable(entry)| entry.quota)
    }

    /// `policy` with these entries.
    ///
    /// # Errors
    ///
    /// The entries do not fit together, such as a burst and an algorithm that counts in windows.
    pub(crate) fn apply(self, policy: &Policy) -> Result<Policy, Error> {
        let mut settings = policy.settings().clone();
        let windows = self.quota.as_ref().and_then(|TextOrTable(entry)| entry.windows);
        settings.quota = self.quota().unwrap_or(settings.quota);
        settings.algorithm = match (self.algorithm, windows) {
            (Some(Some(_)), Some(_)) => {
                return Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "a quota that is a table has calendar windows: leave out `algorithm`, or write the quota as text",
                ));
            }
            (_, Some(windows)) => Arc::new(windows),
            (Some(Some(TextOrTable(table))), None) => table.algorithm()?,
            (Some(None), None) => default_algorithm(settings.quota),
            // The default, which has no options: another one counts calendar periods.
            (None, None) if settings.algorithm.name() == Gcra::new().name() => {
                default_algorithm(settings.quota)
            }
            (None, None) => settings.algorithm,
        };
        if let Some(mode) = self.failure_mode {
            settings.failure_mode = mode.unwrap_or_default();
        }
        if let Some(lease) = self.max_lease {
            settings.max_lease = lease;
        }
        if let Some(debt) = self.max_debt {
            settings.max_debt = debt.unwrap_or_default();
        }
        if let Some(penalty) = self.penalty {
            settings.penalty = penalty.map(|TextOrTable(PenaltyEntry(penalty))| penalty);
        }
        if let Some(headroom) = self.headroom {
            settings.headroom = headroom.unwrap_or_default();
        }
        if let Some(unit) = self.quota_unit {
            settings.quota_unit = unit.unwrap_or_default();
        }
        if let Some(share) = self.enforced {
            settings.enforced = share.unwrap_or(1.0);
        }
        if let Some(percents) = self.notify_at {
            settings.notify_at = percents.unwrap_or_default();
        }
        policy.with_settings(settings)
    }
}
