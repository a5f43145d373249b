use crate::{algorithm::twin::Receipt, decision::Decision};

/// What the script replied to one job.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) decision: Decision,
    /// For a job that asked for a lease.
    pub(crate) leased: Option<Leased>,
}

/// A lease that the server granted. No units where it denied the request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leased {
    pub(crate) units: u64,
    /// Microseconds until it ends.
    pub(crate) lasts: u64,
    pub(crate) name: u64,
    /// Of its units.
    pub(crate) receipt: Receipt,
}
