use crate::{algorithm::twin::Receipt, decision::Decision};

/// The script's reply to one job.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) decision: Decision,
    /// The lease, for a job that requested one.
    pub(crate) leased: Option<Leased>,
}

impl Reply {
    /// The reply to a job that requested no lease.
    pub(crate) const fn of(decision: Decision) -> Self {
        Self { decision, leased: None }
    }
}

/// A lease that Redis granted. It has no units if the request was denied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leased {
    pub(crate) units: u64,
    /// Microseconds until the lease ends.
    pub(crate) lifetime: u64,
    pub(crate) name: u64,
    /// The receipt of its units.
    pub(crate) receipt: Receipt,
}
