use std::{any::type_name, fmt, marker::PhantomData};

use http::{header::COOKIE, request::Parts};

use super::{IntoKey, Key, KeyExtractor};
use crate::{Answer, Error, ErrorKind};

/// The value of a cookie, such as a session's. It is taken as it stands, quotes included.
///
/// A client that may choose its own cookies chooses its own limit: key by this only where the server checks
/// the cookie.
///
/// # Errors
///
/// As for [`Header`](crate::Header): a request without the cookie is a
/// [`MissingIdentity`](ErrorKind::MissingIdentity); an empty or repeated one, one that is not UTF-8, and one
/// longer than 8 KiB an [`InvalidIdentity`](ErrorKind::InvalidIdentity).
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Cookie, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let session = Cookie::new("session");
/// let (parts, ()) = Request::get("/").header("cookie", "theme=dark; session=s1").body(())?.into_parts();
/// assert_eq!(session.extract(&parts).await?, Key::new("s1"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cookie(Box<str>);

const MAX_VALUE: usize = 8 * 1024;

impl Cookie {
    /// The cookie `name`. Its case counts.
    ///
    /// # Panics
    ///
    /// If `name` is empty or has a character that no cookie's name can have: a control, a space, `=`, `;`, `,`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let legible = name.bytes().all(|byte| byte.is_ascii_graphic() && !b"=;,\"".contains(&byte));
        assert!(!name.is_empty() && legible, "{name:?} is not a cookie's name");
        Self(name.into())
    }

    fn key(&self, request: &Parts) -> Result<Key, Error> {
        let invalid =
            |problem| Error::new(ErrorKind::InvalidIdentity, format!("the cookie `{}` {problem}", self.0));
        let mut found = None;
        for pair in
            request.headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|b| *b == b';'))
        {
            let pair = pair.trim_ascii();
            let Some(at) = pair.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
            if name == self.0.as_bytes() && found.replace(value).is_some() {
                return Err(invalid("must stand once"));
            }
        }
        let Some(value) = found else {
            return Err(Error::new(
                ErrorKind::MissingIdentity,
                format!("the request lacks the cookie `{}`", self.0),
            ));
        };
        if value.is_empty() {
            return Err(invalid("is empty"));
        }
        if value.len() > MAX_VALUE {
            return Err(invalid("is longer than 8192 bytes"));
        }
        std::str::from_utf8(value).map(Key::new).map_err(|_| invalid("is not UTF-8"))
    }
}

impl KeyExtractor for Cookie {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        self.key(request).into()
    }
}

/// The request's method: mostly as one of a tuple, for a limit per client and method.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RequestMethod;

impl KeyExtractor for RequestMethod {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        Answer::ready(Ok(Key::new(request.method.as_str())))
    }
}

/// The path of the request's URI, without its query.
///
/// It is the client's to choose: `/a`, `/a/` and `/%61` are three keys, and a router may take them for one
/// route. To limit a route, give the route a layer of its own, or use [`MatchedRoute`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RequestPath;

impl KeyExtractor for RequestPath {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        Answer::ready(Ok(Key::new(request.uri.path())))
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
/// use tower_ratelimit::{MatchedRoute, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("per-route", Quota::per_hour(1));
/// let app = Router::new()
///     .route("/users/{id}", get(async || "user"))
///     .route("/orders", get(async || "orders"))
///     .layer(RateLimitLayer::new(MemoryStore::new(), policy, MatchedRoute::default()));
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
#[non_exhaustive]
pub struct MatchedRoute;

#[cfg(feature = "axum")]
impl KeyExtractor for MatchedRoute {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let route = request.extensions.get::<axum::extract::MatchedPath>();
        // No route is empty.
        Answer::ready(Ok(Key::new(route.map_or("", axum::extract::MatchedPath::as_str))))
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
/// use tower_ratelimit::{FromExtension, Key, KeyExtractor};
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
