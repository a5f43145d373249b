//! What happens to a request's charge once its response is known.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Response, response::Parts};

use super::rule::CountIf;
use crate::{
    base::Answer,
    decision::Decision,
    limiter::{Limiter, Reservation, Work},
};

/// Which responses count, under some policies.
pub(super) struct Counted {
    pub(super) counts: CountIf,
    /// The names of the policies. `None`: all.
    pub(super) policies: Option<Vec<String>>,
}

/// What is not settled yet of an admitted request.
pub(super) struct Unsettled {
    refundable: Option<Refundable>,
    settling: Option<Box<Settling>>,
}

/// A charge that may be refunded.
struct Refundable {
    limiter: Limiter,
    decision: Decision,
    counted: Vec<Counted>,
    /// Whether to refund the charge if this is dropped.
    refunds: bool,
    /// Whether the service runs. If it panics, this stays so.
    is_running: bool,
}

impl Unsettled {
    pub(super) fn new(
        limiter: &Limiter,
        decision: &Decision,
        counted: Vec<Counted>,
        refunds: bool,
        settling: Option<Box<Settling>>,
    ) -> Box<Self> {
        let refundable = (refunds || !counted.is_empty()).then(|| Refundable {
            limiter: limiter.clone(),
            decision: decision.clone(),
            counted,
            refunds,
            is_running: false,
        });
        Box::new(Self { refundable, settling })
    }

    /// Polls the service, and notes whether it panics.
    pub(super) fn watch<T>(unsettled: &mut Option<Box<Self>>, poll: impl FnOnce() -> T) -> T {
        let mut refundable = unsettled.as_deref_mut().and_then(|unsettled| unsettled.refundable.as_mut());
        if let Some(refundable) = &mut refundable {
            refundable.is_running = true;
        }
        let polled = poll();
        if let Some(refundable) = refundable {
            refundable.is_running = false;
        }
        polled
    }

    /// Refunds the charge unless the response counts. Returns what its body settles, too.
    pub(super) fn responded<B>(
        self,
        response: Response<B>,
    ) -> (Response<B>, Option<Refund>, Option<Box<Settling>>) {
        match self.refundable {
            Some(refundable) => {
                let (parts, body) = response.into_parts();
                let refund = refundable.responded(&parts, self.settling.as_deref());
                (Response::from_parts(parts, body), refund, self.settling)
            }
            None => (response, None, self.settling),
        }
    }

    /// Keeps the charge.
    pub(super) fn keep(mut self) {
        if let Some(refundable) = &mut self.refundable {
            refundable.refunds = false;
        }
    }

    /// The service failed without a response. The charge is refunded as of a cancelled request, or where a response must
    /// show that it counts.
    pub(super) fn failed(mut self) {
        if let Some(refundable) = &mut self.refundable
            && !refundable.refunds
            && let Some(uncounted) = refundable.uncounted(|_| false)
        {
            self.settling.iter().for_each(|settling| settling.fix(&uncounted));
            refundable.decision = uncounted;
            refundable.refunds = true;
        }
    }
}

impl Refundable {
    fn responded(mut self, response: &Parts, settling: Option<&Settling>) -> Option<Refund> {
        self.refunds = false;
        let uncounted = self.uncounted(|counts| counts(response))?;
        settling.iter().for_each(|settling| settling.fix(&uncounted));
        let work = self.limiter.begin_work();
        Some(Refund(Some((work, self.limiter.refund(&uncounted, u64::MAX)))))
    }

    /// The decision of the policies under which the request does not count.
    fn uncounted(&self, counts: impl Fn(&CountIf) -> bool) -> Option<Decision> {
        let uncounted: Vec<_> = self.counted.iter().filter(|one| !counts(&one.counts)).collect();
        if uncounted.iter().any(|one| one.policies.is_none()) {
            return Some(self.decision.clone());
        }
        let names = uncounted.iter().filter_map(|one| one.policies.as_ref()).flatten();
        self.decision.of_policies(|name| names.clone().any(|uncounted| uncounted == name))
    }
}

impl Drop for Refundable {
    fn drop(&mut self) {
        // A panic may be caught before this is dropped, or unwind through it.
        let has_panicked = self.is_running || std::thread::panicking();
        if self.refunds && !has_panicked {
            let work = self.limiter.begin_work();
            work.finish(self.limiter.refund(&self.decision, u64::MAX), None);
        }
    }
}

/// A refund under way. It is completed in the background if this is dropped.
pub(super) struct Refund(Option<(Work, Answer<Decision>)>);

impl Refund {
    /// The decision after the refund.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Decision>> {
        let Some((_, answer)) = &mut self.0 else { return Poll::Ready(None) };
        let refunded = ready!(Pin::new(answer).poll(cx));
        self.0 = None;
        Poll::Ready(refunded.ok())
    }
}

impl Drop for Refund {
    fn drop(&mut self) {
        if let Some((work, answer)) = self.0.take() {
            work.finish(answer, None);
        }
    }
}

/// The reservations of a request until its response's body ends.
pub(super) struct Settling {
    /// The handler's reservation. It ends with its last handle, which this is.
    reservation: Option<Reservation>,
    meter: Option<Box<Meter>>,
}

impl Settling {
    /// The reservations of the handler and of the response's bytes, if there is one.
    pub(super) fn new(reservation: Option<Reservation>, of_bytes: Option<Reservation>) -> Option<Box<Self>> {
        let meter = of_bytes.map(|reservation| Box::new(Meter { reservation, bytes: 0, charged: 0 }));
        (reservation.is_some() || meter.is_some()).then(|| Box::new(Self { reservation, meter }))
    }

    /// Charges no more under the policies of `refunded`.
    fn fix(&self, refunded: &Decision) {
        let of_bytes = self.meter.iter().map(|meter| &meter.reservation);
        self.reservation.iter().chain(of_bytes).for_each(|reservation| reservation.fix(refunded));
    }

    /// The body has sent this many bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        if let Some(meter) = &mut self.meter {
            meter.add(bytes);
        }
    }
}

/// Charges the bytes of a response's body.
struct Meter {
    reservation: Reservation,
    bytes: u64,
    /// What is charged already.
    charged: u64,
}

/// The bytes of a stream that are charged in one step.
const PART: u64 = 256 * 1024;

impl Meter {
    fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes - self.charged >= PART {
            self.charged = self.bytes;
            drop(self.reservation.extend_to(self.bytes));
        }
    }
}

impl Drop for Meter {
    /// The body has ended or was dropped, or there was no response. The request pays its cost, or its bytes if they are
    /// more.
    fn drop(&mut self) {
        drop(self.reservation.extend_to(self.bytes));
    }
}
