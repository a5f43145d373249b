//! What the rest of the crate calls, with the macro `metric!`.

#![cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis has a queue, batches and leases"))]

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use ::metrics::{Counter, Gauge, Histogram, Label};

use super::{
    handle::Local,
    names::{
        BATCH_DECISIONS, DECISION_DURATION_SECONDS, ENFORCEMENT_SWITCHES, INSTANCES, LEASED_KEYS,
        LEASED_UNITS, MEMORY_KEYS, OPEN_BREAKERS, QUEUE_LENGTH, REJECTIONS_TOTAL, STORE_ERRORS_TOTAL,
    },
};
use crate::base::ErrorKind;

struct Handles {
    duration: Local<Histogram>,
    batch: Local<Histogram>,
    queue: Local<Histogram>,
    open_breakers: Local<Gauge>,
    memory_keys: Local<Gauge>,
    /// In the order of [`POSITIONS`].
    switches: [Local<Gauge>; POSITIONS.len()],
    leased_keys: Local<Gauge>,
    leased_units: Local<Gauge>,
    instances: Local<Gauge>,
    /// In the order of [`REASONS`].
    rejections: [Local<Counter>; REASONS.len()],
    /// In the order of [`KINDS`].
    errors: [Local<Counter>; KINDS.len()],
}

const REASONS: [&str; 6] =
    ["denied", "banned", "blocked", "unidentified", "unavailable", "rejected_by_service"];
const KINDS: [&str; 8] =
    ["timeout", "busy", "unreachable", "disconnected", "failed", "reply", "suspended", "other"];
const POSITIONS: [&str; 3] = ["on", "report-only", "off"];

thread_local! {
    static HANDLES: Handles = const {
        Handles {
            duration: Local::new(),
            batch: Local::new(),
            queue: Local::new(),
            open_breakers: Local::new(),
            memory_keys: Local::new(),
            switches: [const { Local::new() }; POSITIONS.len()],
            leased_keys: Local::new(),
            leased_units: Local::new(),
            instances: Local::new(),
            rejections: [const { Local::new() }; REASONS.len()],
            errors: [const { Local::new() }; KINDS.len()],
        }
    };
}

/// Calls `record`, except in a thread that is ending.
fn with(record: impl FnOnce(&Handles)) {
    let _ = HANDLES.try_with(record);
}

/// A decision has waited for Redis for `time`.
pub(crate) fn waited(time: Duration) {
    with(|handles| handles.duration.with(DECISION_DURATION_SECONDS, Vec::new, |it| it.record(time)));
}

/// A batch of this many decisions is sent.
pub(crate) fn batch_sent(decisions: usize) {
    with(|handles| handles.batch.with(BATCH_DECISIONS, Vec::new, |it| it.record(decisions as f64)));
}

/// This many decisions wait, the new one included.
pub(crate) fn enqueued(length: usize) {
    with(|handles| handles.queue.with(QUEUE_LENGTH, Vec::new, |it| it.record(length as f64)));
}

/// The counters that have no policy are shown from now on, at 0.
pub(crate) fn count_from_zero() {
    with(|handles| {
        for (kind, counter) in KINDS.into_iter().zip(&handles.errors) {
            let labels = || vec![Label::from_static_parts("kind", kind)];
            counter.with(STORE_ERRORS_TOTAL, labels, |it| it.increment(0));
        }
        for (reason, counter) in REASONS.into_iter().zip(&handles.rejections) {
            let labels = || vec![Label::from_static_parts("reason", reason)];
            counter.with(REJECTIONS_TOTAL, labels, |it| it.increment(0));
        }
    });
}

/// The store failed to make a decision.
pub(crate) fn store_failed(kind: ErrorKind) {
    let kind = match kind {
        ErrorKind::StoreTimeout => 0,
        ErrorKind::StoreBusy => 1,
        ErrorKind::StoreUnreachable => 2,
        ErrorKind::StoreDisconnected => 3,
        ErrorKind::StoreFailed | ErrorKind::ForeignValue => 4,
        ErrorKind::StoreReply => 5,
        ErrorKind::StoreSuspended => 6,
        _ => 7,
    };
    let labels = || vec![Label::from_static_parts("kind", KINDS[kind])];
    with(|handles| handles.errors[kind].with(STORE_ERRORS_TOTAL, labels, |it| it.increment(1)));
}

/// A layer rejects a request.
pub(crate) fn rejected(reason: &'static str) {
    let Some(number) = REASONS.iter().position(|known| *known == reason) else { return };
    let labels = || vec![Label::from_static_parts("reason", reason)];
    with(|handles| handles.rejections[number].with(REJECTIONS_TOTAL, labels, |it| it.increment(1)));
}

/// The number of instances that have announced themselves in Redis.
pub(crate) fn instances_seen(instances: u32) {
    with(|handles| handles.instances.with(INSTANCES, Vec::new, |it| it.set(f64::from(instances))));
}

/// The number of open breakers in this process changes by `change`.
pub(crate) fn open_breakers_changed(change: i64) {
    static OPEN: AtomicI64 = AtomicI64::new(0);
    let open = OPEN.fetch_add(change, Ordering::Relaxed) + change;
    with(|handles| handles.open_breakers.with(OPEN_BREAKERS, Vec::new, |it| it.set(open as f64)));
}

/// A switch of enforcement moves between two positions, numbered as in [`POSITIONS`]: from none if it is new, to none if it
/// is dropped.
pub(crate) fn switch_moved(from: Option<u8>, to: Option<u8>) {
    static SWITCHES: [AtomicI64; POSITIONS.len()] = [const { AtomicI64::new(0) }; POSITIONS.len()];
    let change = |position: Option<u8>, by: i64| {
        let switches = position.and_then(|position| SWITCHES.get(usize::from(position)));
        if let Some(switches) = switches {
            switches.fetch_add(by, Ordering::Relaxed);
        }
    };
    change(from, -1);
    change(to, 1);
    with(|handles| {
        for ((position, gauge), switches) in POSITIONS.into_iter().zip(&handles.switches).zip(&SWITCHES) {
            let labels = || vec![Label::from_static_parts("position", position)];
            gauge.with(ENFORCEMENT_SWITCHES, labels, |it| it.set(switches.load(Ordering::Relaxed) as f64));
        }
    });
}

/// The number of keys in all memory stores changes by `change`.
pub(crate) fn memory_keys_changed(change: i64) {
    /// Counted here, because a recorder may be installed later.
    static KEYS: AtomicI64 = AtomicI64::new(0);
    let keys = KEYS.fetch_add(change, Ordering::Relaxed) + change;
    with(|handles| handles.memory_keys.with(MEMORY_KEYS, Vec::new, |it| it.set(keys as f64)));
}

/// What a store has on lease, as the gauges know it.
#[derive(Debug, Default)]
pub(crate) struct Leased {
    keys: AtomicI64,
    units: AtomicI64,
}

impl Leased {
    /// Sets what the store has on lease now.
    pub(crate) fn set(&self, keys: usize, units: u64) {
        /// Of all stores.
        static KEYS: AtomicI64 = AtomicI64::new(0);
        static UNITS: AtomicI64 = AtomicI64::new(0);
        let add = |total: &AtomicI64, own: &AtomicI64, now: i64| {
            let change = now - own.swap(now, Ordering::Relaxed);
            (total.fetch_add(change, Ordering::Relaxed) + change) as f64
        };
        let keys = add(&KEYS, &self.keys, keys as i64);
        let units = add(&UNITS, &self.units, i64::try_from(units).unwrap_or(i64::MAX));
        with(|handles| {
            handles.leased_keys.with(LEASED_KEYS, Vec::new, |it| it.set(keys));
            handles.leased_units.with(LEASED_UNITS, Vec::new, |it| it.set(units));
        });
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}
