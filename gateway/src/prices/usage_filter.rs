//! [`UsageFilter`]: removes the event with the usage from a stream whose client has not asked for it.

/// Removes events from a stream. It keeps an event until it is complete, and at most `max` bytes of it: a larger one
/// passes.
pub(super) struct UsageFilter {
    max: usize,
    /// The event until now.
    held: Vec<u8>,
    /// Whether the event is too large to be held.
    passes: bool,
    /// Whether the line until now has a byte.
    is_in_line: bool,
    /// Whether the last byte was a carriage return, to which a line feed belongs.
    after_return: bool,
    /// Whether the last byte ended an event, and that event was removed.
    after_event: Option<bool>,
}

impl UsageFilter {
    pub(super) const fn new(max: usize) -> Self {
        Self {
            max,
            held: Vec::new(),
            passes: false,
            is_in_line: false,
            after_return: false,
            after_event: None,
        }
    }

    /// The bytes that pass once `bytes` have come. `read` gets all of them in their order, in parts, and returns
    /// whether the part ends an event that is removed.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut read: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
        let mut passed = Vec::with_capacity(self.held.len() + bytes.len());
        while !bytes.is_empty() {
            let belongs_to_last = self.after_return && bytes.starts_with(b"\n");
            let end = match bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
                Some(end) => end + 1,
                None => bytes.len(),
            };
            let (part, rest) = bytes.split_at(end);
            let is_removed = read(part);
            self.after_return = part.ends_with(b"\r");
            match self.after_event {
                Some(was_removed) if belongs_to_last => {
                    if !was_removed {
                        passed.extend_from_slice(part);
                    }
                }
                _ => self.hold(part, belongs_to_last, is_removed, &mut passed),
            }
            bytes = rest;
        }
        passed
    }

    fn hold(&mut self, part: &[u8], belongs_to_last: bool, is_removed: bool, passed: &mut Vec<u8>) {
        self.held.extend_from_slice(part);
        let ends_line = part.ends_with(b"\r") || part.ends_with(b"\n");
        let is_empty_line = ends_line && part.len() == 1 && !self.is_in_line && !belongs_to_last;
        self.is_in_line = !ends_line;
        self.after_event = is_empty_line.then_some(is_removed && !self.passes);
        if self.after_event == Some(true) {
            self.held.clear();
        }
        self.passes = !is_empty_line && (self.passes || self.held.len() > self.max);
        if is_empty_line || self.passes {
            passed.append(&mut self.held);
        }
    }

    /// What is held when the stream ends.
    pub(super) fn rest(self) -> Vec<u8> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What passes of `parts` if events with `x` are removed.
    fn passed(max: usize, parts: &[&[u8]]) -> String {
        let (mut filter, mut passed, mut event) = (UsageFilter::new(max), Vec::new(), Vec::new());
        for part in parts {
            passed.extend(filter.push(part, |part| {
                event.extend_from_slice(part);
                let text = String::from_utf8_lossy(&event).replace("\r\n", "\n").replace('\r', "\n");
                let ends = text.ends_with("\n\n") || text == "\n";
                let is_removed = ends && text.contains('x');
                // A line feed may still belong to the event.
                if ends {
                    event.clear();
                }
                is_removed
            }));
        }
        passed.extend(filter.rest());
        String::from_utf8(passed).unwrap()
    }

    #[test]
    fn events_are_removed_however_their_lines_end_and_wherever_they_are_split() {
        for (text, expected) in [
            ("data: a\n\ndata: x\n\ndata: b\n\n", "data: a\n\ndata: b\n\n"),
            ("data: a\r\n\r\ndata: x\r\n\r\ndata: b\r\n\r\n", "data: a\r\n\r\ndata: b\r\n\r\n"),
            ("data: a\r\rdata: x\r\rdata: b\r\r", "data: a\r\rdata: b\r\r"),
            (": ping\n\nid: 7\ndata: x\n\n: ping\n\n", ": ping\n\n: ping\n\n"),
            ("\n\ndata: x\n\n\ndata: b", "\n\n\ndata: b"),
            ("data: cut x", "data: cut x"),
        ] {
            let bytes = text.as_bytes();
            assert_eq!(passed(100, &[bytes]), expected, "{text:?}");
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(passed(100, &single), expected, "{text:?}, byte by byte");
            for at in 0..bytes.len() {
                let (one, other) = bytes.split_at(at);
                assert_eq!(passed(100, &[one, &[], other]), expected, "{text:?} at {at}");
            }
        }
        // One that is too large to be held.
        let text = format!("data: a\n\ndata: x{}\n\ndata: x\n\n", "y".repeat(100));
        let single: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(passed(50, &single), text.strip_suffix("data: x\n\n").unwrap());
    }

    #[test]
    fn what_has_come_of_an_event_is_held_and_a_complete_one_passes_immediately() {
        let mut filter = UsageFilter::new(100);
        assert_eq!(filter.push(b"data: a\n\ndata: b", |_| false), b"data: a\n\n");
        assert_eq!(filter.push(b"c\n", |_| false), b"");
        assert_eq!(filter.push(b"\n", |_| false), b"data: bc\n\n");
    }
}
