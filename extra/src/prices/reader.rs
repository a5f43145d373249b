//! [`Reader`]: finds the usage in the bytes of a body.

use http::{HeaderMap, header};

use super::{
    api::Api,
    events::{Event, Events},
    tally::Tally,
};

/// Reads a body while it passes.
pub(super) struct Reader {
    api: Api,
    form: Form,
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
    /// A reader of a body with these headers, which keeps at most `max` bytes.
    pub(super) fn new(api: Api, headers: &HeaderMap, max: usize) -> Self {
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
        Self { api, form, bytes: 0, announced: announced.unwrap_or_default() }
    }

    pub(super) const fn is_encoded(&self) -> bool {
        matches!(self.form, Form::Encoded)
    }

    /// The bytes of the body until now.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the next bytes. Returns whether `tally` may have changed.
    pub(super) fn push(&mut self, bytes: &[u8], tally: &mut Tally) -> bool {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        match &mut self.form {
            Form::Events(events) => {
                let before = tally.usage();
                events.push(bytes, |event| add(self.api, event, tally));
                tally.usage() != before
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
        }
    }

    /// The body has ended. Returns false if nothing could be read or counted.
    pub(super) fn finish(&mut self, end: End, tally: &mut Tally) -> bool {
        // The upstream service had made all of a whole answer.
        let bytes = if end == End::Cut { self.bytes.max(self.announced) } else { self.bytes };
        match &mut self.form {
            Form::Events(events) => {
                let api = self.api;
                events.finish(|event| match event {
                    // A part of an event that was cut.
                    Event::Data(data) if api.read(data).is_none() => {}
                    event => add(api, event, tally),
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
            Form::TooLarge => false,
            Form::Encoded if bytes == 0 && end == End::Cut => false,
            Form::Encoded => {
                tally.add_text(bytes);
                true
            }
        }
    }
}

fn add(api: Api, event: Event<'_>, tally: &mut Tally) {
    match event {
        Event::Data(b"[DONE]") => {}
        Event::Data(data) => match api.read(data) {
            Some(chunk) => tally.add(chunk),
            None => tally.add_text(data.len() as u64),
        },
        Event::Skipped(bytes) => tally.add_text(bytes),
    }
}
