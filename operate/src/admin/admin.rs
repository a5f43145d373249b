//! [`Admin`]: the builder of the router for operators.

use std::{fmt, sync::Arc};

#[cfg(feature = "live")]
use axum::routing::put;
use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http::StatusCode;
#[cfg(feature = "redis")]
use tower_ratelimit::RedisStore;
use tower_ratelimit::{ErrorKind, Key, KeyExtractor, Limiter, Policy, RateLimitLayer};

#[cfg(feature = "live")]
use crate::live::Blocklist;

#[cfg(feature = "live")]
use super::blocklist;
#[cfg(feature = "redis")]
use super::server::{acl, probe};
use super::{
    bans::{ban, bans, unban, unlock},
    changes::Changes,
    denials::{recent, top},
    handlers::{changes, enforcement, explain, policies, policy, refund, reset, set_enforcement},
    policies::Policies,
    settings::Settings,
    switch::Switch,
    why,
};

/// Builds the [router](crate::admin) for operators, with more settings than [`admin::router`](router).
///
/// # Example
///
/// ```
/// use axum::Router;
/// use tower_ratelimit::{
///     policy::EnforcementSwitch, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer,
/// };
/// use tower_ratelimit_operate::admin::Admin;
///
/// let (limiter, switch) = (Limiter::new(MemoryStore::new()), EnforcementSwitch::default());
/// let api = Policy::new("api", Quota::per_second(10));
/// let layer = RateLimitLayer::new(limiter.clone(), api.clone(), PeerIp::new()).enforcement(&switch);
///
/// // `GET /policies/api/keys/2001:db8::1` finds the key of the client's network, `2001:db8::/64`.
/// let admin = Admin::new(limiter, [api]).keys_of("api", PeerIp::new()).enforcement(&switch).router();
/// # let (_, _): (RateLimitLayer, Router) = (layer, admin);
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until `router` is called"]
pub struct Admin(Settings);

impl Admin {
    /// Administers the keys under `policies`, which are counted by `limiter`: a clone of the limiter of the
    /// layers, or their store.
    ///
    /// # Panics
    ///
    /// If two policies of a fixed list have one name, or the store does not support the algorithm of one.
    #[track_caller]
    pub fn new(limiter: impl Into<Limiter>, policies: impl Into<Policies>) -> Self {
        let (limiter, policies) = (limiter.into(), policies.into());
        let fixed = policies.fixed().unwrap_or_default();
        for (at, policy) in fixed.iter().enumerate() {
            let name = policy.name();
            if fixed[..at].iter().any(|other| other.name() == name) {
                panic!("two policies to administer are named {name:?}: give each its own name");
            }
            if let Err(error) = limiter.supports(policy) {
                panic!("{error}");
            }
        }
        Self(Settings {
            limiter,
            policies,
            extractors: Vec::new(),
            switch: None,
            #[cfg(feature = "live")]
            blocklist: None,
            layers: Vec::new(),
            #[cfg(feature = "redis")]
            store: None,
            records_denials: true,
            denials: Vec::new(),
            changes: Arc::new(Changes::default()),
        })
    }

    /// Finds the keys of the policy `policy` with `extractor`, its rule's extractor. Operators then write an
    /// identity as a client sends it. Defaults to the key's [stored
    /// form](tower_ratelimit::key#the-stored-form).
    ///
    /// So an operator can write an address instead of its network ([`PeerIp`](tower_ratelimit::PeerIp)), or
    /// an API key of which Redis has only a hash ([`hashed`](KeyExtractor::hashed)). Write `%25` for a
    /// percent sign in an identity, as in stored forms. A stored form with a mark, such as `%*` and a hash,
    /// is used as it is. If several keys may belong to an identity ([`or`](KeyExtractor::or)), the answer is
    /// 409 with their stored forms. An identity that the extractor looks up, such as with
    /// [`map`](KeyExtractor::map) and a `Lookup`, is looked up.
    ///
    /// # Panics
    ///
    /// If a fixed list has no policy of this name, if it is called twice for one policy, or if the extractor,
    /// or one that it consists of, does not implement [`keys_of`](KeyExtractor::keys_of).
    #[track_caller]
    pub fn keys_of(mut self, policy: &str, extractor: impl KeyExtractor) -> Self {
        if let Some(fixed) = self.0.policies.fixed() {
            let names: Vec<&str> = fixed.iter().map(Policy::name).collect();
            assert!(
                names.contains(&policy),
                "no policy to administer is named {policy:?}: name one of {names:?}"
            );
        }
        let is_known = self.0.extractors.iter().any(|(known, _)| known == policy);
        assert!(!is_known, "the keys of the policy {policy:?} already have an extractor: pass only one");
        // Any other error is only about this identity.
        if let Some(Err(error)) = extractor.keys_of(&Key::new("")).if_ready()
            && error.kind() == ErrorKind::InvalidConfig
        {
            panic!("the extractor of the policy {policy:?} finds no keys: {error}");
        }
        self.0.extractors.push((policy.to_owned(), Arc::new(extractor)));
        self
    }

    /// Adds `/enforcement`, which shows and moves `switch`. Defaults to no switch.
    ///
    /// With `LivePolicies::redis`, the move is written to Redis, and all instances follow within a second. An
    /// [`EnforcementSwitch`](tower_ratelimit::policy::EnforcementSwitch), or live policies from a file, moves
    /// only this process. The response states which of the two it was.
    pub fn enforcement(mut self, switch: impl Into<Switch>) -> Self {
        self.0.switch = Some(switch.into());
        self
    }

    /// Adds `/blocklist`, which shows and changes `list`. Defaults to none.
    #[cfg(feature = "live")]
    #[cfg_attr(docsrs, doc(cfg(feature = "live")))]
    pub fn blocklist(mut self, list: &Blocklist) -> Self {
        self.0.blocklist = Some(list.clone());
        self
    }

    /// Explains requests at `/explain` under `layer`, a layer of the service, and under the other layers that
    /// this is called with, in this order. Defaults to none.
    ///
    /// A change of the service's layer after this call is not seen. To keep them equal, clone one layer.
    pub fn layer(mut self, layer: &RateLimitLayer) -> Self {
        self.0.layers.push(layer.clone());
        self
    }

    /// Adds `/probe` and `/acl`, which check the server of `store`, and list the permissions that its Redis
    /// user needs. Defaults to none.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn store(mut self, store: &RedisStore) -> Self {
        self.0.store = Some(store.clone());
        self
    }

    /// Records no denials, so `/denials/recent` and `/denials/top` answer 404. By default, the router
    /// [records](Limiter::record_denials) the denials of its limiter and its [layers](Self::layer) from the
    /// moment when it is made.
    ///
    /// Recording is on with the router, because an operator asks after the denials. Turn it off if the
    /// identities of denied clients may not be kept in memory.
    pub fn without_denials(mut self) -> Self {
        self.0.records_denials = false;
        self
    }

    /// The router. Mount it behind your own authentication: it has none.
    pub fn router(mut self) -> Router {
        if self.0.records_denials {
            self.0.record_denials();
        }
        if let Some(_warning) = self.0.warning() {
            log!(warn, "{_warning}");
        }
        let router = Router::new();
        #[cfg(feature = "redis")]
        let router = router.route("/probe", get(probe)).route("/acl", get(acl));
        #[cfg(feature = "live")]
        let router = router
            .route("/blocklist", get(blocklist::networks))
            // As for an empty key.
            .route("/blocklist/", put(blocklist::block).delete(blocklist::unblock))
            .route("/blocklist/{*network}", put(blocklist::block).delete(blocklist::unblock));
        router
            .route("/policies", get(policies))
            .route("/policies/{policy}", get(policy))
            .route("/policies/{policy}/keys/{key}", get(explain).delete(reset))
            // A path does not match an empty last segment. The handlers answer with an error.
            .route("/policies/{policy}/keys/", get(explain).delete(reset))
            .route("/policies/{policy}/keys/{key}/refund", post(refund))
            .route("/policies/{policy}/keys/{key}/ban", post(ban).delete(unban))
            .route("/policies/{policy}/keys/{key}/unlock", post(unlock))
            .route("/policies/{policy}/bans", get(bans))
            .route("/keys/{key}", get(why::key))
            .route("/keys/", get(why::key))
            .route("/explain", post(why::request))
            .route("/denials/recent", get(recent))
            .route("/denials/top", get(top))
            .route("/changes", get(changes))
            .route("/enforcement", get(enforcement).put(set_enforcement))
            .with_state(Arc::new(self.0))
            .layer(middleware::from_fn(to_the_end))
    }
}

/// Carries out a change, and notes it, even if the operator's connection ends before the answer.
async fn to_the_end(request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let change = next.run(request);
    #[cfg(feature = "tracing")]
    let change = tracing::Instrument::in_current_span(change);
    tokio::spawn(change).await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// The [router](crate::admin) for operators, over the keys under `policies` that `limiter` counts. Mount it
/// behind your own authentication: it has none.
///
/// See [`Admin`] for more settings.
///
/// # Panics
///
/// Where [`Admin::new`] panics.
#[track_caller]
pub fn router(limiter: impl Into<Limiter>, policies: impl Into<Policies>) -> Router {
    Admin::new(limiter, policies).router()
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("policies", &self.0.policies)
            .field("enforcement", &self.0.switch)
            .finish_non_exhaustive()
    }
}
