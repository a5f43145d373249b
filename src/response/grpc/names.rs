//! The headers of a gRPC status.

use http::HeaderName;

pub(in crate::response) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(in crate::response) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(in crate::response) const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(in crate::response) const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
