//! What a probe found.

use std::{fmt, time::Duration};

use super::server::ServerInfo;
use crate::base::{Error, ErrorKind};

/// What [`RedisStore::probe`](crate::RedisStore::probe) found. Its text is for an operator.
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::{RedisStore, store::FindingKind};
///
/// # async fn example() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder().connect_lazy("redis://127.0.0.1:6379")?;
/// let report = store.probe().await?;
/// println!("{report}");
/// assert!(report.findings().iter().all(|finding| finding.kind() != FindingKind::Eviction));
/// // The default deadline is 50 ms.
/// assert!(report.round_trip().is_some_and(|round_trip| round_trip.as_millis() < 50));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ProbeReport {
    pub(super) server: ServerInfo,
    pub(super) findings: Vec<ProbeFinding>,
}

/// A problem that a probe found, from [`ProbeReport::findings`]. Its text says what to change.
#[derive(Clone, Debug)]
pub struct ProbeFinding {
    kind: FindingKind,
    text: String,
}

/// The kind of a [`ProbeFinding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// The server is a node of a Redis Cluster or a sentinel, and the store is for one server. No decision can be relied
    /// on.
    WrongTopology,
    /// A decision on a key with the store's prefix fails: the Redis user may not access the key or run a command, scripts
    /// are not allowed, or the server is a read-only replica.
    Decision,
    /// The algorithms of some policies fail, because the Redis user may not run a command.
    Algorithm,
    /// The server cannot decide at the moment: its memory is full, or it is loading its data.
    Unavailable,
    /// The server is older than the oldest supported version.
    Version,
    /// A round trip to the server takes longer than the deadline of a decision, so no decision is made in time.
    Slow,
    /// The server evicts exhausted limits when its memory is full.
    Eviction,
}

impl ProbeReport {
    /// The version of the server, such as `7.2.4`. `None` if it does not say, or in a Redis Cluster if the Redis user may
    /// not run INFO.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.server.version.as_deref()
    }

    /// The server's `maxmemory-policy`, such as `noeviction`. `None` if the Redis user may not run INFO.
    #[must_use]
    pub fn eviction_policy(&self) -> Option<&str> {
        self.server.eviction_policy.as_deref()
    }

    /// The least round trip of three commands to the server. `None` if none of them was answered within half a second.
    ///
    /// If it is longer than the [`deadline`](crate::store::RedisStoreBuilder::deadline), no decision can be made in time.
    #[must_use]
    pub const fn round_trip(&self) -> Option<Duration> {
        self.server.round_trip
    }

    /// The findings, the most severe first.
    #[must_use]
    pub fn findings(&self) -> &[ProbeFinding] {
        &self.findings
    }

    /// Whether decisions can be made. If not, [`connect`](crate::RedisStore::connect) fails.
    #[must_use]
    pub fn can_decide(&self) -> bool {
        !self.findings.iter().any(ProbeFinding::prevents_decisions)
    }
}

impl ProbeFinding {
    pub(super) fn new(kind: FindingKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// The kind of problem.
    #[must_use]
    pub const fn kind(&self) -> FindingKind {
        self.kind
    }

    /// Whether no decision can be made until it is solved. Otherwise it is a warning.
    #[must_use]
    pub const fn prevents_decisions(&self) -> bool {
        matches!(self.kind, FindingKind::WrongTopology | FindingKind::Decision)
    }

    pub(in crate::store::redis) fn to_error(&self) -> Error {
        Error::new(ErrorKind::StoreFailed, self.text.clone())
    }
}

impl fmt::Display for ProbeFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One line about the server, and one for each problem.
impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.server)?;
        match self.findings.len() {
            0 => write!(f, ": no problem found"),
            _ => self.findings.iter().try_for_each(|finding| {
                let severity = if finding.prevents_decisions() { "error" } else { "warning" };
                write!(f, "\n{severity}: {finding}")
            }),
        }
    }
}
