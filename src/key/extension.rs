use std::{any::type_name, fmt, sync::Arc};

use http::request::Parts;

use super::{IntoKey, Key, KeyExtractor};
use crate::base::{Answer, Error, ErrorKind};

/// A key made of a value in the request's extensions, such as the user that an authentication layer put there.
///
/// # Errors
///
/// A request without the value means that the layers are in the wrong order:
/// [`MissingSetup`](ErrorKind::MissingSetup), answered with 500. Call [`or_missing`](Self::or_missing) if it means that
/// the client is not authenticated.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::FromExtension, Key, KeyExtractor};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key: FromExtension<User> = FromExtension::new(|user: &User| user.id);
/// let (parts, ()) = Request::get("/").extension(User { id: 7 }).body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await?, Key::new("7"));
/// # Ok(())
/// # }
/// ```
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct FromExtension<T> {
    key: Arc<dyn Fn(&T) -> Answer<Key> + Send + Sync>,
    may_be_missing: bool,
}

impl<T> FromExtension<T> {
    /// The key that `key` returns for the value.
    pub fn new<K: IntoKey>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        Self { key: Arc::new(move |value| key(value).into_key()), may_be_missing: false }
    }

    /// Treats a request without the value as one without an identity: [`or`](KeyExtractor::or) continues with the next
    /// extractor, or the request is rejected with 400. Defaults to a mistake in the server's setup, 500.
    pub fn or_missing(mut self) -> Self {
        self.may_be_missing = true;
        self
    }
}

impl<T: Send + Sync + 'static> KeyExtractor for FromExtension<T> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        match request.extensions.get::<T>() {
            Some(value) => (self.key)(value),
            None if self.may_be_missing => {
                Answer::ready(Err(Error::new(ErrorKind::MissingIdentity, "the request has no identity")))
            }
            None => Answer::ready(Err(Error::new(
                ErrorKind::MissingSetup,
                format!(
                    "the request's extensions do not contain `{}`: add the layer that inserts it outside the rate limit",
                    type_name::<T>()
                ),
            ))),
        }
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        Ok(vec![named.clone()])
    }
}

impl<T> Clone for FromExtension<T> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), may_be_missing: self.may_be_missing }
    }
}

impl<T> fmt::Debug for FromExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromExtension").field("value", &type_name::<T>()).finish_non_exhaustive()
    }
}
