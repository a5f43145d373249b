//! A table of routes and their rules.

use std::fmt;

use super::{
    pattern::Pattern,
    routes::{Routes, Scope},
    rule::Rule,
};
use crate::{
    base::{Error, ErrorKind, valid},
    decision::MOST_RULES,
    key::KeyKind,
    policy::Policy,
    store::PolicyKeys,
};

/// A table of routes and their [`Rule`]s, for one layer around a whole service.
///
/// Make the layer with [`RateLimitLayer::with_rules`](crate::RateLimitLayer::with_rules). All rules that
/// apply to a request are decided in one atomic step; in a Redis Cluster, [per
/// key](crate::guide::redis#cluster). If no rule applies, the request goes straight to the service, like an
/// [exempt](crate::RateLimitLayer::exempt_if) one.
///
/// | rule added with | applies to |
/// |---|---|
/// | [`route`](Self::route) | requests that match the route |
/// | [`always`](Self::always) | all requests |
/// | [`fallback`](Self::fallback) | requests that match no route |
///
/// # Routes
///
/// | written | matches |
/// |---|---|
/// | `/login` | this path, with any method |
/// | `POST /login` | this path with this method; `GET` matches HEAD too, and a WebSocket over HTTP/2, which is a CONNECT with a path |
/// | `GET\|POST /login` | this path with one of these methods |
/// | `/orders/{id}` | any text in place of `{id}` up to the next slash |
/// | `/files/{*rest}` | every path that begins with `/files/` and is longer |
/// | `/v{version}/status` | `/v1/status`, `/v2/status`: a parameter after text |
/// | `/shop.Cart/Add` | a gRPC method |
/// | `/{{id}}` | the literal path `/{id}` |
///
/// Syntax and matching are the same as in axum 0.8 (`matchit`). The most specific route wins: `/orders/new`
/// does not match `/orders/{id}` if both are in the table. Routes with another method are ignored: if the
/// table has `POST /orders/new`, `GET /orders/new` matches `/orders/{id}`.
///
/// A route may name any method registered with IANA, including WebDAV's, and `PURGE` and `QUERY`. Any other
/// method is an error, because it is nearly always a typo. To limit another method, write the path without a
/// method.
///
/// A route may be added several times, with and without a method: all its rules apply. The names of
/// parameters do not matter. One [`Rule`] may be added to several routes, which then share its counts.
///
/// # Spellings of a path
///
/// Routers and middlewares normalize paths differently. So a path gets the rules of every way to read it: as
/// it is written, and with each combination of percent-encoded characters decoded (except slashes), `.` and
/// `..` resolved, repeated slashes merged, and slashes at the start and the end trimmed. For example,
/// `/login/`, `//login` and `/%6Cogin` get the rules of `/login`, in addition to the rules of the route they
/// match as written, or of [`fallback`](Self::fallback). Routes with the same normalized form are one route.
/// If two of these rules have the same key and policy, they make one charge, with the larger cost and the lower criticality. It
/// degrades only if both do, and a response counts if it [counts](Rule::count_if) for one of them.
///
/// All readings of a path together may have 64 KiB, which paths that are not made for it do not reach. A
/// request with more is rejected with 400. Otherwise its path alone could cost milliseconds.
///
/// Limits of this matching:
///
/// * **Case.** Paths are case-sensitive, as in axum: `/Login` is not `/login`. If your router ignores case,
///   use [`always`](Self::always), or a layer inside the router.
/// * **Prefixes.** For nested routers of axum, write the full path, as the client sends it.
/// * **Rewritten paths.** If a middleware outside axum's outermost router rewrites the path, write the
///   rewritten path. If a middleware inside that router does, write the path that the client sends. If it
///   appends a slash, `/files/public` may be served by `/files/{*rest}`, which the table does not know: then
///   give `/files/public` that rule too.
/// * **Nested services that resolve `..` themselves**, such as a proxy behind `nest_service("/svc", ..)`, may
///   read `/svc/../login` as their `/login`. Put a layer around the nested service, or reject such paths in
///   front of it.
/// * **Slashes in front of nested services.** `nest_service` drops one of the slashes behind its prefix, so
///   axum serves `/api///login` as `/api//login`. The table follows up to three services in each other, and
///   one empty parameter in their prefixes, such as the tenant of `//api//login` in `/{tenant}/api`.
/// * **CORS preflights** are OPTIONS requests: `/login` matches the preflight of a POST, `POST /login` does
///   not. To limit all preflights, use [`always`](Self::always) or [`fallback`](Self::fallback).
/// * **Methods in headers**, such as `X-HTTP-Method-Override`, are not read. If your service reads them,
///   write routes without methods.
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{layer::Rules, Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
///
/// fn per_client(name: &'static str, quota: Quota) -> Rule {
///     Rule::new(Policy::new(name, quota), Header::new("x-api-key"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = Rules::new()
///     .route("/search", per_client("search", Quota::per_hour(1)))
///     .route("POST /orders/{id}", per_client("orders", Quota::per_hour(2)))
///     .always(per_client("all", Quota::per_hour(100)))
///     .fallback(per_client("rest", Quota::per_hour(3)));
/// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules);
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
///
/// for (method, path, charged) in [
///     ("GET", "/search", r#""search";q=1;w=3600, "all";q=100;w=3600"#),
///     ("POST", "/orders/7", r#""orders";q=2;w=3600, "all";q=100;w=3600"#),
///     ("GET", "/orders/7", r#""all";q=100;w=3600, "rest";q=3;w=3600"#),
/// ] {
///     let request = Request::builder().method(method).uri(path).header("x-api-key", "k1");
///     let response = service.clone().oneshot(request.body(String::new())?).await?;
///     assert_eq!(response.headers()["ratelimit-policy"], charged);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "rules do nothing until a layer is made of them"]
pub struct Rules {
    pub(super) rules: Vec<(Scope, Rule)>,
    /// The texts of warnings that the layer accepts. They are of these rules, so a sibling does not have
    /// them.
    pub(super) accepted: Vec<String>,
}

impl Rules {
    /// A table without rules.
    pub const fn new() -> Self {
        Self { rules: Vec::new(), accepted: Vec::new() }
    }

    /// Adds `rule` for the requests that match `route`: a path such as `/orders/{id}`, or one or more methods
    /// and a path such as `POST /orders/{id}` or `PUT|PATCH /orders/{id}`.
    ///
    /// # Panics
    ///
    /// If `route` is invalid, or cannot be in one table with another route: a parameter and a catch-all at
    /// the same place, such as `/{page}` and `/{*rest}`. The message states what to write.
    /// [`try_route`](Self::try_route) gives an error instead.
    #[track_caller]
    pub fn route(self, route: &str, rule: Rule) -> Self {
        valid(self.try_route(route, rule))
    }

    /// The fallible form of [`route`](Self::route), for a route read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where [`route`](Self::route) panics.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Policy, Quota, Rule, layer::Rules};
    ///
    /// let rule = || Rule::new(Policy::new("orders", Quota::per_hour(5)), Key::new("all"));
    /// assert!(Rules::new().try_route("POST /orders", rule()).is_ok());
    /// let error = Rules::new().try_route("/orders/:id", rule()).unwrap_err();
    /// assert_eq!(error.to_string(), r#"the route "/orders/:id" is invalid: write the parameter as "{id}""#);
    /// ```
    pub fn try_route(self, route: &str, rule: Rule) -> Result<Self, Error> {
        let pattern = Pattern::parse(route)?;
        if let Some(other) = self.conflicting(&pattern) {
            return Err(invalid!(
                "the route {route:?} is invalid: the table has {other:?}, and no table tells a parameter and the rest of \
                     the path at the same place apart; write the routes under it one by one, or use `fallback`"
            ));
        }
        Ok(self.add(Scope::Route(pattern), rule))
    }

    /// Adds `rule` for all requests.
    pub fn always(self, rule: Rule) -> Self {
        self.add(Scope::Every, rule)
    }

    /// Adds `rule` for the requests that match no route.
    pub fn fallback(self, rule: Rule) -> Self {
        self.add(Scope::Otherwise, rule)
    }

    fn add(mut self, scope: Scope, rule: Rule) -> Self {
        if let Some(guarantee) = rule.of_guarantee() {
            self.rules.push((scope.clone(), guarantee));
        }
        self.rules.push((scope, rule));
        self
    }

    /// A route that cannot be in one table with `new`.
    fn conflicting(&self, new: &Pattern) -> Option<String> {
        let mut router = matchit::Router::new();
        for path in self.patterns().flat_map(|pattern| &pattern.forms) {
            let _ = router.insert(path.as_str(), ());
        }
        let find = |path: &str| self.patterns().find(|one| one.reads_as(path));
        for (at, path) in new.forms.iter().enumerate() {
            let is_first = !new.forms.iter().take(at).any(|form| form == path);
            if is_first
                && find(path).is_none()
                && let Err(matchit::InsertError::Conflict { with }) = router.insert(path.as_str(), ())
            {
                return Some(find(&with).map_or(with, |known| known.text.clone()));
            }
        }
        None
    }

    fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.rules.iter().filter_map(|(scope, _)| scope.pattern())
    }

    /// The policies that are not chosen per request and do not allow mixed keys, each with the kind of its keys.
    pub(super) fn known_keys(&self) -> impl Iterator<Item = (Policy, KeyKind)> {
        let known = self.rules.iter().filter_map(|(_, rule)| Some((rule.policy.known()?, rule.key.kind())));
        known.filter(|(policy, _)| !policy.settings().allows_mixed_keys)
    }

    /// The same for the store.
    pub(super) fn keys(&self) -> PolicyKeys {
        self.known_keys().map(|(policy, kind)| (policy.label().into(), kind)).collect()
    }

    /// Which rules apply to a request. `None` if all always do.
    pub(super) fn routes(&self) -> Option<Routes> {
        // A rule that was added several times is charged once, also to a path with several readings.
        let first = |rule: &Rule| self.rules.iter().position(|(_, first)| first.is(rule)).unwrap_or_default();
        let scopes: Vec<_> = self.rules.iter().map(|(scope, rule)| (scope, first(rule))).collect();
        Routes::new(&scopes)
    }

    /// # Errors
    ///
    /// Clients or stores could not tell two policies apart: two policies of one request have the same name,
    /// or two policies with one name differ. Policies that are chosen per request are not compared. It is
    /// also an error if there is no rule, or more than a charge can tell apart.
    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.rules.is_empty() {
            return invalid("the table has no rule: add one with `route`, `always` or `fallback`".into());
        }
        if self.rules.len() > MOST_RULES {
            return invalid(format!(
                "the table has more than {MOST_RULES} rules: split it into several layers"
            ));
        }
        for (at, (scope, rule)) in self.rules.iter().enumerate() {
            for (its_scope, other) in &self.rules[..at] {
                let is_beside = scope.meets(its_scope);
                match (rule.policy.known(), other.policy.known()) {
                    (Some(policy), Some(other)) if policy.name() == other.name() => {
                        let name = policy.name();
                        if is_beside {
                            return invalid(format!(
                                "a request falls under two policies named {name:?}: give each its own name"
                            ));
                        }
                        if policy != other {
                            return invalid(format!(
                                "the table has two policies named {name:?} that differ: give each its own name"
                            ));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// A table with one rule, for all requests.
impl From<Rule> for Rules {
    fn from(rule: Rule) -> Self {
        Self::new().always(rule)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.rules.iter().map(|(scope, rule)| (scope, rule))).finish()
    }
}
