//! An axum router for operators, who find out over HTTP why a client is denied, unlock, reset, refund and ban.
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
//! use tower_ratelimit_operate::admin;
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
//! | `GET /policies` | The settings of all policies, and their [warnings](tower_ratelimit::Policy::warnings). There is one more if the router has a fixed list of policies and the switch of live ones; `error` says why [live policies](tower_ratelimit::policy) stay as they are |
//! | `GET /policies/{policy}` | The settings of one |
//! | `GET /policies/{policy}/keys/{key}` | The state of a key, and what a request would get now, as an [`Explanation`](crate::explain::Explanation#as-json). `?cost=5` asks for a request of 5 units |
//! | `DELETE /policies/{policy}/keys/{key}` | [Resets](tower_ratelimit::Operator::reset) the key: the client has its whole quota again. A ban stays |
//! | `POST /policies/{policy}/keys/{key}/unlock` | With `{}`, [unlocks](tower_ratelimit::Operator::unlock) the key: resets it, and ends its ban. For a client that was locked out by mistake |
//! | `POST /policies/{policy}/keys/{key}/refund` | With `{"units": 5}`, [refunds](tower_ratelimit::Operator::refund_latest) the latest units. Answers with what remains |
//! | `POST /policies/{policy}/keys/{key}/ban` | With `{"seconds": 600}`, [bans](tower_ratelimit::Operator::ban) the key for this time from now, under a policy with a [penalty](tower_ratelimit::Policy::penalty) |
//! | `DELETE /policies/{policy}/keys/{key}/ban` | [Ends](tower_ratelimit::Operator::unban) the ban of the key |
//! | `GET /policies/{policy}/bans` | The keys that are [banned](tower_ratelimit::Operator::bans) now, and for how many seconds more, `{"bans": [{"key": "alice", "identity": "alice", "key_hash": "2bd806c97f0e00af", "banned_for": 600.0}], "is_complete": true}`: the 10,000 longest bans. `is_complete` is false if there may be [others](tower_ratelimit::store::BanList::is_complete). With Redis, it reads the names of all keys |
//! | `GET /blocklist` | With [`Admin::blocklist`](Admin#method.blocklist), the [networks](crate::live::Blocklist) that are blocked now: `{"networks": [{"network": "203.0.113.0/24", "blocked_for": 3600.0, "reason": "a scraper", "who": "ann"}], "applies_to": "all-instances", "error": null}`. `blocked_for` is null without an end; `error` says why the list is not what Redis has |
//! | `PUT /blocklist/{network}` | With `{"seconds": 3600, "reason": "a scraper"}`, or `{}`, blocks the network, such as `/blocklist/203.0.113.0/24`: all requests of its addresses are rejected |
//! | `DELETE /blocklist/{network}` | Unblocks the network |
//! | `GET /keys/{key}` | The key under all policies: why a client is denied, in [one answer](#why-a-client-is-denied). `?cost=5` as above |
//! | `POST /explain` | With `{"method": "GET", "path": "/search", "headers": {"x-api-key": "k-ann"}, "address": "203.0.113.7"}`, what each [layer](Admin::layer) would do with this request now. Only `path` is required; the value of a header may be a list |
//! | `GET /denials/recent` | The keys that this instance has [denied](tower_ratelimit::Limiter::record_denials) lately, the latest first. `?policy=api` selects a policy, `?limit=20` the number of keys, by default 100 |
//! | `GET /denials/top` | The keys that it has denied most often since it started, with the same parameters: `{"denials": [{"policy": "api", "key": "alice", "identity": "alice", "key_hash": "2bd806c97f0e00af", "denials": 70, "error": 3}]}`. At least `denials - error` of them are the key's, and at most `denials` |
//! | `GET /changes` | What was changed with this router since the process started, and when live policies changed, the latest first: `{"changes": [{"time": 1764283200.5, "kind": "refund", "policy": "api", "key_hash": "2bd806c97f0e00af", "amount": 5, "who": "ann", "detail": null}]}`. At most 1,000. `kind` is `reset`, `refund`, `ban`, `unban`, `unlock`, `block`, `unblock`, `enforcement` or `policies`; `amount` is the refunded units, or the seconds of a ban or a block; `who` is the [`OperatorName`] in the request's extensions; `detail` is the old and the new value of a switch or a policy, or the network |
//! | `GET /probe` | With [`Admin::store`](Admin#method.store), [checks](tower_ratelimit::store::ProbeReport) the server: `{"can_decide": true, "findings": [], "report": "Redis 7.4.1, ..."}` |
//! | `GET /acl` | With `Admin::store`, the permissions that the Redis user needs: `{"acl_rule": "~rl:* ..."}` |
//! | `GET /enforcement` | The position of the [switch](Admin::enforcement) on this instance, and which instances it moves: `{"enforcement": "on", "applies_to": "all-instances"}` or `"this-instance"` |
//! | `PUT /enforcement` | With `{"enforcement": "off"}`, moves it, on as many instances as it can. `"applies_to": "this-instance"` moves only this one, for example while Redis is unavailable |
//!
//! `{key}` is the key's [stored form](tower_ratelimit::key#the-stored-form), percent-encoded as any segment
//! of a path: `alice`; `Jos%C3%A9%20Ortega`; `%25(acme%25%7Calice%25)` for the joined key `%(acme%|alice%)`.
//! If an identity contains no `%`, it is its own stored form. `%25` is the empty identity; a path without a
//! key is an error. With [`Admin::keys_of`], `{key}` is the identity as the client sends it, with `%25` for a
//! percent sign, so `%2525` in the path.
//!
//! # Why a client is denied
//!
//! `GET /keys/{key}` finds the key under each policy as the routes of the policy do, and answers:
//!
//! ```json
//! {
//!   "verdict": "denied",
//!   "explanations": [],
//!   "errors": [{"policy": "per-ip", "key": null, "detail": "the key is not an IP address"}],
//!   "enforcement": "on",
//!   "blocked": [],
//!   "denials": [{
//!     "policy": "api", "key": "42", "identity": "42", "key_hash": "73475cb40a568e8d",
//!     "verdict": "denied", "source": "store", "retry_after": 1800.0,
//!     "denials": 3, "first": 1764283100.25, "last": 1764283200.5
//!   }],
//!   "changes": []
//! }
//! ```
//!
//! `verdict` is the strictest verdict of all policies: a request is denied if one of the policies that limit it
//! denies. It is `rejected` if the key is an address that the [blocklist](Admin#method.blocklist) contains, unless the switch
//! is `off`; `blocked` has those networks. It is `unknown` if a policy cannot be decided and none denies. `explanations` has an
//! [`Explanation`](crate::explain::Explanation#as-json) for each policy: the state, the wait, the ban, the debt, and what would
//! be decided now; in an outage, by the failure mode. Policies under which the key cannot be found or decided are in
//! `errors`; if no policy can have such a key, the answer is an error. `enforcement` is the position of the
//! [switch](Admin::enforcement), or null without one.
//!
//! `denials` has an entry for each policy that has denied the key lately: how often from `first` to `last`, and
//! the latest denial with its `source` and wait. Its `verdict` is `denied`, `banned` or `shadow_denied`. Denials
//! count even if enforcement only reports. Times are in seconds since 1970. `changes` has the 20 latest changes
//! that concern the key: its own, and the ones of policies and the switch.
//!
//! `POST /explain` answers with a list `layers` in the place of `explanations`. Each entry has the `verdict`
//! `admitted`, `delayed`, `denied`, `not_limited` or `rejected`; the `explanation`, if policies decide; and the
//! `rejection`, with `status` and `detail`, if the layer blocks the request, cannot identify its client, or has
//! no store. `blocked` has the networks that contain the `address` or an address in the headers. Layers do not know of each other: the service rejects a request that one of them denies. `denials`
//! and `changes` are about the keys of the request.
//!
//! The denials, and the changes, are the ones of the instance that answers. `ratelimit-admin why` merges the
//! answers of several.
//!
//! # Errors
//!
//! Errors are `application/problem+json` (RFC 9457), with the remedy in `detail`. A method that a route does
//! not have is answered by axum, with 405 and no body.
//!
//! | status | |
//! |---|---|
//! | 400 | The path, the query or the body is invalid: a key that is empty or not in stored form, a negative number; or no request has the identity |
//! | 404 | There is no such policy; or no switch, no layer, no store, no blocklist, no such network in it, or no recorded denials |
//! | 409 | All instances are to move, but the switch moves only this one; several keys belong to the identity, a permit is to be refunded, bans are read or changed under a policy without a penalty, or another program has written the value of the key: reset the key to remove it |
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
//! address can compute it. To log who made a change, open a span in your middleware; `GET /changes` has the
//! [`OperatorName`].

mod admin;
mod bans;
#[cfg(feature = "live")]
mod blocklist;
mod changes;
mod denials;
mod handlers;
mod policies;
mod problem;
mod request;
#[cfg(feature = "redis")]
mod server;
mod settings;
mod switch;
mod why;

pub use self::{
    admin::{Admin, router},
    changes::OperatorName,
    policies::Policies,
    switch::Switch,
};
