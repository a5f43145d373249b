//! The pages for operators: the configuration, and the router of tower-ratelimit-operate.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use http::{
    StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use subtle::ConstantTimeEq as _;
use tower_ratelimit_operate::{
    admin::{Admin, Policies},
    live::LivePolicies,
};

use crate::{config::Followed, listing};

/// `/config` and `/limits`, which need `token` if there is one. The builder of `/limits` has the policies of `config`.
pub(crate) fn router(
    admin: impl FnOnce(Policies) -> Admin,
    config: Arc<Followed>,
    policies: Option<LivePolicies>,
    token: Option<String>,
) -> Router {
    let named = config.clone();
    let admin = admin(Policies::from_fn(move || named.current.load().policies.clone()));
    let router = Router::new()
        .route("/config", get(async move || described(&config, policies.as_ref())))
        .nest("/limits", admin.router());
    match token {
        Some(token) => router.layer(middleware::from_fn_with_state(Arc::<str>::from(token), authenticated)),
        None => router,
    }
}

/// The active configuration, and why it is not the one of the files.
fn described(config: &Followed, policies: Option<&LivePolicies>) -> String {
    let mut text = listing::of_config(&config.current.load());
    let of_policies = policies.and_then(LivePolicies::last_error).map(|error| error.to_string());
    for error in config.error().into_iter().chain(of_policies) {
        text.push_str(&format!("\nerror, so what is above stays: {error}\n"));
    }
    text
}

async fn authenticated(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    let sent =
        request.headers().get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    // Compared in a time that does not depend on the first difference.
    if sent.is_some_and(|sent| sent.ct_eq(token.as_bytes()).into()) {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")]).into_response()
}
