//! [`Degraded`]: what a handler reads of the rules that denied its request and let it go on.

use http::Extensions;

use crate::decision::{Decision, Outcome};

/// The denials of rules that let a request [go on](crate::Rule::or_degrade), from the extensions of the request. The handler answers
/// with less.
///
/// In axum, extract an `Option<Degraded>`: `None` if no such rule denied. If there are several, ask for each by the name of its
/// policy. A test of a handler can insert one that it [makes](Self::new).
///
/// # Example
///
/// ```
/// use tower_ratelimit::layer::Degraded;
///
/// /// A page with what is left of its parts.
/// async fn page(degraded: Option<Degraded>) -> Vec<&'static str> {
///     let has = |part: &str| !degraded.as_ref().is_some_and(|degraded| degraded.is_without(part));
///     ["recommendations", "reviews"].into_iter().filter(|part| has(part)).collect()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Degraded(Vec<Outcome>);

impl Degraded {
    /// The denials `outcomes`, for a test of a handler.
    #[must_use]
    pub fn new(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        Self(outcomes.into_iter().collect())
    }

    /// The denials by all layers that the request has passed, from its extensions. `None` without one.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Whether a rule with the policy `name` denied.
    #[must_use]
    pub fn is_without(&self, name: &str) -> bool {
        self.0.iter().any(|outcome| outcome.policy().name() == name)
    }

    /// The outcome of each such rule: its policy, what it asked for, and the wait after which it would be admitted.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.0
    }

    #[cold]
    pub(super) fn insert(extensions: &mut Extensions, decision: &Decision) {
        let mut degraded = decision.degraded().cloned().peekable();
        if degraded.peek().is_some() {
            let outer = extensions.remove::<Self>().map_or_else(Vec::new, |Self(outer)| outer);
            extensions.insert(Self(outer.into_iter().chain(degraded).collect()));
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
