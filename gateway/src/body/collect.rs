//! Collects the frames of a body into one buffer, within bounds.

use bytes::{Buf, Bytes};
use http::HeaderMap;

use super::{rejection::BodyRejectionKind, total::Share};

/// The smallest buffer.
const FIRST: usize = 1_024;

/// What a header of the trailers takes in addition to its text, as HPACK counts it (RFC 7541, section 4.1).
const PER_TRAILER: usize = 32;

/// The content of a body that is being read.
///
/// Frames are copied. A frame shares the read buffer of its connection, so kept frames of one byte would hold
/// many times the memory that is counted.
#[derive(Debug)]
pub(super) struct Collector {
    buffer: Vec<u8>,
    trailers: Option<HeaderMap>,
    trailer_bytes: usize,
    /// Covers the capacity of the buffer and the trailers.
    share: Share,
    max_bytes: usize,
    /// The least length that the body announces. The buffer does not become larger without need.
    announced: usize,
}

/// The trailers of a body, and their share of the total.
#[derive(Debug)]
pub(super) struct Trailers {
    pub(super) headers: HeaderMap,
    _share: Share,
}

impl Collector {
    pub(super) const fn new(share: Share, max_bytes: usize, announced: Option<u64>) -> Self {
        let announced = match announced {
            Some(bytes) if bytes < max_bytes as u64 => bytes as usize,
            _ => max_bytes,
        };
        Self { buffer: Vec::new(), trailers: None, trailer_bytes: 0, share, max_bytes, announced }
    }

    /// Appends a frame of data.
    pub(super) fn push(&mut self, mut data: impl Buf) -> Result<(), BodyRejectionKind> {
        let length = self.add(self.buffer.len(), data.remaining())?;
        let capacity = self.buffer.capacity();
        if length > capacity {
            // Doubled, so that each byte is copied only a few times, even if the body is longer than announced.
            let most = if length <= self.announced { self.announced } else { self.max_bytes };
            let larger = capacity.saturating_mul(2).max(FIRST).min(most).max(length);
            if !self.share.grow_to(larger) {
                return Err(BodyRejectionKind::Overloaded);
            }
            self.buffer.reserve_exact(larger - self.buffer.len());
        }
        while data.has_remaining() {
            let chunk = data.chunk();
            self.buffer.extend_from_slice(chunk);
            let read = chunk.len();
            data.advance(read);
        }
        Ok(())
    }

    /// Takes the trailers, which end the body.
    pub(super) fn end_with(&mut self, trailers: HeaderMap) -> Result<(), BodyRejectionKind> {
        let size = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            name.as_str().len() + value.len() + PER_TRAILER
        };
        let bytes = trailers.iter().map(size).sum();
        self.add(self.buffer.len(), bytes)?;
        if !self.share.grow_to(self.buffer.capacity().saturating_add(bytes)) {
            return Err(BodyRejectionKind::Overloaded);
        }
        (self.trailers, self.trailer_bytes) = (Some(trailers), bytes);
        Ok(())
    }

    /// The sum, if it is within the bound on one body.
    fn add(&self, length: usize, more: usize) -> Result<usize, BodyRejectionKind> {
        let sum = length.checked_add(more).filter(|sum| *sum <= self.max_bytes);
        sum.ok_or(BodyRejectionKind::TooLarge)
    }

    /// The content, which keeps its share of the total until its last clone is dropped.
    pub(super) fn finish(mut self) -> (Bytes, Option<Trailers>) {
        self.buffer.shrink_to_fit();
        let length = self.buffer.len();
        let (share, rest) = self.share.split(length);
        let (rest, _) = rest.split(self.trailer_bytes);
        let content = match length {
            0 => Bytes::new(),
            _ => Bytes::from_owner(Content { buffer: self.buffer, _share: share }),
        };
        (content, self.trailers.map(|headers| Trailers { headers, _share: rest }))
    }
}

/// The memory of a body, and its share of the total.
struct Content {
    buffer: Vec<u8>,
    _share: Share,
}

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}
