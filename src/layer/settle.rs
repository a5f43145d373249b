//! What happens to a request's charge once its response is known.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    base::Answer,
    decision::Decision,
    limiter::{Limiter, Reservation, Work},
};
use http::{Extensions, Response, response::Parts};

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

/// What is settled of an admitted request.
pub(super) struct Settlement {
    refundable: Option<Refundable>,
    settling: Option<Box<Settling>>,
}

/// A charge that may be refunded.
struct Refundable {
    limiter: Limiter,
    decision: Decision,
    counts: Option<Arc<dyn Fn(&Parts) -> bool + Send + Sync>>,
    /// Whether to refund the charge if this is dropped.
    refunds: bool,
    /// Whether the service runs. If it panics, this stays so.
    is_running: bool,
}

impl Settlements {
    /// Whether charges stay whatever happens.
    pub(super) fn is_none(&self) -> bool {
        !self.may_refund() && self.reserved.is_empty()
    }

    fn may_refund(&self) -> bool {
        self.counts.is_some() || self.refunds_cancelled
    }

    /// The settlement of a request. Inserts the reservation into its extensions. `None` if the request is denied, which a
    /// soft layer admits.
    pub(super) fn start(
        &self,
        limiter: &Limiter,
        decision: &Decision,
        extensions: &mut Extensions,
    ) -> Option<Box<Settlement>> {
        if decision.is_denied() {
            self.cover_nothing(limiter, extensions);
            return None;
        }
        let [reservation, of_bytes] = self.reserve(limiter, decision);
        match &reservation {
            Some(reservation) => drop(extensions.insert(reservation.clone())),
            None => self.cover_nothing(limiter, extensions),
        }
        let meter = of_bytes.map(|reservation| Box::new(Meter::new(reservation)));
        let is_reserved = reservation.is_some() || meter.is_some();
        let settling = is_reserved.then(|| Box::new(Settling { reservation, meter }));
        let refundable = self.may_refund().then(|| Refundable {
            limiter: limiter.clone(),
            decision: decision.clone(),
            counts: self.counts.clone(),
            refunds: self.refunds_cancelled,
            is_running: false,
        });
        Some(Box::new(Settlement { refundable, settling }))
    }

    /// Inserts a reservation that covers nothing, for a handler that takes one, unless an outer layer has reserved units.
    pub(super) fn cover_nothing(&self, limiter: &Limiter, extensions: &mut Extensions) {
        let is_taken = self.reserved.iter().any(|reserved| !reserved.by_bytes);
        if is_taken && extensions.get::<Reservation>().is_none() {
            extensions.insert(Reservation::new(limiter, &Decision::not_limited()));
        }
    }

    /// The reservations: for the request's extensions, and for the bytes of its response.
    fn reserve(&self, limiter: &Limiter, decision: &Decision) -> [Option<Reservation>; 2] {
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
        [reserve(false), reserve(true)]
    }
}

impl Settlement {
    /// Polls the service, and notes whether it panics.
    pub(super) fn watch<T>(settlement: &mut Option<Box<Self>>, poll: impl FnOnce() -> T) -> T {
        let mut refundable = settlement.as_deref_mut().and_then(|settlement| settlement.refundable.as_mut());
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
                let refund = refundable.responded(&parts);
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

    /// The service failed without a response.
    pub(super) fn failed(mut self) {
        if let Some(refundable) = &mut self.refundable {
            // It is refunded as a cancelled one is, or if a response must show that it counts.
            refundable.refunds |= refundable.counts.is_some();
        }
    }
}

impl Refundable {
    fn responded(mut self, response: &Parts) -> Option<Refund> {
        self.refunds = false;
        let counts = self.counts.as_ref().is_none_or(|counts| counts(response));
        (!counts).then(|| {
            let work = self.limiter.begin_work();
            Refund(Some((work, self.limiter.refund(&self.decision, u64::MAX))))
        })
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
    #[expect(dead_code, reason = "only dropped")]
    reservation: Option<Reservation>,
    meter: Option<Box<Meter>>,
}

impl Settling {
    /// The body has sent so many bytes.
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

/// The bytes of a stream that are charged at once.
const PART: u64 = 256 * 1024;

impl Meter {
    const fn new(reservation: Reservation) -> Self {
        Self { reservation, bytes: 0, charged: 0 }
    }

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

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").finish_non_exhaustive()
    }
}
