//! Decisions under way, and what they hold.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::Decision;

use super::bans::Known;

/// What a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Charge,
    UpTo,
    Debit,
    Peek,
}

impl Ask {
    /// Whether a denial counts for a penalty.
    pub(super) fn counts_denials(self) -> bool {
        matches!(self, Self::Charge | Self::UpTo)
    }
}

/// A decision under way: its charges as (rule, identity, cost), and what was known when it was made.
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) ask: Ask,
    pub(super) charges: Vec<(usize, usize, u64)>,
    pub(super) by: By,
    pub(super) started: Instant,
    pub(super) losses: u64,
    pub(super) permit_losses: u64,
    /// `None` if the server was full.
    pub(super) times_full: Option<u64>,
    /// By charge: units that were certainly counted.
    pub(super) counted: Vec<u64>,
    /// By charge: how many resets had begun or ended.
    pub(super) resets: Vec<u64>,
    /// By charge: what was known about bans.
    pub(super) known: Vec<Known>,
}

/// An instance that makes a decision.
#[derive(Clone)]
pub(super) struct By {
    pub(super) instance: String,
    pub(super) deadline: Duration,
    /// Whether it has changed its quotas.
    pub(super) is_changed: bool,
}

/// A decision that charged, and what it charged.
pub(super) struct Made {
    pub(super) decision: Decision,
    pub(super) charges: Vec<(usize, usize, u64)>,
    /// The instance that made it.
    pub(super) by: String,
    pub(super) at: Instant,
    pub(super) answered: Instant,
}

/// A permit of the ledger.
pub(super) struct Held {
    pub(super) rule: usize,
    pub(super) identity: usize,
    pub(super) units: u64,
    /// The instance that granted it, or the number of losses.
    pub(super) by: Result<u64, String>,
}
