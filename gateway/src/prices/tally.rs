//! [`Tally`]: the tokens of a call, reported or counted.

use super::{bill::Basis, chunk::Chunk, usage::Usage};

/// The tokens of a call until now: what was reported last, and what was counted since.
pub(super) struct Tally {
    bytes_per_token: u64,
    /// The usage until the last report. Before the first one, the estimated prompt.
    usage: Usage,
    has_report: bool,
    /// Whether a report had the output.
    has_output: bool,
    /// The events that had text since the report, and the bytes of that text.
    events: u64,
    text: u64,
    /// Whether the upstream service has reported an error.
    has_error: bool,
}

impl Tally {
    pub(super) const fn new(prompt: u64, bytes_per_token: u64) -> Self {
        let usage = Usage::new(prompt, 0);
        Self {
            bytes_per_token,
            usage,
            has_report: false,
            has_output: false,
            events: 0,
            text: 0,
            has_error: false,
        }
    }

    /// An event, or a whole answer.
    pub(super) fn add(&mut self, chunk: Chunk) {
        self.has_error |= chunk.is_error;
        self.add_text(chunk.text);
        if let Some(report) = chunk.report {
            self.usage = report.over(self.usage);
            self.has_report = true;
            if report.output.is_some() {
                (self.has_output, self.events, self.text) = (true, 0, 0);
            }
        }
    }

    /// This many bytes of text, in one event.
    pub(super) fn add_text(&mut self, bytes: u64) {
        if bytes > 0 {
            self.events = self.events.saturating_add(1);
            self.text = self.text.saturating_add(bytes);
        }
    }

    /// The tokens until now. A token is one event with text, or this many bytes of it, if that is more.
    pub(super) fn usage(&self) -> Usage {
        let counted = self.text.div_ceil(self.bytes_per_token).max(self.events);
        Usage { output: self.usage.output.saturating_add(counted), ..self.usage }
    }

    /// What the usage is based on.
    pub(super) const fn basis(&self) -> Basis {
        match (self.has_output, self.events) {
            (true, 0) => Basis::Reported,
            _ => Basis::Counted,
        }
    }

    /// Whether the upstream service has failed before it has reported a usage or sent any text.
    pub(super) const fn has_failed(&self) -> bool {
        self.has_error && !self.has_report && self.events == 0
    }
}
