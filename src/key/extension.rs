//! Keys from a value in the request's extensions.

use std::any::type_name;

use http::request::Parts;

use super::{IntoKey, KeyExtractor};
use crate::base::{Error, ErrorKind};

/// The key that `key` returns for a value in the request's extensions, such as the user that an
/// authentication layer put there.
///
/// # Errors
///
/// A request without the value means that the layers are in the wrong order:
/// [`MissingSetup`](ErrorKind::MissingSetup), answered with 500. If it means that the client is not
/// authenticated, use a closure that returns an `Option`, `|parts: &Parts|
/// parts.extensions.get::<User>().map(|user| user.id)`: then [`or`](KeyExtractor::or) continues with the next
/// extractor, or the request is rejected with 400.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::from_extension, Key, KeyExtractor};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = from_extension(|user: &User| user.id);
/// let (parts, ()) = Request::get("/").extension(User { id: 7 }).body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await?, Key::new("7"));
/// # Ok(())
/// # }
/// ```
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub fn from_extension<T, K>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> impl KeyExtractor
where
    T: Send + Sync + 'static,
    K: IntoKey,
{
    move |request: &Parts| required(request).map(&key)
}

/// The value of type `T` in the request's extensions.
///
/// # Errors
///
/// [`MissingSetup`](ErrorKind::MissingSetup) if the extensions do not contain it.
pub(crate) fn required<T: Send + Sync + 'static>(request: &Parts) -> Result<&T, Error> {
    request.extensions.get::<T>().ok_or_else(|| {
        let value = type_name::<T>();
        let message = format!(
            "the request's extensions do not contain `{value}`: add the layer that inserts it outside the rate limit"
        );
        Error::new(ErrorKind::MissingSetup, message)
    })
}
