use std::{any::type_name, fmt, marker::PhantomData};

use http::{Method, request::Parts};

use super::{IntoKey, Key, KeyExtractor, matcher::only};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// The request's method: mostly as one of a tuple, for a limit per client and method.
///
/// The methods of RFC 9110 and `PATCH` have a key each. All others share the key `(other)`, which is no method's
/// name: a client can invent any number of methods, and each would have a limit of its own.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::RequestMethod, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = RequestMethod::new();
/// let with = |method| Request::builder().method(method).body(()).unwrap().into_parts().0;
/// assert_eq!(key.extract(&with("POST")).await?, Key::new("POST"));
/// assert_eq!(key.extract(&with("PURGE")).await?, Key::new("(other)"));
/// assert_eq!(key.extract(&with("MADE-UP")).await?, Key::new("(other)"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestMethod(());

impl RequestMethod {
    /// The method of a request.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

/// No method has parentheses in its name.
const OTHER_METHOD: &str = "(other)";

const fn is_registered(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::CONNECT
            | Method::OPTIONS
            | Method::TRACE
            | Method::PATCH
    )
}

impl KeyExtractor for RequestMethod {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let registered = is_registered(&request.method);
        Answer::ready(Ok(Key::new(if registered { request.method.as_str() } else { OTHER_METHOD })))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let is_key = |name: &[u8]| {
            name == OTHER_METHOD.as_bytes() || Method::from_bytes(name).is_ok_and(|name| is_registered(&name))
        };
        only(named, is_key, "a method of RFC 9110, `PATCH` or `(other)`")
    }
}

/// The path of the request's URI, without its query.
///
/// It is the client's to choose: `/a`, `/a/` and `/%61` are three keys, and a router may take them for one
/// route. To limit a route, give the route a layer of its own, or use [`MatchedRoute`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestPath(());

impl RequestPath {
    /// The path of a request.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl KeyExtractor for RequestPath {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        Answer::ready(Ok(Key::new(request.uri.path())))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let is_path = |path: &[u8]| {
            matches!(path, b"" | b"*" | [b'/', ..]) && !path.iter().any(|byte| matches!(byte, b'?' | b'#'))
        };
        only(named, is_path, "a path, which begins with a slash and has no query")
    }
}

/// The route that axum's router matched, such as `/users/{id}`: one key however many users there are.
///
/// The layer must be inside the router, added with `Router::layer` or `route_layer`. Requests that match no
/// route, and those of a layer around the router, share one key that no route has.
///
/// # Example
///
/// ```
/// use axum::{Router, body::Body, routing::get};
/// use http::Request;
/// use tower::ServiceExt;
/// use tower_ratelimit::{key::MatchedRoute, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("per-route", Quota::per_hour(1));
/// let app = Router::new()
///     .route("/users/{id}", get(async || "user"))
///     .route("/orders", get(async || "orders"))
///     .layer(RateLimitLayer::new(MemoryStore::new(), policy, MatchedRoute::new()));
///
/// let ask = async |path: &str| {
///     let request = Request::get(path).body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(ask("/users/1").await, 200);
/// assert_eq!(ask("/users/2").await, 429);
/// assert_eq!(ask("/orders").await, 200);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchedRoute(());

#[cfg(feature = "axum")]
impl MatchedRoute {
    /// The route that axum matched.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

#[cfg(feature = "axum")]
impl KeyExtractor for MatchedRoute {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let route = request.extensions.get::<axum::extract::MatchedPath>();
        // No route is empty.
        Answer::ready(Ok(Key::new(route.map_or("", axum::extract::MatchedPath::as_str))))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        only(named, |route| matches!(route, b"" | [b'/', ..]), "a route, which begins with a slash, or empty")
    }
}

/// A value that an earlier layer, such as one for authentication, put into the request's extensions.
///
/// Where it is missing, the server's layers are in the wrong order:
/// [`MissingSetup`](ErrorKind::MissingSetup), which is answered 500. [`or_missing`](Self::or_missing) takes it
/// for a client that showed no identity.
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
/// let key = FromExtension::new(|user: &User| user.id);
/// let (parts, ()) = Request::get("/").extension(User { id: 7 }).body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await?, Key::new("7"));
/// # Ok(())
/// # }
/// ```
pub struct FromExtension<T, F> {
    key: F,
    missing: ErrorKind,
    value: PhantomData<fn(&T)>,
}

impl<T, F> FromExtension<T, F> {
    /// The key that `key` makes of the value.
    pub const fn new<K>(key: F) -> Self
    where
        F: Fn(&T) -> K,
        K: IntoKey,
    {
        Self { key, missing: ErrorKind::MissingSetup, value: PhantomData }
    }

    /// A request without the value is one that shows no identity: 400, or the next of
    /// [`or`](KeyExtractor::or).
    #[must_use]
    pub const fn or_missing(mut self) -> Self {
        self.missing = ErrorKind::MissingIdentity;
        self
    }
}

impl<T, F, K> KeyExtractor for FromExtension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: IntoKey,
{
    fn extract(&self, request: &Parts) -> Answer<Key> {
        match request.extensions.get::<T>() {
            Some(value) => (self.key)(value).into_key(),
            None if self.missing == ErrorKind::MissingIdentity => {
                Answer::ready(Err(Error::new(self.missing, "the request shows no identity")))
            }
            None => Answer::ready(Err(Error::new(
                self.missing,
                format!(
                    "the request's extensions hold no `{}`: add the layer that puts it there outside the rate limit",
                    type_name::<T>()
                ),
            ))),
        }
    }
}

impl<T, F> fmt::Debug for FromExtension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromExtension").field("value", &type_name::<T>()).finish_non_exhaustive()
    }
}
