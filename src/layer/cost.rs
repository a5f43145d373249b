//! [`IntoCost`]: what a closure may return as the cost of a request.

use std::sync::Arc;

use http::request::Parts;

use crate::base::Error;

/// A value that a closure may return as the [cost](crate::Rule::cost) of a request.
///
/// | value | cost |
/// |---|---|
/// | a `u64` | this number of units |
/// | `Ok(units)` | this number of units |
/// | `Err(error)` | none: the request is rejected, as after `error` of a key extractor |
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the cost of a request",
    note = "return a `u64`, or a `Result<u64, tower_ratelimit::Error>`"
)]
pub trait IntoCost {
    /// The cost in units, or the reason why it is unknown.
    ///
    /// # Errors
    ///
    /// The same as [`KeyExtractor::extract`](crate::KeyExtractor::extract).
    fn into_cost(self) -> Result<u64, Error>;
}

impl IntoCost for u64 {
    fn into_cost(self) -> Result<u64, Error> {
        Ok(self)
    }
}

impl IntoCost for Result<u64, Error> {
    fn into_cost(self) -> Self {
        self
    }
}

/// The function that finds the cost of a request.
///
/// An error is boxed because it is rare, and every request moves the result.
pub(super) type Cost = Arc<dyn Fn(&Parts) -> Result<u64, Box<Error>> + Send + Sync>;

/// `cost` as a [`Cost`].
pub(super) fn cost<C: IntoCost>(cost: impl Fn(&Parts) -> C + Send + Sync + 'static) -> Cost {
    Arc::new(move |request| cost(request).into_cost().map_err(Box::new))
}
