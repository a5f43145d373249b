//! What happened, in order: a hash to compare two runs, and the lines themselves if they are wanted.

use std::{
    fmt::{self, Write as _},
    hash::{DefaultHasher, Hasher as _},
    sync::{Mutex, OnceLock},
};

use tokio::time::Instant;

pub(super) struct Log {
    started: Instant,
    prints: bool,
    hash: Mutex<(DefaultHasher, u64)>,
    violation: OnceLock<String>,
}

struct Hashed<'a>(&'a mut DefaultHasher);

impl fmt::Write for Hashed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Log {
    /// Call it in the runtime.
    pub(super) fn new(prints: bool) -> Self {
        Self { started: Instant::now(), prints, hash: Mutex::default(), violation: OnceLock::new() }
    }

    pub(super) fn note(&self, what: fmt::Arguments<'_>) {
        let time = self.started.elapsed();
        let (hash, steps) = &mut *self.hash.lock().unwrap();
        *steps += 1;
        write!(Hashed(hash), "{time:?} {what};").unwrap();
        if self.prints {
            eprintln!("{time:>12?} {what}");
        }
    }

    /// Records that an invariant does not hold. Only the first one counts.
    pub(super) fn violated(&self, what: fmt::Arguments<'_>) {
        self.note(format_args!("VIOLATION: {what}"));
        let _ = self.violation.set(format!("after {:?}: {what}", self.started.elapsed()));
    }

    pub(super) fn violation(&self) -> Option<&str> {
        self.violation.get().map(String::as_str)
    }

    /// The hash of all lines, and how many there are.
    pub(super) fn hash(&self) -> (u64, u64) {
        let (hash, steps) = &*self.hash.lock().unwrap();
        (hash.finish(), *steps)
    }
}
