//! What is logged in a thread.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_subscriber::fmt::MakeWriter;

use crate::listen_with;

/// The lines of all levels that are logged in a thread.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// The lines of this thread, until the guard is dropped.
    pub fn listen() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(Level::TRACE);
        let guard = listen_with(subscriber.with_writer(lines.clone()).finish());
        (lines, guard)
    }

    /// How many lines contain `what`.
    pub fn with(&self, what: &str) -> usize {
        self.text().lines().filter(|line| line.contains(what)).count()
    }

    /// The text since the last call.
    pub fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Calls a function with the message of each line of the crate.
pub struct EachLine<F>(pub F);

impl<F: Fn(&str) + 'static> Subscriber for EachLine<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("tower_ratelimit")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        (self.0)(&message.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
