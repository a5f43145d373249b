//! What becomes of a job that leases units.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use super::{send::Leases, table::Fetch};
use crate::{
    decision::Charge,
    store::redis::job::{LeaseRequest, Observer, Reply},
};

/// Stores the units that a job leases.
pub(crate) struct FetchObserver {
    leases: Arc<Leases>,
    fetch: Fetch,
    sent: AtomicBool,
    completed: AtomicBool,
    /// The reset count when the request was sent.
    resets: AtomicU32,
}

impl FetchObserver {
    /// Fetches a lease with a job for `charge`; `ahead` is whether enough units are left for now. `None` if there is nothing
    /// to fetch.
    pub(crate) fn new(leases: &Arc<Leases>, charge: &Charge, ahead: bool) -> Option<(LeaseRequest, Self)> {
        let fetch = leases.table.fetch(charge, ahead)?;
        let request = LeaseRequest { wanted: fetch.wanted, returned: fetch.returned.lease };
        let observer = Self {
            leases: leases.clone(),
            resets: AtomicU32::new(fetch.returned.resets.count),
            fetch,
            sent: AtomicBool::new(false),
            completed: AtomicBool::new(false),
        };
        Some((request, observer))
    }

    /// Whether units are freed that other requests can be charged.
    pub(crate) const fn frees_units(&self) -> bool {
        self.fetch.returned.frees_units()
    }
}

impl Observer for FetchObserver {
    fn sending(&self, request: &mut LeaseRequest) {
        let count = self.leases.return_if_valid(request, self.fetch.returned.resets);
        self.resets.store(count, Ordering::Release);
        self.sent.store(true, Ordering::Release);
    }

    fn settled(&self, reply: &Reply) {
        if let (Some(leased), [outcome]) = (reply.leased, reply.decision.outcomes()) {
            self.completed.store(true, Ordering::Release);
            let resets = self.resets.load(Ordering::Acquire);
            self.leases.complete(&self.fetch, resets, Some((leased, outcome)));
        }
    }
}

impl Drop for FetchObserver {
    fn drop(&mut self) {
        if !*self.completed.get_mut() {
            self.leases.complete(&self.fetch, *self.resets.get_mut(), None);
        }
        if !*self.sent.get_mut() {
            self.leases.spawn_return(&self.fetch.returned);
        }
    }
}
