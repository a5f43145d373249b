//! [`Events`]: server-sent events, from bytes that arrive in any parts.

use std::mem;

/// Reads the data of server-sent events, as the HTML standard defines them. Keeps at most `max` bytes.
pub(super) struct Events {
    max: usize,
    /// The line until now. Empty if the current part of the body has all of it.
    line: Vec<u8>,
    /// The data of the event until now, with a line feed after each line.
    data: Vec<u8>,
    /// The bytes of the event until now, if they are too many to be kept.
    skipped: Option<u64>,
    /// Whether the line until now has a byte, even if it was skipped.
    is_in_line: bool,
    /// Whether the last byte was a carriage return, so that a line feed ends no other line.
    after_return: bool,
    is_first_line: bool,
}

/// An event that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    Data(&'a [u8]),
    /// One that is too large to be read, with this number of bytes.
    Skipped(u64),
}

impl Events {
    pub(super) const fn new(max: usize) -> Self {
        Self {
            max,
            line: Vec::new(),
            data: Vec::new(),
            skipped: None,
            is_in_line: false,
            after_return: false,
            is_first_line: true,
        }
    }

    /// Reads the next bytes, and calls `read` for each event that they complete.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut read: impl FnMut(Event<'_>)) {
        if bytes.is_empty() {
            return;
        }
        if mem::take(&mut self.after_return) && bytes.first() == Some(&b'\n') {
            bytes = bytes.get(1..).unwrap_or_default();
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
            let (part, rest) = bytes.split_at(end);
            self.end_of_line(part, &mut read);
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
                [] => rest,
            };
            self.after_return = bytes.is_empty() && rest.ends_with(b"\r");
        }
        if !bytes.is_empty() {
            self.is_in_line = true;
            if self.has_room(bytes.len()) {
                self.line.extend_from_slice(bytes);
            }
        }
    }

    /// The body has ended or was cut. Calls `read` for the last event, even if no empty line ends it.
    pub(super) fn finish(&mut self, mut read: impl FnMut(Event<'_>)) {
        if self.is_in_line {
            self.end_of_line(b"", &mut read);
        }
        self.end_of_event(&mut read);
    }

    /// `part` is the end of a line.
    fn end_of_line(&mut self, part: &[u8], read: &mut impl FnMut(Event<'_>)) {
        let is_empty = !mem::take(&mut self.is_in_line) && part.is_empty();
        if is_empty {
            self.end_of_event(read);
        } else if self.has_room(part.len()) {
            let mut line = mem::take(&mut self.line);
            line.extend_from_slice(part);
            self.read_line(&line);
            line.clear();
            // Keeps the memory for the next line.
            self.line = line;
        }
    }

    fn end_of_event(&mut self, read: &mut impl FnMut(Event<'_>)) {
        if let Some(bytes) = self.skipped.take() {
            read(Event::Skipped(bytes));
        } else if let Some(data) = self.data.strip_suffix(b"\n") {
            read(Event::Data(data));
        }
        self.data.clear();
    }

    fn read_line(&mut self, line: &[u8]) {
        let line = match mem::take(&mut self.is_first_line) {
            true => line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line),
            false => line,
        };
        let value = match line.strip_prefix(b"data") {
            Some([]) => &[][..],
            Some([b':', b' ', value @ ..] | [b':', value @ ..]) => value,
            // A comment, or another field.
            _ => return,
        };
        self.data.extend_from_slice(value);
        self.data.push(b'\n');
    }

    /// Whether `more` bytes can be kept. If not, the event is skipped.
    fn has_room(&mut self, more: usize) -> bool {
        let kept = self.line.len().saturating_add(self.data.len());
        if self.skipped.is_none() && kept.saturating_add(more) > self.max {
            self.skipped = Some(kept as u64);
            (self.line, self.data) = (Vec::new(), Vec::new());
        }
        if let Some(bytes) = &mut self.skipped {
            *bytes = bytes.saturating_add(more as u64);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of `parts`, and the most bytes that were kept.
    fn read(max: usize, parts: &[&[u8]]) -> (Vec<String>, usize) {
        let (mut events, mut found, mut kept) = (Events::new(max), Vec::new(), 0);
        let mut note = |event: Event<'_>| {
            found.push(match event {
                Event::Data(data) => String::from_utf8_lossy(data).into_owned(),
                Event::Skipped(bytes) => format!("skipped {bytes}"),
            });
        };
        for part in parts {
            events.push(part, &mut note);
            kept = kept.max(events.line.capacity() + events.data.capacity());
        }
        events.finish(&mut note);
        (found, kept)
    }

    #[test]
    fn events_are_read_however_their_lines_end_and_wherever_they_are_split() {
        let rows: [(&str, &[&str]); 10] = [
            ("data: a\r\ndata: b\r\n\r\n", &["a\nb"]),
            ("data: a\n\ndata: b\n\n", &["a", "b"]),
            ("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]),
            ("data: a\r\rdata: b\r\r", &["a", "b"]),
            ("\u{feff}data:a\n\n", &["a"]),
            (": comment\nevent: x\nid: 7\nretry: 1\ndata: a\ndata:  b\ndata\n\n", &["a\n b\n"]),
            ("event: ping\n\n\n\n", &[]),
            ("data\n\n", &[""]),
            ("database: x\nmeta data: y\n\n", &[]),
            ("data: a\n\ndata: last", &["a", "last"]),
        ];
        for (text, expected) in rows {
            let bytes = text.as_bytes();
            assert_eq!(read(100, &[bytes]).0, expected, "{text:?}");
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(100, &single).0, expected, "{text:?}, byte by byte");
            for at in 0..bytes.len() {
                let (one, other) = bytes.split_at(at);
                assert_eq!(read(100, &[one, &[], other]).0, expected, "{text:?} at {at}");
            }
        }
    }

    #[test]
    fn a_large_event_is_skipped_and_the_next_one_is_read() {
        let large = "x".repeat(1_000);
        let text = format!("data: a\n\nevent: x\ndata: {large}\ndata: {large}\n\ndata: b\n\n");
        for size in [1, 7, 100, 10_000] {
            let parts: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let (events, kept) = read(64, &parts);
            let [first, skipped, last] = &events[..] else { panic!("{events:?}") };
            assert_eq!((&**first, &**last), ("a", "b"));
            let bytes: usize = skipped.strip_prefix("skipped ").unwrap().parse().unwrap();
            assert!((2_000..=2_100).contains(&bytes), "{bytes}");
            assert!(kept <= 256, "{kept} bytes kept in parts of {size}");
        }
    }
}
