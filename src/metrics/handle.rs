//! Handles, kept with the recorder that they were registered with: looking one up takes longer than a
//! decision may.
//!
//! A recorder may be installed after the first decision, and tests have separate recorders. So each use
//! compares the address of the active recorder. It identifies the recorder as long as that exists.

use std::{
    cell::{Cell, RefCell},
    ptr,
    sync::{OnceLock, atomic::AtomicBool},
};

use ::metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, with_recorder};

use super::names;
use crate::base::panics;

const METADATA: Metadata<'static> =
    Metadata::new("tower_ratelimit", Level::INFO, Some("tower_ratelimit::metrics"));

/// Calls `record`, which calls a recorder.
#[inline]
pub(super) fn observe(record: impl FnOnce()) {
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    panics::observe(&HAS_PANICKED, "the recorder of the metrics", record);
}

/// A type of handle that a recorder registers for a name and its labels.
pub(super) trait Handle: Sized {
    fn register(recorder: &dyn Recorder, key: &Key) -> Self;
}

impl Handle for Counter {
    fn register(recorder: &dyn Recorder, key: &Key) -> Self {
        recorder.register_counter(key, &METADATA)
    }
}

impl Handle for Gauge {
    fn register(recorder: &dyn Recorder, key: &Key) -> Self {
        recorder.register_gauge(key, &METADATA)
    }
}

impl Handle for Histogram {
    fn register(recorder: &dyn Recorder, key: &Key) -> Self {
        recorder.register_histogram(key, &METADATA)
    }
}

struct Registered<H> {
    /// The address of the recorder.
    recorder: usize,
    handle: H,
}

fn address(recorder: &dyn Recorder) -> usize {
    ptr::from_ref(recorder).cast::<()>().addr()
}

/// Registers the handle for the name and `labels`, and describes the metrics to a recorder that is new to this
/// thread.
#[cold]
pub(super) fn register<H: Handle>(recorder: &dyn Recorder, name: &'static str, labels: Vec<Label>) -> H {
    let active = Some(address(recorder));
    if DESCRIBED.replace(active) != active {
        names::describe_to(recorder);
    }
    H::register(recorder, &Key::from_parts(KeyName::from_const_str(name), labels))
}

thread_local! {
    /// The recorder that got the descriptions last.
    static DESCRIBED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A handle in a thread, for the latest recorder.
pub(super) struct LocalHandle<H> {
    name: &'static str,
    registered: RefCell<Option<Registered<H>>>,
}

impl<H: Handle> LocalHandle<H> {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, registered: RefCell::new(None) }
    }

    /// Calls `record` with the handle for the name and `labels`, which are the same in each call.
    pub(super) fn with(&self, labels: impl FnOnce() -> Vec<Label>, record: impl FnOnce(&H)) {
        observe(|| {
            with_recorder(|recorder| {
                // The cell is borrowed already only if a recorder itself makes decisions.
                let Ok(mut registered) = self.registered.try_borrow_mut() else { return };
                match &*registered {
                    Some(known) if known.recorder == address(recorder) => record(&known.handle),
                    _ => {
                        let handle = register(recorder, self.name, labels());
                        let new = Registered { recorder: address(recorder), handle };
                        record(&registered.insert(new).handle);
                    }
                }
            })
        });
    }
}

/// Handles that threads share, for the first two recorders. The first is often the facade's no-op recorder.
/// With a third recorder, each use registers again.
pub(super) struct SharedHandles<H>([OnceLock<Registered<Box<H>>>; 2]);

impl<H: Default> SharedHandles<H> {
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; 2])
    }

    /// Calls `record` with the active recorder and its handles, which begin as their default.
    #[inline]
    pub(super) fn with(&self, record: impl FnOnce(&dyn Recorder, &H)) {
        observe(|| {
            with_recorder(|recorder| {
                let mut known = self.0.iter().filter_map(OnceLock::get);
                if let Some(known) = known.find(|known| known.recorder == address(recorder)) {
                    return record(recorder, &known.handle);
                }
                let mut registered = Registered { recorder: address(recorder), handle: Box::default() };
                record(recorder, &registered.handle);
                for place in &self.0 {
                    match place.set(registered) {
                        Ok(()) => return,
                        Err(back) => registered = back,
                    }
                }
            })
        });
    }
}
