//! tower_governor: GCRA in process, with its headers.

use axum::body::Body;
use http::Request;
use tower::Layer;
use tower_governor::{
    GovernorError, GovernorLayer, governor::GovernorConfigBuilder, key_extractor::KeyExtractor,
};

use crate::contender::{Contender, Handler, Place, Role, key_of, subject};

pub(super) fn contender() -> Contender {
    Contender {
        name: "tower_governor".into(),
        role: Role::Governor,
        place: Place::Process,
        packages: &["tower_governor", "governor"],
        make: Box::new(|setup| {
            Box::pin(async move {
                let config = GovernorConfigBuilder::default()
                    .key_extractor(ByHeader)
                    .use_headers()
                    .period(setup.limit.interval())
                    .burst_size(setup.limit.count)
                    .finish()
                    .ok_or("tower_governor denies the limit")?;
                let layer: GovernorLayer<_, _, Body> = GovernorLayer::new(config);
                Ok(subject(layer.layer(Handler)))
            })
        }),
    }
}

#[derive(Clone)]
struct ByHeader;

impl KeyExtractor for ByHeader {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        key_of(request).map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}
