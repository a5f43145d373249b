//! The entry `penalty`.

use serde::{Deserialize, de::Unexpected};
use tower_ratelimit::policy::Penalty;

use super::table::{Span, Table};

/// A penalty: a table of its numbers, or `manual`.
#[derive(Debug, Deserialize)]
#[serde(from = "PenaltyTable")]
pub(super) struct PenaltyEntry(pub(super) Penalty);

impl Table for PenaltyEntry {
    const EXPECTED: &'static str = "a table with `after`, `within`, `ban` and `up_to`, or \"manual\"";

    fn of_text<E: serde::de::Error>(text: &str) -> Result<Self, E> {
        match text {
            "manual" => Ok(Self(Penalty::manual())),
            other => Err(E::invalid_value(Unexpected::Str(other), &Self::EXPECTED)),
        }
    }
}

impl From<PenaltyTable> for PenaltyEntry {
    fn from(table: PenaltyTable) -> Self {
        let mut penalty = Penalty::after(table.after, table.within.0);
        if let Some(Span(time)) = table.ban {
            penalty = penalty.ban(time);
        }
        if let Some(Span(longest)) = table.up_to {
            penalty = penalty.up_to(longest);
        }
        Self(penalty)
    }
}

#[derive(Deserialize)]
#[serde(rename = "a penalty", deny_unknown_fields)]
struct PenaltyTable {
    after: u64,
    within: Span,
    ban: Option<Span>,
    up_to: Option<Span>,
}
