use std::{fmt, future::Future, marker::PhantomData, pin::Pin, sync::Arc};

use axum::{extract::FromRequestParts, response::IntoResponse as _};
use http::{StatusCode, request::Parts};

use super::{IntoKey, Key, KeyExtractor};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// A key made of what any axum extractor gives: claims of a token, a session, a path parameter, state.
///
/// The extractor works on a copy of the request's head and runs again in the handler if that takes it too;
/// one that is costly had better leave its result in the extensions from a layer further out, see
/// [`FromExtension`](crate::key::FromExtension).
///
/// Where it rejects the request, the answer is 400 if it did so with a status from 400 to 499
/// ([`MissingIdentity`](ErrorKind::MissingIdentity), so [`or`](KeyExtractor::or) goes on with the next), else
/// 500 ([`IdentityUnavailable`](ErrorKind::IdentityUnavailable)). The extractor's own response is not sent.
///
/// A missing identity is not [banned](crate::RateLimitLayer::ban). To ban identities whose header an extractor
/// rejects when it stands twice or is malformed, ban by [`Header`](crate::Header), [`Bearer`](crate::key::Bearer) or
/// [`Cookie`](crate::key::Cookie), which tell a missing header from one that cannot be used.
///
/// # Example
///
/// ```
/// use axum::{Router, body::Body, extract::Path, routing::get};
/// use http::Request;
/// use tower::ServiceExt;
/// use tower_ratelimit::{key::FromExtractor, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("per-tenant", Quota::per_hour(1));
/// let tenant = FromExtractor::new(|Path(tenant): Path<String>| tenant);
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
pub struct FromExtractor<E> {
    key: Arc<dyn Fn(Parts) -> Finding + Send + Sync>,
    extractor: PhantomData<fn() -> E>,
}

type Finding = Pin<Box<dyn Future<Output = Result<Key, Error>> + Send>>;

impl<E: 'static> FromExtractor<E> {
    /// The key that `key` makes of what the extractor `E` gives.
    pub fn new<K: IntoKey>(key: impl Fn(E) -> K + Send + Sync + 'static) -> Self
    where
        E: FromRequestParts<()> + Send,
    {
        Self::with_state((), key)
    }

    /// [`new`](Self::new) for an extractor that wants the router's state, such as axum's `State`.
    pub fn with_state<S, K: IntoKey>(state: S, key: impl Fn(E) -> K + Send + Sync + 'static) -> Self
    where
        E: FromRequestParts<S> + Send,
        S: Clone + Send + Sync + 'static,
    {
        let key = Arc::new(key);
        let find = move |mut request: Parts| -> Finding {
            let (state, key) = (state.clone(), key.clone());
            Box::pin(async move {
                let extracted = E::from_request_parts(&mut request, &state).await;
                // Not every rejection may cross threads, so none is kept across the next wait.
                let extracted =
                    extracted.map_err(|rejection| rejected(rejection.into_response().status()))?;
                let key = key(extracted).into_key();
                key.await
            })
        };
        Self { key: Arc::new(find), extractor: PhantomData }
    }
}

fn rejected(status: StatusCode) -> Error {
    let kind = match status.is_client_error() {
        true => ErrorKind::MissingIdentity,
        false => ErrorKind::IdentityUnavailable,
    };
    Error::new(kind, format!("the request shows no identity: its extractor said {status}"))
}

impl<E: 'static> KeyExtractor for FromExtractor<E> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        Answer::pending((self.key)(request.clone()))
    }
}

impl<E> Clone for FromExtractor<E> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), extractor: PhantomData }
    }
}

impl<E> fmt::Debug for FromExtractor<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromExtractor")
            .field("extractor", &std::any::type_name::<E>())
            .finish_non_exhaustive()
    }
}
