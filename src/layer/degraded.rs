//! [`Degraded`]: what a handler reads of a rule that denied its request and let it go on.

use http::Extensions;

use crate::decision::{Decision, Outcome};

/// The denial of a rule that lets requests [go on](crate::Rule::or_degrade), from the extensions of a request. The handler answers
/// with less.
///
/// In axum, extract an `Option<Degraded>`: `None` if nothing was denied. A test of a handler can insert one that it
/// [makes](Self::new).
///
/// # Example
///
/// ```
/// use tower_ratelimit::layer::Degraded;
///
/// /// Answers with the smaller model once the budget for the large one is used.
/// async fn complete(degraded: Option<Degraded>) -> &'static str {
///     if degraded.is_some() { "small" } else { "large" }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Degraded(Outcome);

impl Degraded {
    /// For a test of a handler.
    #[must_use]
    pub const fn new(outcome: Outcome) -> Self {
        Self(outcome)
    }

    /// The denial of the innermost layer that has one, from the extensions of a request.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// The outcome of the rule: its policy, what it asked for, and the wait after which it would be admitted.
    #[must_use]
    pub const fn outcome(&self) -> &Outcome {
        &self.0
    }

    #[cold]
    pub(super) fn insert(extensions: &mut Extensions, decision: &Decision) {
        if let Some(outcome) = decision.degraded() {
            extensions.insert(Self(outcome.clone()));
        }
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::OptionalFromRequestParts<S> for Degraded {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        request: &mut http::request::Parts,
        _: &S,
    ) -> Result<Option<Self>, Self::Rejection> {
        Ok(Self::from_extensions(&request.extensions).cloned())
    }
}
