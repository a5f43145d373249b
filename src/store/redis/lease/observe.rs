//! What becomes of a job that leases units.

use std::sync::Arc;

use super::{send::Leases, table::Fetch};
use crate::{
    decision::Charge,
    store::redis::job::{LeaseRequest, LeaseReturn, Observer, Reply},
};

/// Stores the units that a job leases.
struct FetchObserver {
    leases: Arc<Leases>,
    fetch: Fetch,
    is_sent: bool,
    is_completed: bool,
    /// The reset count when the request was sent.
    resets: u32,
}

/// Fetches a lease with a job for `charge`; `ahead` is whether enough units are left for now. `None` if there is nothing to
/// fetch.
pub(crate) fn fetch(leases: &Arc<Leases>, charge: &Charge, ahead: bool) -> Option<Box<LeaseRequest>> {
    let fetch = leases.table.fetch(charge, ahead)?;
    let (wanted, returned, resets) = (fetch.wanted, fetch.returned.lease, fetch.returned.resets.count);
    let observer =
        FetchObserver { leases: leases.clone(), fetch, is_sent: false, is_completed: false, resets };
    Some(LeaseRequest::new(wanted, returned, observer))
}

impl Observer for FetchObserver {
    fn sending(&mut self, returned: &mut LeaseReturn) {
        self.resets = self.leases.return_if_valid(returned, self.fetch.returned.resets);
        self.is_sent = true;
    }

    fn settled(&mut self, reply: &Reply) {
        if let (Some(leased), [outcome]) = (reply.leased, reply.decision.outcomes()) {
            self.is_completed = true;
            self.leases.complete(&self.fetch, self.resets, Some((leased, outcome)));
        }
    }
}

impl Drop for FetchObserver {
    fn drop(&mut self) {
        if !self.is_completed {
            self.leases.complete(&self.fetch, self.resets, None);
        }
        if !self.is_sent {
            self.leases.spawn_return(&self.fetch.returned);
        }
    }
}
