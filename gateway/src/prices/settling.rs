//! [`Settling`]: records what a call has used until now, and settles it when it ends.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{header, response};
use tower_ratelimit::Reservation;

use super::{
    bill::{Basis, Bill},
    planned::Planned,
    reader::{End, Reader},
    tally::Tally,
    usage::Usage,
};
use crate::panics::caught;

/// The charge of a call from the moment that it is sent. If this is dropped, the call was cut.
pub(super) struct Settling {
    call: Planned,
    /// `None` once it is settled.
    reservation: Option<Reservation>,
    tally: Tally,
    /// `None` until the response begins.
    reader: Option<Reader>,
    /// The tokens and the micro-dollars up to which nothing more is charged before the end.
    enough: [u64; 2],
}

impl Settling {
    pub(super) fn new(call: Planned, reservation: Reservation) -> Self {
        let tally = Tally::new(call.estimate.input, call.settings.bytes_per_token);
        let enough = [call.estimate.tokens(), call.price.micro_dollars(&call.estimate)];
        Self { call, reservation: Some(reservation), tally, reader: None, enough }
    }

    /// The response has begun.
    pub(super) fn begin(&mut self, head: &mut response::Parts) {
        if !head.status.is_success() {
            return self.refund();
        }
        let Planned { api, hides_usage, .. } = self.call;
        let reader = Reader::new(api, &head.headers, self.call.settings.max_buffer, hides_usage);
        if reader.is_encoded() && !self.call.settings.logged.swap(true, Ordering::Relaxed) {
            log!(
                warn,
                entry = %self.call.entry,
                "the usage of an encoded body cannot be read, so the estimate is charged: send what `Call::prepare` \
                 has prepared, or decode the body first"
            );
        }
        if reader.removes_some() {
            head.headers.remove(header::CONTENT_LENGTH);
        }
        self.reader = Some(reader);
    }

    /// Whether a part of the body is removed.
    pub(super) fn removes_some(&self) -> bool {
        self.reader.as_ref().is_some_and(Reader::removes_some)
    }

    /// The body has these bytes. Returns those that pass.
    pub(super) fn push(&mut self, bytes: Bytes) -> Bytes {
        let Some(reader) = &mut self.reader else { return bytes };
        let (has_changed, passed) = reader.push(&bytes, &mut self.tally);
        if has_changed {
            self.charge();
        }
        passed.map_or(bytes, Bytes::from)
    }

    /// Records what was used until now.
    fn charge(&mut self) {
        let Some(reservation) = &self.reservation else { return };
        let usage = self.tally.usage();
        let used = [usage.tokens(), self.call.price.micro_dollars(&usage)];
        let units = || self.call.settings.units(used[0], used[1]);
        reservation.record(units());
        // What exceeds the estimate is charged before the answer ends, each time that it has grown by an
        // eighth.
        if used[0] > self.enough[0] || used[1] > self.enough[1] {
            self.enough = used.map(|units| units.saturating_add(units / 8));
            // It takes effect even if its answer is dropped.
            drop(reservation.extend_to(units()));
        }
    }

    /// The body has failed.
    pub(super) fn failed(&mut self) {
        match &self.reader {
            Some(reader) if reader.bytes() > 0 => drop(self.end(End::Cut)),
            _ => self.refund(),
        }
    }

    /// The body has ended, or the client has left. Returns the last bytes that pass.
    pub(super) fn end(&mut self, end: End) -> Vec<u8> {
        let reader = self.reader.take();
        let (is_known, rest) = reader.map(|reader| reader.finish(end, &mut self.tally)).unwrap_or_default();
        if self.tally.has_failed() {
            self.refund();
            return rest;
        }
        let (usage, basis) = (self.tally.usage(), self.tally.basis());
        let is_reported = is_known && basis == Basis::Reported;
        if let (Some((learned, key)), true, End::Complete) = (&self.call.learned, is_reported, end)
            && self.reservation.is_some()
        {
            learned.learn(key, &self.call.entry, usage.output);
        }
        // A vendor may have billed tokens that it has not sent, and a client chooses when it leaves.
        let estimated = self.call.estimate.output;
        if is_reported || is_known && self.call.counts_text || usage.output > estimated {
            self.settle(usage, basis);
        } else {
            self.settle(Usage { output: estimated, ..usage }, Basis::Estimated);
        }
        rest
    }

    /// The upstream service has failed.
    pub(super) fn refund(&mut self) {
        self.settle(Usage::default(), Basis::Refunded);
    }

    fn settle(&mut self, usage: Usage, basis: Basis) {
        let Some(reservation) = self.reservation.take() else { return };
        let Planned { model, price, version, settings, .. } = &self.call;
        let micro_dollars = price.micro_dollars(&usage);
        // What is recorded is charged when the last handle is dropped.
        reservation.record(settings.units(usage.tokens(), micro_dollars));
        drop(reservation);
        // The model is any text of a client.
        log!(debug, entry = %self.call.entry, ?usage, micro_dollars, ?basis, prices = %version, "a call is settled");
        if let Some(settled) = &settings.on_settled {
            let (model, prices_version) = (model.clone(), version.clone());
            let settlement = Bill { model, usage, micro_dollars, basis, prices_version };
            let is_called = caught(|| settled(&settlement)).is_some();
            if !is_called && !settings.has_panicked.swap(true, Ordering::Relaxed) {
                log!(
                    error,
                    "the function of `on_settled` panicked; the call is settled, and further panics are not logged"
                );
            }
        }
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        drop(self.end(End::Cut));
    }
}
