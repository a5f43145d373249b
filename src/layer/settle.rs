//! What happens to a request's charge once its response is known.

use std::{fmt, sync::Arc};

use http::{Response, response::Parts};
use tokio::runtime::Handle;

use crate::{
    answer::Answer,
    decision::Decision,
    limiter::{Limiter, Reservation},
};

/// When a layer refunds requests, and which policies it reserves units of.
#[derive(Clone, Default)]
pub(super) struct Settlements {
    pub(super) counts: Option<Arc<dyn Fn(&Parts) -> bool + Send + Sync>>,
    pub(super) refunds_cancelled: bool,
    pub(super) reserved: Vec<Reserved>,
}

/// A policy whose charge is settled later.
#[derive(Clone)]
pub(super) struct Reserved {
    pub(super) policy: String,
    pub(super) or_refund: bool,
    /// Whether the bytes of the response's body settle it.
    pub(super) by_bytes: bool,
}

/// A request with the service, whose charge may be refunded.
pub(super) struct Settlement {
    limiter: Limiter,
    decision: Decision,
    counts: Option<Arc<dyn Fn(&Parts) -> bool + Send + Sync>>,
    /// Whether to refund the charge if this is dropped.
    refunds: bool,
}

impl Settlements {
    /// The settlement of a request that `decision` admitted. `None` if its charge stays whatever happens.
    pub(super) fn start(&self, limiter: &Limiter, decision: &Decision) -> Option<Box<Settlement>> {
        if self.counts.is_none() && !self.refunds_cancelled || !decision.is_allowed() {
            return None;
        }
        Some(Box::new(Settlement {
            limiter: limiter.clone(),
            decision: decision.clone(),
            counts: self.counts.clone(),
            refunds: self.refunds_cancelled,
        }))
    }

    /// The reservations of a request that `decision` admitted: for its extensions, and for the bytes of its response.
    pub(super) fn reserve(&self, limiter: &Limiter, decision: &Decision) -> [Option<Reservation>; 2] {
        let reserve = |by_bytes: bool| {
            let reserved = || self.reserved.iter().filter(move |reserved| reserved.by_bytes == by_bytes);
            let is_reserved = |name: &str| reserved().any(|reserved| reserved.policy == name);
            let decision = decision.of_policies(is_reserved).filter(Decision::is_allowed)?;
            let reservation = Reservation::new(limiter, &decision);
            Some(if reserved().any(|reserved| reserved.or_refund) {
                reservation.or_refund()
            } else {
                reservation
            })
        };
        if self.reserved.is_empty() { [None, None] } else { [reserve(false), reserve(true)] }
    }
}

impl Settlement {
    /// Refunds the charge unless the response counts. The decision after the refund, if there is one.
    pub(super) fn responded<B>(mut self, response: Response<B>) -> (Response<B>, Option<Answer<Decision>>) {
        self.refunds = false;
        let (parts, body) = response.into_parts();
        let counts = self.counts.as_ref().is_none_or(|counts| counts(&parts));
        let refund = (!counts).then(|| self.limiter.refund(&self.decision, u64::MAX));
        (Response::from_parts(parts, body), refund)
    }

    /// Keeps the charge.
    pub(super) fn keep(mut self) {
        self.refunds = false;
    }

    /// The service failed without a response.
    pub(super) fn failed(mut self) {
        // It is refunded as a cancelled one is, or if a response must show that it counts.
        self.refunds |= self.counts.is_some();
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        if self.refunds {
            in_background(self.limiter.refund(&self.decision, u64::MAX));
        }
    }
}

/// Waits for `answer` in the background. Outside a runtime it is lost, unless the store is in process.
pub(super) fn in_background(answer: Answer<Decision>) {
    if let Err(pending) = answer.now()
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn(pending);
    }
}

/// Charges the bytes of a response's body.
pub(super) struct Meter {
    reservation: Reservation,
    bytes: u64,
    /// What is charged already.
    charged: u64,
}

/// The bytes of a stream that are charged at once.
const PART: u64 = 256 * 1024;

impl Meter {
    pub(super) const fn new(reservation: Reservation) -> Self {
        Self { reservation, bytes: 0, charged: 0 }
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes - self.charged >= PART {
            self.charged = self.bytes;
            in_background(self.reservation.extend_to(self.bytes));
        }
    }
}

impl Drop for Meter {
    /// The body has ended or was dropped.
    fn drop(&mut self) {
        in_background(self.reservation.settle(self.bytes));
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").finish_non_exhaustive()
    }
}
