//! Keys that axum finds.

use std::{marker::PhantomData, sync::Arc};

use axum::{
    body::to_bytes,
    extract::{
        FromRequestParts, MatchedPath, NestedPath, OriginalUri, RawPathParams,
        path::ErrorKind as PathErrorKind, rejection::RawPathParamsRejection,
    },
    response::{IntoResponse, Response},
};
use http::request::Parts;

use super::{IntoKey, Key, KeyExtractor, KeyKind, extractor::only};
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
/// A request without the path parameter is not rejected. For axum's `Path`, `MatchedPath` and `NestedPath`:
///
/// * The request matches no route, or one with fewer parameters than `Path` reads, or without one of the names:
///   [`NotApplicable`](ErrorKind::NotApplicable). The rule does not apply, so a request without a route goes on to
///   its 404, and the other rules charge it. [`or`](KeyExtractor::or) continues with the next extractor.
/// * The route has more parameters than `Path` reads: [`MissingSetup`](ErrorKind::MissingSetup), answered with
///   500. Read them by name, from a struct.
/// * The layer is around the router, where no route is known: 500.
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
///     .route("/health/live", get(async || "yes"))
///     .layer(RateLimitLayer::new(MemoryStore::new(), policy, tenant));
///
/// let ask = async |path: &str| {
///     let request = Request::get(path).body(Body::empty()).unwrap();
///     app.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(ask("/acme").await, 200);
/// assert_eq!(ask("/acme").await, 429);
/// assert_eq!(ask("/globex").await, 200);
/// // The rule does not apply to these.
/// assert_eq!(ask("/health/live").await, 200);
/// assert_eq!(ask("/health/live").await, 200);
/// assert_eq!(ask("/acme/unknown").await, 404);
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
            match extracted.map_err(IntoResponse::into_response) {
                Ok(extracted) => {
                    let key = key(extracted).into_key();
                    key.await
                }
                Err(response) => Err(rejected(response, &mut request).await),
            }
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

/// The error for a request that an extractor of axum has rejected with `response`.
async fn rejected(response: Response, request: &mut Parts) -> Error {
    let (status, body) = (response.status(), response.into_body());
    // Only a router knows that there is no route.
    if request.extensions.get::<OriginalUri>().is_some()
        && let Ok(text) = to_bytes(body, LONGEST).await
        && let Ok(text) = str::from_utf8(&text)
        && let Some(error) = of_route(text, request).await
    {
        return error;
    }
    let kind = match status.is_client_error() {
        true => ErrorKind::MissingIdentity,
        false => ErrorKind::IdentityUnavailable,
    };
    Error::new(kind, format!("the extractor of the identity rejected the request with {status}"))
}

/// The longest text with which axum rejects a request because of its route, in bytes.
const LONGEST: usize = 1_024;
/// The most parameters of a path that are expected.
const MOST_PARAMETERS: usize = 16;

/// The error if `text` is what axum says of a request whose route lacks what is extracted. Of a rejection, only
/// its response is known, so its text is compared with the one that axum has for this request.
async fn of_route(text: &str, request: &mut Parts) -> Option<Error> {
    let parameters = RawPathParams::from_request_parts(request, &()).await;
    let without_parameters = parameters.as_ref().err().map(RawPathParamsRejection::body_text);
    let names: Vec<&str> = parameters.iter().flatten().map(|(name, _)| name).collect();
    let got = names.len();
    let is_wrong_number =
        |expected| text == PathErrorKind::WrongNumberOfParameters { got, expected }.to_string();
    let lacks = |name: &str| !names.contains(&name);
    let missing = text.strip_prefix("Invalid URL: missing field `").and_then(|rest| rest.strip_suffix('`'));
    if (0..got).any(is_wrong_number) {
        return Some(Error::new(
            ErrorKind::MissingSetup,
            format!(
                "`Path` reads fewer than the {got} parameters of the route: read them by name, from a struct"
            ),
        ));
    }
    let lacks_parameter = without_parameters.is_some_and(|problem| problem == text)
        || (got + 1..=MOST_PARAMETERS).any(is_wrong_number)
        || missing.is_some_and(lacks);
    let lacks_route = async |request: &mut Parts| {
        let matched = MatchedPath::from_request_parts(request, &()).await.err();
        let nested = NestedPath::from_request_parts(request, &()).await.err();
        matched.is_some_and(|problem| problem.body_text() == text)
            || nested.is_some_and(|problem| problem.body_text() == text)
    };
    let is_of_route = lacks_parameter || lacks_route(request).await;
    is_of_route
        .then(|| Error::new(ErrorKind::NotApplicable, "the route of the request lacks what is the identity"))
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

    fn kind(&self) -> KeyKind {
        KeyKind::named("the route")
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        only(named, |route| matches!(route, b"" | [b'/', ..]), "a route, which begins with a slash, or empty")
    }
}
