use axum::extract::MatchedPath;
use http::request::Parts;

use crate::{
    base::{Answer, Error},
    key::{Key, KeyExtractor, extractor::only},
};

/// The route that axum's router matched, such as `/users/{id}`. All users of that route share one key.
///
/// Add the layer to the router, with `Router::layer` or `Router::route_layer`. Requests that match no route share one
/// key that no route has. If the layer wraps the whole router, all
/// requests share that key, because no route is known there.
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
        let route = request.extensions.get::<MatchedPath>();
        // No route has an empty path.
        Answer::ready(Ok(Key::new(route.map_or("", MatchedPath::as_str))))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        only(named, |route| matches!(route, b"" | [b'/', ..]), "a route, which begins with a slash, or empty")
    }
}
