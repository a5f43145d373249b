//! The size of the header block. gRPC clients accept at least 8 KiB, and close the connection over a larger block.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

use super::names::LISTS;
use crate::response::grpc::{GRPC_DETAILS, GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_STATUS, is_grpc_type};

/// Less than 8 KiB, because servers add other headers.
const MAX_BLOCK: usize = 7 * 1024;

/// Bounds the header block of a gRPC rejection: removes the headers that the client needs least.
pub(super) fn bound_rejection(headers: &mut HeaderMap) {
    let needed = [CONTENT_TYPE, GRPC_STATUS, GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_DETAILS, RETRY_AFTER];
    if block_size(headers) > MAX_BLOCK {
        let spare: Vec<_> = headers.keys().filter(|name| !needed.contains(name)).cloned().collect();
        for name in spare {
            headers.remove(name);
        }
    }
    if block_size(headers) > MAX_BLOCK {
        headers.remove(GRPC_DETAILS);
    }
}

/// The values of each of [`LISTS`] in a gRPC service's response, before the layer adds to them.
pub(super) struct Lists([Vec<HeaderValue>; 3]);

impl Lists {
    /// `None` if the response is not a gRPC response.
    pub(super) fn of_call(headers: &HeaderMap) -> Option<Self> {
        let values = |name: HeaderName| headers.get_all(name).iter().cloned().collect();
        is_grpc_type(headers).then(|| Self(LISTS.map(values)))
    }

    /// Removes what the layer added to the lists if the header block is too large. Whether it did.
    pub(super) fn restore_if_too_large(self, headers: &mut HeaderMap) -> bool {
        let too_large = block_size(headers) > MAX_BLOCK;
        if too_large {
            for (name, values) in LISTS.into_iter().zip(self.0) {
                headers.remove(&name);
                for value in values {
                    let _ = headers.try_append(&name, value);
                }
            }
        }
        too_large
    }
}

/// As HTTP/2 counts it: with 32 bytes more for each header.
fn block_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}
