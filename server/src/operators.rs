//! The address for operators: readiness, metrics, the configuration, and the router of tower-ratelimit-operate.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{
    StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use metrics_exporter_prometheus::PrometheusHandle;
use sha2::Sha256;
use tower_ratelimit::{Limiter, RedisStore};
use tower_ratelimit_operate::{
    admin::{Admin, Policies, Switch},
    live::LivePolicies,
};

use crate::{config::Followed, listing};

/// What operators see.
pub(crate) struct Operators {
    pub(crate) limiter: Limiter,
    pub(crate) config: Arc<Followed>,
    pub(crate) policies: Option<LivePolicies>,
    pub(crate) switch: Switch,
    pub(crate) store: Option<RedisStore>,
    pub(crate) token: Option<String>,
    pub(crate) prometheus: PrometheusHandle,
    pub(crate) is_ready: Arc<AtomicBool>,
}

impl Operators {
    pub(crate) fn router(self) -> Router {
        let Self { limiter, config, policies, switch, store, token, prometheus, is_ready } = self;
        let named = config.clone();
        let admin =
            Admin::new(limiter, Policies::from_fn(move || named.current().policies())).enforcement(switch);
        let admin = match &store {
            Some(store) => admin.store(store),
            None => admin,
        };
        let limits = Router::new()
            .route("/config", get(async move || described(&config, policies.as_ref())))
            .nest("/limits", admin.router());
        let limits = match token {
            Some(token) => {
                limits.layer(middleware::from_fn_with_state(Arc::<str>::from(token), authenticated))
            }
            None => limits,
        };
        limits.route("/metrics", get(async move || prometheus.render())).route(
            "/ready",
            get(async move || match is_ready.load(Ordering::Relaxed) {
                true => (StatusCode::OK, "ready\n"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            }),
        )
    }
}

/// The active configuration, and why it is not the one of the files.
fn described(config: &Followed, policies: Option<&LivePolicies>) -> String {
    let mut text = listing::of_config(&config.current());
    let of_policies = policies.and_then(LivePolicies::last_error).map(|error| error.to_string());
    for error in config.error().into_iter().chain(of_policies) {
        text.push_str(&format!("\nerror, so the configuration stays as above: {error}\n"));
    }
    text
}

async fn authenticated(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    let sent = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    if is_equal(sent, &token) {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")]).into_response()
}

/// Compares in a time that does not depend on the first difference.
fn is_equal(sent: &str, token: &str) -> bool {
    // A key of HMAC has any length.
    let of = |text: &str| Hmac::<Sha256>::new_from_slice(token.as_bytes()).map(|mac| mac.chain_update(text));
    let (Ok(sent), Ok(token)) = (of(sent), of(token)) else { return false };
    sent.verify(&token.finalize().into_bytes()).is_ok()
}
