//! Penalties behind a sentinel and over gRPC.
