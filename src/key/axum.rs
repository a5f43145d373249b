//! Keys that axum finds.

use std::{marker::PhantomData, sync::Arc};

use axum::{
    extract::{FromRequestParts, MatchedPath, OriginalUri},
    response::IntoResponse as _,
};
use http::{StatusCode, request::Parts};

use super::{IntoKey, Key, KeyExtractor, extractor::only};
use crate::base::{Answer, Error, ErrorKind};

/// The key that `key` returns for what the axum extractor `E` returns: claims of a token, a session, a path
/// parameter. `state` is the router's state, if `E` needs it, such as axum's `State`; otherwise `()`.
///
/// The extractor gets a copy of the request's head. If the handler uses the extractor as well, it runs twice.
/// If it is expensive, run it in a layer further out, put the result into the request's extensions, and use
/// [`from_extension`](crate::key::from_extension).
///
/// # Errors
///
/// If the axum extractor rejects the request, the status of its rejection decides, and its response is not
/// sent:
///
/// * 400 to 499: [`MissingIdentity`](ErrorKind::MissingIdentity), answered with 400. [`or`](KeyExtractor::or)
///   continues with the next extractor.
/// * Any other status: [`IdentityUnavailable`](ErrorKind::IdentityUnavailable), answered with 500.
///
/// A request with a missing identity is not [blocked](crate::RateLimitLayer::block_if). If an axum extractor
/// rejects a malformed header, a blocked client can evade the blocklist by sending one. Use
/// [`Header`](crate::Header), [`Bearer`](crate::key::Bearer) or [`Cookie`](crate::key::Cookie) for
/// blocklists: they distinguish a missing header from an invalid one.
///
/// # Example
///
/// ```
/// use axum::{Router, body::Body, extract::Path, routing::get};
/// use http::Request;
/// use tower::ServiceExt;
/// use tower_ratelimit::{key::from_extractor, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("per-tenant", Quota::per_hour(1));
/// let tenant = from_extractor((), |Path(tenant): Path<String>| tenant);
/// let app = Router::new()
///     .route("/{tenant}", get(async || "hello"))
///     .layer(RateLimitLayer::new(MemoryStore::new(), policy, tenant));
///
/// let ask = async |path: &str| {
///     let request = Request::get(path).body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(ask("/acme").await, 200);
/// assert_eq!(ask("/acme").await, 429);
/// assert_eq!(ask("/globex").await, 200);
/// # Ok(())
/// # }
/// ```
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub fn from_extractor<E, S, K>(state: S, key: impl Fn(E) -> K + Send + Sync + 'static) -> impl KeyExtractor
where
    E: FromRequestParts<S> + Send + 'static,
    S: Clone + Send + Sync + 'static,
    K: IntoKey,
{
    let key = Arc::new(key);
    move |request: &Parts| {
        let (mut request, state, key) = (request.clone(), state.clone(), key.clone());
        let key = Answer::pending(async move {
            let extracted = E::from_request_parts(&mut request, &state).await;
            // A rejection may not be `Send`, so it is dropped before the next await.
            let extracted = extracted.map_err(|rejection| rejected(rejection.into_response().status()))?;
            let key = key(extracted).into_key();
            key.await
        });
        Found { key, made_of: PhantomData::<K> }
    }
}

/// A key made of a `K`. It is pending, but looked up only if a `K` is.
struct Found<K> {
    key: Answer<Key>,
    made_of: PhantomData<K>,
}

impl<K: IntoKey> IntoKey for Found<K> {
    const LOOKED_UP: bool = K::LOOKED_UP;

    fn into_key(self) -> Answer<Key> {
        self.key
    }
}

fn rejected(status: StatusCode) -> Error {
    let kind = match status.is_client_error() {
        true => ErrorKind::MissingIdentity,
        false => ErrorKind::IdentityUnavailable,
    };
    Error::new(kind, format!("the extractor of the identity rejected the request with {status}"))
}

/// The route that axum's router matched, such as `/users/{id}`. All users of that route share one key.
///
/// Add the layer to the router, with `Router::layer` or `Router::route_layer`. With `Router::layer`, requests
/// that match no route share one key that no route has. Around the router, no route is known.
///
/// # Errors
///
/// [`MissingSetup`](ErrorKind::MissingSetup): the layer is around the router, or there is no router. The
/// request is rejected with 500. The layer logs it once.
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
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct MatchedRoute(());

impl MatchedRoute {
    /// The route that axum matched.
    pub const fn new() -> Self {
        Self(())
    }
}

impl KeyExtractor for MatchedRoute {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        Answer::ready(match request.extensions.get::<MatchedPath>() {
            Some(route) => Ok(Key::new(route.as_str())),
            // A router has looked for a route. No route has an empty path.
            None if request.extensions.get::<OriginalUri>().is_some() => Ok(Key::new("")),
            None => Err(Error::new(
                ErrorKind::MissingSetup,
                "`MatchedRoute` finds no route: add the layer to the router, with `Router::layer` or \
                 `Router::route_layer`, instead of wrapping the router in it",
            )),
        })
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        only(named, |route| matches!(route, b"" | [b'/', ..]), "a route, which begins with a slash, or empty")
    }
}
