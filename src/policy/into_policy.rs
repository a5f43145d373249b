use super::Policy;
use crate::base::{Answer, Error};

/// A value that a closure may return as the [`Policy`] of a request.
///
/// | value | policy |
/// |---|---|
/// | a [`Policy`] | itself |
/// | `Some(value)`, `Ok(value)` | the policy of `value` |
/// | `None` | none: the rule does not limit the request |
/// | `Err(error)` | `error`; the request is rejected, as for an error of a [`KeyExtractor`](crate::KeyExtractor) |
/// | an [`Answer<Policy>`](Answer), an [`Answer<Option<Policy>>`](Answer) | known now or later |
///
/// # Example
///
/// ```
/// use tower_ratelimit::{policy::IntoPolicy, Answer, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let free = Policy::new("free", Quota::per_hour(10));
/// assert_eq!(Some(free.clone()).into_policy().await?, Some(free.clone()));
/// assert_eq!(None::<Policy>.into_policy().await?, None);
/// let later = Answer::pending({
///     let free = free.clone();
///     async move { Ok(free) }
/// });
/// assert_eq!(later.into_policy().await?, Some(free));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made into a policy",
    note = "return a `Policy`, or an `Option`, a `Result<_, tower_ratelimit::Error>` or an `Answer` of one",
    note = "for an `async` block write `Answer::pending(async move {{ .. }})`"
)]
pub trait IntoPolicy {
    /// Whether the policy may be [known later](Answer), because it is looked up. Defaults to `false`.
    const LOOKED_UP: bool = false;

    /// The policy of this value: `None` if the rule does not limit the request.
    ///
    /// # Errors
    ///
    /// The same as [`KeyExtractor::extract`](crate::KeyExtractor::extract).
    fn into_policy(self) -> Answer<Option<Policy>>;
}

impl IntoPolicy for Policy {
    fn into_policy(self) -> Answer<Option<Policy>> {
        Answer::ready(Ok(Some(self)))
    }
}

impl<P: IntoPolicy> IntoPolicy for Option<P> {
    const LOOKED_UP: bool = P::LOOKED_UP;

    fn into_policy(self) -> Answer<Option<Policy>> {
        self.map_or_else(|| Answer::ready(Ok(None)), IntoPolicy::into_policy)
    }
}

impl<P: IntoPolicy> IntoPolicy for Result<P, Error> {
    const LOOKED_UP: bool = P::LOOKED_UP;

    fn into_policy(self) -> Answer<Option<Policy>> {
        self.map_or_else(|error| Answer::ready(Err(error)), IntoPolicy::into_policy)
    }
}

impl IntoPolicy for Answer<Policy> {
    const LOOKED_UP: bool = true;

    fn into_policy(self) -> Answer<Option<Policy>> {
        self.map(Some)
    }
}

impl IntoPolicy for Answer<Option<Policy>> {
    const LOOKED_UP: bool = true;

    fn into_policy(self) -> Self {
        self
    }
}
