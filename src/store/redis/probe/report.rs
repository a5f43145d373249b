//! What a probe found.

use std::{fmt, time::Duration};

use super::server::ServerInfo;
use crate::base::{Error, ErrorKind};

/// What [`RedisStore::probe`](crate::RedisStore::probe) found. Its text is for an operator.
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::RedisStore;
///
/// # async fn example() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder().connect_lazy("redis://127.0.0.1:6379")?;
/// let report = store.probe().await?;
/// println!("{report}");
/// assert!(report.can_decide());
/// // The default deadline is 50 ms.
/// assert!(report.round_trip().is_some_and(|round_trip| round_trip.as_millis() < 50));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ProbeReport {
    pub(super) server: ServerInfo,
    pub(in crate::store::redis) findings: Vec<Finding>,
}

/// A problem that a probe found.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Finding {
    /// Whether no decision can be made until it is solved. Otherwise it is a warning.
    prevents_decisions: bool,
    /// What to change.
    pub(in crate::store::redis) text: String,
}

impl ProbeReport {
    /// The version of the server, such as `7.2.4`. `None` if it is unknown, or in a Redis Cluster if the Redis user may
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

    /// The problems, the most severe first. Each text states what to change.
    pub fn findings(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().map(|finding| &*finding.text)
    }

    /// Why no decision can be made.
    pub(in crate::store::redis) fn error(&self) -> Option<Error> {
        let finding = self.findings.iter().find(|finding| finding.prevents_decisions)?;
        Some(Error::new(ErrorKind::StoreFailed, finding.text.clone()))
    }

    /// Whether decisions can be made. If not, [`connect`](crate::RedisStore::connect) fails.
    #[must_use]
    pub fn can_decide(&self) -> bool {
        self.error().is_none()
    }
}

impl Finding {
    pub(super) fn error(text: impl Into<String>) -> Self {
        Self { prevents_decisions: true, text: text.into() }
    }

    pub(super) fn warning(text: impl Into<String>) -> Self {
        Self { prevents_decisions: false, text: text.into() }
    }
}

/// One line about the server, and one for each problem.
impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.server)?;
        match self.findings.len() {
            0 => write!(f, ": no problem found"),
            _ => self.findings.iter().try_for_each(|finding| {
                let severity = if finding.prevents_decisions { "error" } else { "warning" };
                write!(f, "\n{severity}: {}", finding.text)
            }),
        }
    }
}
