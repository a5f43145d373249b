//! axum_gcra: GCRA in process, with the layer and the error handler from its documentation.

use std::num::NonZeroU64;

use axum_gcra::{RateLimitLayer, gcra::Quota};
use axum07::extract::FromRequestParts;
use http::{StatusCode, request::Parts};
use tower::Layer;

use crate::{
    contender::{Contender, Handler, Place, Role, subject},
    request::KEY,
};

pub(super) fn contender() -> Contender {
    Contender {
        name: "axum_gcra".into(),
        role: Role::MemoryPeer,
        place: Place::Process,
        packages: &["axum_gcra"],
        make: Box::new(|setup| {
            Box::pin(async move {
                let burst = NonZeroU64::new(setup.limit.count.into()).ok_or("a limit of 0")?;
                let layer = RateLimitLayer::<ByHeader>::builder()
                    .with_default_quota(Quota::new(setup.limit.interval(), burst))
                    .default_handle_error();
                Ok(subject(layer.layer(Handler)))
            })
        }),
    }
}

#[derive(PartialEq, Eq, Hash)]
struct ByHeader(String);

#[async_trait::async_trait]
impl<S> FromRequestParts<S> for ByHeader {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let key = parts.headers.get(KEY).and_then(|key| key.to_str().ok());
        key.map(|key| Self(key.to_owned())).ok_or(StatusCode::BAD_REQUEST)
    }
}
