//! An axum router for operators, who look at limits, reset, refund and ban over HTTP.
//!
//! # No built-in authentication
//!
//! **Every client of this router can lift all limits and see the identities of others. Mount it behind your
//! own authentication, best on a separate listener that the internet does not reach.** `examples/admin.rs` in
//! the repository does both: it compares a bearer token in constant time, and listens on the loopback
//! interface. No route is served unless you mount the router.
//!
//! ```
//! use axum::{Router, body::Body, http::Request, middleware};
//! use tower::ServiceExt;
//! use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
//! use tower_ratelimit_extra::admin;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let authenticated = middleware::from_fn(async |request, next: middleware::Next| next.run(request).await);
//! let limiter = Limiter::new(MemoryStore::new());
//! let login = Policy::new("login", Quota::per_minute(5));
//! limiter.check(&login, &Key::new("alice"), 5).await?;
//!
//! // `authenticated` is your middleware.
//! let admin = Router::new().nest("/limits", admin::router(limiter.clone(), [login.clone()])).layer(authenticated);
//!
//! let reset = Request::delete("/limits/policies/login/keys/alice").body(Body::empty())?;
//! assert_eq!(admin.oneshot(reset).await?.status(), 204);
//! assert!(limiter.check(&login, &Key::new("alice"), 5).await?.is_admitted());
//! # Ok(())
//! # }
//! ```
//!
//! # Routes
//!
//! | route | what it does |
//! |---|---|
//! | `GET /policies` | The settings of all policies, and their [warnings](tower_ratelimit::Policy::warnings); `error` says why [live policies](tower_ratelimit::policy) stay as they are |
//! | `GET /policies/{policy}` | The settings of one |
//! | `GET /policies/{policy}/keys/{key}` | The state of a key, and what a request would get now, as an [`Explanation`](crate::explain::Explanation#as-json). `?cost=5` asks for a request of 5 units |
//! | `DELETE /policies/{policy}/keys/{key}` | [Resets](tower_ratelimit::Operator::reset) the key: the client has its whole quota again |
//! | `POST /policies/{policy}/keys/{key}/refund` | With `{"units": 5}`, [refunds](tower_ratelimit::Operator::refund_latest) the latest units. Answers with what remains |
//! | `POST /policies/{policy}/keys/{key}/ban` | With `{"seconds": 600}`, [bans](tower_ratelimit::Operator::ban) the key for this time from now, under a policy with a [penalty](tower_ratelimit::Policy::penalty) |
//! | `DELETE /policies/{policy}/keys/{key}/ban` | [Ends](tower_ratelimit::Operator::unban) the ban of the key |
//! | `GET /policies/{policy}/bans` | The keys that are [banned](crate::explain::BanList::of) now, and for how many seconds more, `{"bans": [{"key": "alice", "identity": "alice", "key_hash": "2bd806c97f0e00af", "banned_for": 600.0}], "is_complete": true}`: the 10,000 longest bans. `is_complete` is false if there may be [others](crate::explain::BanList::is_complete). With Redis, it reads the names of all keys |
//! | `GET /enforcement` | The position of the [switch](Admin::enforcement) on this instance, and which instances it moves: `{"enforcement": "on", "applies_to": "all-instances"}` or `"this-instance"` |
//! | `PUT /enforcement` | With `{"enforcement": "off"}`, moves it, on as many instances as it can. `"applies_to": "this-instance"` moves only this one, for example while Redis is unavailable |
//!
//! `{key}` is the key's [stored form](tower_ratelimit::key#the-stored-form), percent-encoded as any segment
//! of a path: `alice`; `Jos%C3%A9%20Ortega`; `%25(acme%25%7Calice%25)` for the joined key `%(acme%|alice%)`.
//! If an identity contains no `%`, it is its own stored form. `%25` is the empty identity; a path without a
//! key is an error. With [`Admin::keys_of`], `{key}` is the identity as the client sends it, with `%25` for a
//! percent sign, so `%2525` in the path.
//!
//! # Errors
//!
//! Errors are `application/problem+json` (RFC 9457), with the remedy in `detail`. A method that a route does
//! not have is answered by axum, with 405 and no body.
//!
//! | status | |
//! |---|---|
//! | 400 | The path, the query or the body is invalid: a key that is empty or not in stored form, a negative number; or no request has the identity |
//! | 404 | There is no such policy, or no switch |
//! | 409 | The switch of this instance is to move all, several keys belong to the identity, a permit is to be refunded, bans are read or changed under a policy without a penalty, or another program has written the value of the key: reset the key to remove it |
//! | 413 | A body above axum's limit, 2 MB by default |
//! | 415 | A body without `content-type: application/json`, which other web sites cannot send unasked |
//! | 500 | The store does not support the algorithm of the policy, or the extractor lacks its setup |
//! | 503 | The store, or a lookup of the extractor, did not answer. The `detail` of a change ends with `the change may have been made` if that is possible; without these words, the store was not changed |
//!
//! # Logs
//!
//! With the feature `tracing`, every change is logged, at info, or at warn if it moves the switch of
//! enforcement: the policy, the units or seconds, and `key_hash`, which is the [same
//! hash](crate::explain::ExplainedCharge::key_hash) as in explanations. No log contains the key itself. The
//! hash is not a secret unless you [set one](tower_ratelimit::Key::set_digest_secret): anyone who knows an
//! address can compute it. To log who made a change, open a span in
//! your middleware.

mod admin;
mod bans;
mod handlers;
mod policies;
mod problem;
mod request;
mod settings;
mod switch;

pub use self::{
    admin::{Admin, router},
    policies::Policies,
    switch::Switch,
};
