//! The entries of a policy.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tower_ratelimit::{Error, FailureMode, Policy, Quota, algorithm::Gcra};

use super::{algorithm::AlgorithmTable, penalty::PenaltyEntry, table::TextOrTable};

/// The table of a policy, or entries that change another policy. An entry that is left out stays as it is; `null` stands for
/// its default.
#[derive(Debug, Deserialize)]
#[serde(rename = "a policy", deny_unknown_fields)]
pub(crate) struct PolicyChanges {
    name: Option<String>,
    quota: Option<Quota>,
    #[serde(default, deserialize_with = "entry")]
    algorithm: Entry<TextOrTable<AlgorithmTable>>,
    #[serde(default, deserialize_with = "entry")]
    on_store_failure: Entry<FailureMode>,
    #[serde(default, deserialize_with = "entry")]
    lease: Entry<u64>,
    #[serde(default, deserialize_with = "entry")]
    debt: Entry<u64>,
    #[serde(default, deserialize_with = "entry")]
    penalty: Entry<TextOrTable<PenaltyEntry>>,
    #[serde(default, deserialize_with = "entry")]
    enforced: Entry<f64>,
    #[serde(default, deserialize_with = "entry")]
    content_bytes: Entry<bool>,
}

/// An entry: `None` if the table leaves it out, `Some(None)` if it is `null`, which stands for its default.
type Entry<T> = Option<Option<T>>;

fn entry<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Entry<T>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl PolicyChanges {
    /// The entry `name`. [`apply`](Self::apply) does not read it.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The entry `quota`.
    pub(crate) const fn quota(&self) -> Option<Quota> {
        self.quota
    }

    /// `policy` with these entries.
    ///
    /// # Errors
    ///
    /// The entries do not fit together, such as a burst and an algorithm that counts in windows.
    pub(crate) fn apply(self, policy: &Policy) -> Result<Policy, Error> {
        let old = policy.settings();
        let algorithm = match self.algorithm {
            None => old.algorithm,
            Some(None) => Arc::new(Gcra::new()),
            Some(Some(TextOrTable(table))) => table.algorithm()?,
        };
        let quota = self.quota.unwrap_or(old.quota);
        let mode = self.on_store_failure.map_or(old.on_store_failure, Option::unwrap_or_default);
        let mut new =
            Policy::try_new(policy.name(), quota)?.counted(quota, algorithm)?.on_store_failure(mode);
        if self.content_bytes.map_or(old.content_bytes, Option::unwrap_or_default) {
            new = new.content_bytes();
        }
        if let Some(units) = self.lease.unwrap_or_else(|| (old.lease > 0).then_some(old.lease)) {
            new = new.try_leased(units)?;
        }
        let penalty = match self.penalty {
            None => old.penalty,
            Some(entry) => entry.map(|TextOrTable(PenaltyEntry(penalty))| penalty),
        };
        if let Some(penalty) = penalty {
            new = new.try_penalty(penalty)?;
        }
        let debt = self.debt.map_or(old.debt, Option::unwrap_or_default);
        new.try_debt(debt)?.try_rollout(self.enforced.map_or(old.enforced, |share| share.unwrap_or(1.0)))
    }
}
