/// A gRPC status code of a failed call. `OK` is not among them: a rejection is never a success.
///
/// See [`GrpcStatus::code`](crate::response::GrpcStatus::code) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GrpcCode {
    /// `CANCELLED`
    Cancelled = 1,
    /// `UNKNOWN`
    Unknown = 2,
    /// `INVALID_ARGUMENT`
    InvalidArgument = 3,
    /// `DEADLINE_EXCEEDED`
    DeadlineExceeded = 4,
    /// `NOT_FOUND`
    NotFound = 5,
    /// `ALREADY_EXISTS`
    AlreadyExists = 6,
    /// `PERMISSION_DENIED`
    PermissionDenied = 7,
    /// `RESOURCE_EXHAUSTED`
    ResourceExhausted = 8,
    /// `FAILED_PRECONDITION`
    FailedPrecondition = 9,
    /// `ABORTED`
    Aborted = 10,
    /// `OUT_OF_RANGE`
    OutOfRange = 11,
    /// `UNIMPLEMENTED`
    Unimplemented = 12,
    /// `INTERNAL`
    Internal = 13,
    /// `UNAVAILABLE`
    Unavailable = 14,
    /// `DATA_LOSS`
    DataLoss = 15,
    /// `UNAUTHENTICATED`
    Unauthenticated = 16,
}

#[cfg(feature = "tonic")]
impl From<GrpcCode> for tonic::Code {
    fn from(code: GrpcCode) -> Self {
        Self::from_i32(code as i32)
    }
}
