//! The functions that the rest of the crate calls, with the macro `metric!`.

#![cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis has a queue, batches and leases"))]

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    thread::LocalKey,
    time::Duration,
};

use ::metrics::{Counter, Gauge, Histogram, Label, Recorder};

use super::{
    handle::{Handle, LocalHandle, SharedHandles, observe, register},
    names,
};
use crate::base::ErrorKind;

const REASONS: [&str; 6] =
    ["denied", "banned", "blocked", "unidentified", "unavailable", "rejected_by_service"];
const KINDS: [&str; 8] =
    ["timeout", "busy", "unreachable", "disconnected", "failed", "reply", "suspended", "other"];
const POSITIONS: [&str; 3] = ["on", "report-only", "off"];

/// Handles of one metric, each with a value of its label.
type Labeled<H, const N: usize> = LocalKey<[LocalHandle<H>; N]>;

thread_local! {
    static DURATION: LocalHandle<Histogram> = const { LocalHandle::new(names::DECISION_DURATION_SECONDS) };
    static BATCH: LocalHandle<Histogram> = const { LocalHandle::new(names::BATCH_DECISIONS) };
    static QUEUE: LocalHandle<Histogram> = const { LocalHandle::new(names::QUEUE_LENGTH) };
    static OPEN_BREAKERS: LocalHandle<Gauge> = const { LocalHandle::new(names::OPEN_BREAKERS) };
    static MEMORY_KEYS: LocalHandle<Gauge> = const { LocalHandle::new(names::MEMORY_KEYS) };
    static LEASED_KEYS: LocalHandle<Gauge> = const { LocalHandle::new(names::LEASED_KEYS) };
    static LEASED_UNITS: LocalHandle<Gauge> = const { LocalHandle::new(names::LEASED_UNITS) };
    static INSTANCES: LocalHandle<Gauge> = const { LocalHandle::new(names::INSTANCES) };
    static SWITCHES: [LocalHandle<Gauge>; POSITIONS.len()] =
        const { [const { LocalHandle::new(names::ENFORCEMENT_SWITCHES) }; POSITIONS.len()] };
    static REJECTIONS: [LocalHandle<Counter>; REASONS.len()] =
        const { [const { LocalHandle::new(names::REJECTIONS_TOTAL) }; REASONS.len()] };
    static ERRORS: [LocalHandle<Counter>; KINDS.len()] =
        const { [const { LocalHandle::new(names::STORE_ERRORS_TOTAL) }; KINDS.len()] };
}

/// Calls `record` with the handle, except in a thread that is ending.
fn with<H: Handle>(handle: &'static LocalKey<LocalHandle<H>>, record: impl FnOnce(&H)) {
    let _ = handle.try_with(|handle| handle.with(Vec::new, record));
}

/// [`with`] for the value of `label` with this number.
fn with_label<H: Handle, const N: usize>(
    handles: &'static Labeled<H, N>,
    (label, values): (&'static str, [&'static str; N]),
    number: usize,
    record: impl FnOnce(&H),
) {
    let labels = || vec![Label::from_static_parts(label, values[number])];
    let _ = handles.try_with(|handles| handles[number].with(labels, record));
}

/// A decision has waited for Redis for `time`.
pub(crate) fn waited(time: Duration) {
    with(&DURATION, |it| it.record(time));
}

/// A batch of this many decisions is sent.
pub(crate) fn batch_sent(decisions: usize) {
    with(&BATCH, |it| it.record(decisions as f64));
}

/// This many decisions wait, the new one included.
pub(crate) fn enqueued(length: usize) {
    with(&QUEUE, |it| it.record(length as f64));
}

/// The counters that have no policy are shown from now on, at 0.
pub(crate) fn count_from_zero() {
    (0..KINDS.len()).for_each(|kind| errors(kind, 0));
    (0..REASONS.len()).for_each(|reason| rejections(reason, 0));
}

/// The store failed to make a decision.
pub(crate) fn store_failed(kind: ErrorKind) {
    if let Some(place) = KINDS.iter().position(|known| *known == kind.as_str()) {
        errors(place, 1);
    }
}

fn errors(kind: usize, more: u64) {
    with_label(&ERRORS, ("kind", KINDS), kind, |it| it.increment(more));
}

/// A layer rejects a request.
pub(crate) fn rejected(reason: &'static str) {
    if let Some(number) = REASONS.iter().position(|known| *known == reason) {
        rejections(number, 1);
    }
}

fn rejections(reason: usize, more: u64) {
    with_label(&REJECTIONS, ("reason", REASONS), reason, |it| it.increment(more));
}

/// `more` keys of `policy` have used this share of their quota. With 0, the counter is shown from then on.
pub(crate) fn threshold_reached(policy: &str, percent: u8, more: u64) {
    let labels = [("policy", policy.to_owned()), ("percent", percent.to_string())];
    observe(|| ::metrics::counter!(names::THRESHOLDS_TOTAL, &labels).increment(more));
}

/// The number of instances that have announced themselves in Redis.
pub(crate) fn instances_seen(instances: u32) {
    with(&INSTANCES, |it| it.set(f64::from(instances)));
}

/// Adds `change` to `total`, which is counted here because a recorder may be installed later.
fn add(total: &AtomicI64, change: i64) -> f64 {
    (total.fetch_add(change, Ordering::Relaxed) + change) as f64
}

/// The number of open breakers in this process changes by `change`.
pub(crate) fn open_breakers_changed(change: i64) {
    static OPEN: AtomicI64 = AtomicI64::new(0);
    let open = add(&OPEN, change);
    with(&OPEN_BREAKERS, |it| it.set(open));
}

/// A switch of enforcement moves between two positions, numbered as in [`POSITIONS`]: from none if it is new,
/// to none if it is dropped.
pub(crate) fn switch_moved(from: Option<u8>, to: Option<u8>) {
    static TOTALS: [AtomicI64; POSITIONS.len()] = [const { AtomicI64::new(0) }; POSITIONS.len()];
    for (number, total) in TOTALS.iter().enumerate() {
        let is_at = |position: Option<u8>| position.is_some_and(|position| usize::from(position) == number);
        let switches = add(total, i64::from(is_at(to)) - i64::from(is_at(from)));
        with_label(&SWITCHES, ("position", POSITIONS), number, |it| it.set(switches));
    }
}

/// The number of keys in all memory stores changes by `change`.
pub(crate) fn memory_keys_changed(change: i64) {
    static KEYS: AtomicI64 = AtomicI64::new(0);
    let keys = add(&KEYS, change);
    with(&MEMORY_KEYS, |it| it.set(keys));
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
        /// The sums over all stores.
        static KEYS: AtomicI64 = AtomicI64::new(0);
        static UNITS: AtomicI64 = AtomicI64::new(0);
        let change = |own: &AtomicI64, now: i64| now - own.swap(now, Ordering::Relaxed);
        let keys = add(&KEYS, change(&self.keys, keys as i64));
        let units = add(&UNITS, change(&self.units, i64::try_from(units).unwrap_or(i64::MAX)));
        with(&LEASED_KEYS, |it| it.set(keys));
        with(&LEASED_UNITS, |it| it.set(units));
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}

const VERDICTS: [&str; 8] =
    ["admitted", "delayed", "denied", "shadow_denied", "banned", "shed", "degraded", "borrowed"];
/// The number of sources whose counters are registered once: today's, and a spare one. The counter of a further
/// source would be looked up at each use.
const SOURCES: usize = 6;

/// The handles of a policy. A clone begins without any, because its policy may get another name.
pub(crate) struct PolicyHandles(SharedHandles<Handles>);

/// What a policy has registered with a recorder.
struct Handles {
    decisions: [OnceLock<Counter>; VERDICTS.len() * SOURCES],
    used_share: OnceLock<Histogram>,
}

// Not derived, because only short arrays have a default.
impl Default for Handles {
    fn default() -> Self {
        Self { decisions: [const { OnceLock::new() }; VERDICTS.len() * SOURCES], used_share: OnceLock::new() }
    }
}

/// A label's value, and its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) name: &'static str,
    pub(crate) number: usize,
}

/// A label's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Admitted,
    Delayed,
    Denied,
    ShadowDenied,
    Banned,
    Shed,
    Degraded,
    Borrowed,
}

impl PolicyHandles {
    pub(crate) const fn new() -> Self {
        Self(SharedHandles::new())
    }

    /// Calls `record` with what records the metrics of the policy `name`.
    #[inline]
    pub(crate) fn with(&self, name: &str, record: impl FnOnce(&PolicyMetrics<'_>)) {
        self.0.with(|recorder, handles| record(&PolicyMetrics { recorder, handles, name }));
    }
}

/// Records the metrics of a policy.
pub(crate) struct PolicyMetrics<'a> {
    recorder: &'a dyn Recorder,
    handles: &'a Handles,
    name: &'a str,
}

impl PolicyMetrics<'_> {
    /// Adds `decisions`. With 0, the counter is shown from then on.
    #[inline]
    pub(crate) fn decided(&self, verdict: Verdict, source: Source, decisions: u64) {
        let verdict = verdict as usize;
        let register = || {
            let labels = vec![
                self.label(),
                Label::from_static_parts("verdict", VERDICTS[verdict]),
                Label::from_static_parts("source", source.name),
            ];
            register::<Counter>(self.recorder, names::DECISIONS_TOTAL, labels)
        };
        match self.handles.decisions.get(source.number * VERDICTS.len() + verdict) {
            Some(counter) => counter.get_or_init(register).increment(decisions),
            None => register().increment(decisions),
        }
    }

    /// A key has used `used` units of `capacity`.
    #[inline]
    pub(crate) fn used(&self, used: u64, capacity: u64) {
        self.used_share(capacity).record(used as f64 / capacity as f64);
    }

    /// Shows the capacity. A policy's capacity never changes, so it is set when the histogram is registered.
    #[inline]
    pub(crate) fn used_share(&self, capacity: u64) -> &Histogram {
        self.handles.used_share.get_or_init(|| {
            register::<Gauge>(self.recorder, names::CAPACITY_UNITS, vec![self.label()]).set(capacity as f64);
            register(self.recorder, names::USED_SHARE, vec![self.label()])
        })
    }

    fn label(&self) -> Label {
        Label::new("policy", self.name.to_owned())
    }
}
