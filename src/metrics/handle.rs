//! Handles, kept with the recorder that they were registered with: looking one up takes longer than a
//! decision may.
//!
//! A recorder may be installed after the first decision, and tests have separate recorders. So each use
//! compares the address of the active recorder. It identifies the recorder as long as that exists.

use std::{
    cell::{Cell, RefCell},
    ptr,
    sync::OnceLock,
};

use ::metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, with_recorder};

use super::names;

const METADATA: Metadata<'static> =
    Metadata::new("tower_ratelimit", Level::INFO, Some("tower_ratelimit::metrics"));

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

impl<H: Handle> Registered<H> {
    #[cold]
    fn with(recorder: &dyn Recorder, name: &'static str, labels: impl FnOnce() -> Vec<Label>) -> Self {
        let now = Some(address(recorder));
        if DESCRIBED.replace(now) != now {
            names::describe_to(recorder);
        }
        let key = Key::from_parts(KeyName::from_const_str(name), labels());
        Self { recorder: address(recorder), handle: H::register(recorder, &key) }
    }
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
        with_recorder(|recorder| {
            // The cell is borrowed already only if a recorder itself makes decisions.
            let Ok(mut registered) = self.registered.try_borrow_mut() else { return };
            match &*registered {
                Some(known) if known.recorder == address(recorder) => record(&known.handle),
                _ => record(&registered.insert(Registered::with(recorder, self.name, labels)).handle),
            }
        });
    }
}

/// Handles that threads share, for the first two recorders. The first is often the facade's no-op recorder.
/// With a third recorder, each use registers again.
pub(super) struct SharedHandle<H>([OnceLock<Registered<H>>; 2]);

impl<H: Handle> SharedHandle<H> {
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; 2])
    }

    /// See [`LocalHandle::with`].
    pub(super) fn with(
        &self,
        name: &'static str,
        labels: impl FnOnce() -> Vec<Label>,
        record: impl FnOnce(&H),
    ) {
        with_recorder(|recorder| {
            let mut known = self.0.iter().filter_map(OnceLock::get);
            if let Some(known) = known.find(|known| known.recorder == address(recorder)) {
                return record(&known.handle);
            }
            let mut registered = Registered::with(recorder, name, labels);
            record(&registered.handle);
            for place in &self.0 {
                match place.set(registered) {
                    Ok(()) => return,
                    Err(back) => registered = back,
                }
            }
        });
    }
}
