//! The content of a request's body, in the extensions of the request.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;
use tower_ratelimit::{Error, ErrorKind};

/// The content of a request's body, which a [`BufferBodyLayer`](super::BufferBodyLayer) has put into the
/// extensions of the request, or the reason why it has not read the body.
///
/// It is cheap to clone. The memory counts towards the layer's
/// [total](super::BufferBodyLayer::max_total_bytes) until the last clone of the bytes is dropped.
///
/// `Debug` shows the length, not the content.
#[derive(Clone)]
pub struct BodyBytes(Result<Bytes, Unread>);

/// Why a [`BufferBodyLayer`](super::BufferBodyLayer) has not read a body. The service gets such a body as the
/// client sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unread {
    /// The body is compressed, by `Content-Encoding` or `Transfer-Encoding`.
    Compressed,
    /// The request is a gRPC call, a stream whose end may depend on what the service answers.
    Grpc,
}

impl BodyBytes {
    pub(super) const fn new(content: Result<Bytes, Unread>) -> Self {
        Self(content)
    }

    /// The bytes of the body of `request`: empty if it has none.
    ///
    /// A key extractor returns the error with `?`.
    ///
    /// # Errors
    ///
    /// [`InvalidIdentity`](ErrorKind::InvalidIdentity), answered with 400, if the body was not read.
    /// [`MissingSetup`](ErrorKind::MissingSetup), answered with 500, if no
    /// [`BufferBodyLayer`](super::BufferBodyLayer) is in front.
    pub fn of(request: &Parts) -> Result<&Bytes, Error> {
        let body = request.extensions.get::<Self>();
        let missing =
            || Error::new(ErrorKind::MissingSetup, "no `BufferBodyLayer` is in front of this layer");
        body.ok_or_else(missing)?.get().map_err(Error::from)
    }

    /// The bytes of the body: empty if the request has none.
    ///
    /// # Errors
    ///
    /// The reason why the body was not read.
    pub const fn get(&self) -> Result<&Bytes, Unread> {
        match &self.0 {
            Ok(bytes) => Ok(bytes),
            Err(reason) => Err(*reason),
        }
    }
}

impl fmt::Debug for BodyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(bytes) => write!(f, "BodyBytes({} bytes)", bytes.len()),
            Err(reason) => write!(f, "BodyBytes({reason:?})"),
        }
    }
}

/// A text for the client.
impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compressed => "the body of the request must not be compressed",
            Self::Grpc => "the body of a gRPC call is not read",
        })
    }
}

impl std::error::Error for Unread {}

/// [`InvalidIdentity`](ErrorKind::InvalidIdentity), because the client chooses how it sends its body.
impl From<Unread> for Error {
    fn from(reason: Unread) -> Self {
        Self::new(ErrorKind::InvalidIdentity, reason.to_string())
    }
}
