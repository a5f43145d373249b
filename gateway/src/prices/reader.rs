//! [`Reader`]: finds the usage in the bytes of a body.

use http::{HeaderMap, header};

use super::{
    api::Api,
    events::{Event, Events},
    tally::Tally,
    usage_filter::UsageFilter,
};

/// Reads a body while it passes.
pub(super) struct Reader {
    api: Api,
    form: Form,
    /// Removes the event with the usage from a stream.
    filter: Option<UsageFilter>,
    /// The bytes of the body until now.
    bytes: u64,
    /// The bytes that the headers announce.
    announced: u64,
}

enum Form {
    Events(Events),
    /// A whole answer until now.
    Whole {
        json: Vec<u8>,
        max: usize,
    },
    /// An answer that is larger than what may be kept.
    TooLarge,
    /// A body with another encoding.
    Encoded,
}

/// How a body has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    /// The client has left, or the upstream service has broken off.
    Cut,
}

impl Reader {
    /// A reader of a body with these headers, which keeps at most `max` bytes. If `hides_usage`, it removes the
    /// event with the usage from a stream.
    pub(super) fn new(api: Api, headers: &HeaderMap, max: usize, hides_usage: bool) -> Self {
        let is_identity = |encoding: &header::HeaderValue| {
            encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")
        };
        let is_events = headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
            kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
        });
        let form = if headers.get_all(header::CONTENT_ENCODING).iter().any(|one| !is_identity(one)) {
            Form::Encoded
        } else if is_events {
            Form::Events(Events::new(max))
        } else {
            Form::Whole { json: Vec::new(), max }
        };
        let announced =
            headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let filter = (hides_usage && matches!(form, Form::Events(_))).then(|| UsageFilter::new(max));
        Self { api, form, filter, bytes: 0, announced: announced.unwrap_or_default() }
    }

    /// Whether a part of the body is removed.
    pub(super) const fn removes_some(&self) -> bool {
        self.filter.is_some()
    }

    pub(super) const fn is_encoded(&self) -> bool {
        matches!(self.form, Form::Encoded)
    }

    /// The bytes of the body until now.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the next bytes. Returns whether `tally` may have changed, and the bytes that pass instead of these.
    pub(super) fn push(&mut self, bytes: &[u8], tally: &mut Tally) -> (bool, Option<Vec<u8>>) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        let has_changed = match &mut self.form {
            Form::Events(events) => {
                let before = tally.usage();
                let mut read = |part: &[u8]| {
                    let mut is_removed = false;
                    events.push(part, |event| is_removed = add(self.api, event, tally));
                    is_removed
                };
                let passed = match &mut self.filter {
                    Some(filter) => Some(filter.push(bytes, read)),
                    None => {
                        read(bytes);
                        None
                    }
                };
                return (tally.usage() != before, passed);
            }
            Form::Whole { json, max } if json.len().saturating_add(bytes.len()) > *max => {
                self.form = Form::TooLarge;
                false
            }
            Form::Whole { json, .. } => {
                json.extend_from_slice(bytes);
                false
            }
            Form::TooLarge | Form::Encoded => false,
        };
        (has_changed, None)
    }

    /// The body has ended. Returns whether something could be read or counted, and the last bytes that pass.
    pub(super) fn finish(mut self, end: End, tally: &mut Tally) -> (bool, Vec<u8>) {
        let mut is_removed = false;
        let is_known = self.read_end(end, tally, &mut is_removed);
        let rest = self.filter.filter(|_| !is_removed).map(UsageFilter::rest);
        (is_known, rest.unwrap_or_default())
    }

    /// Sets `is_removed` if the last event is one.
    fn read_end(&mut self, end: End, tally: &mut Tally, is_removed: &mut bool) -> bool {
        // The upstream service had made all of a whole answer.
        let bytes = if end == End::Cut { self.bytes.max(self.announced) } else { self.bytes };
        match &mut self.form {
            Form::Events(events) => {
                let api = self.api;
                events.finish(|event| match event {
                    // A part of an event that was cut.
                    Event::Data(data) if api.read(data).is_none() => {}
                    event => *is_removed = add(api, event, tally),
                });
                true
            }
            Form::Whole { json, .. } => {
                match self.api.read(json) {
                    Some(chunk) => tally.add(chunk),
                    None if bytes == 0 && end == End::Cut => return false,
                    None => tally.add_text(bytes),
                }
                true
            }
            // A client chooses its encoding, so the bytes of an encoded body say little.
            Form::TooLarge | Form::Encoded => false,
        }
    }
}

/// Returns whether the event has only the usage.
fn add(api: Api, event: Event<'_>, tally: &mut Tally) -> bool {
    match event {
        Event::Data(b"[DONE]") => {}
        Event::Data(data) => match api.read(data) {
            Some(chunk) => {
                tally.add(chunk);
                return chunk.is_only_usage;
            }
            None => tally.add_text(data.len() as u64),
        },
        Event::Skipped(bytes) => tally.add_text(bytes),
    }
    false
}
