//! Which rules of a table apply to a request.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use http::{Method, request::Parts};
use matchit::Router;

use super::pattern::{Pattern, readings};
use crate::base::{Error, panics::is_first};

/// The requests that a rule of a table is for.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// All requests.
    Every,
    /// The requests that match a route.
    Route(Pattern),
    /// The requests that match no route.
    Otherwise,
}

/// A table of routes. Its rules are numbered.
pub(super) struct Routes {
    /// The routes of the methods that the table names. HEAD and CONNECT also have the routes of GET.
    by_method: Vec<(Method, Paths)>,
    /// The routes of all other methods.
    others: Paths,
    /// The rules of requests that match no route.
    otherwise: Vec<usize>,
    /// Whether it was logged that a route lacks the prefix of its nested router.
    lacks_prefix: AtomicBool,
}

/// The routes of one method.
#[derive(Clone)]
struct Paths {
    /// The routes as the user writes them.
    written: Router<Vec<usize>>,
    /// One router for each distinct normalization of the routes, and whether it percent-decodes. Usually
    /// empty. The routers are separate, because a normalized route may be more specific than a written one.
    changed: Vec<(Router<Vec<usize>>, bool)>,
}

impl Scope {
    pub(super) const fn pattern(&self) -> Option<&Pattern> {
        match self {
            Self::Route(pattern) => Some(pattern),
            _ => None,
        }
    }

    /// Whether all requests of `other` are of this scope.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Every, _) | (Self::Otherwise, Self::Otherwise) => true,
            (Self::Route(own), Self::Route(other)) => own.covers(other),
            _ => false,
        }
    }

    /// Whether there are requests of both scopes.
    pub(super) fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Every, _) | (_, Self::Every) | (Self::Otherwise, Self::Otherwise) => true,
            (Self::Route(own), Self::Route(other)) => own.overlaps(other),
            _ => false,
        }
    }
}

impl Routes {
    /// The table whose rules are for `scopes`, each with the number of its rule. A rule that was added
    /// several times has one number. `None` if there is no route, so all rules apply to all requests.
    pub(super) fn new(scopes: &[(&Scope, usize)]) -> Option<Self> {
        let patterns = || scopes.iter().filter_map(|(scope, _)| scope.pattern());
        patterns().next()?;
        let named = patterns().flat_map(|pattern| &pattern.methods);
        let as_get = [Method::HEAD, Method::CONNECT];
        let methods: HashSet<_> = named.chain(&as_get).collect();
        let paths = |method: &Method| Paths::new(scopes, |pattern| pattern.matches(method));
        Some(Self {
            by_method: methods.into_iter().map(|method| (method.clone(), paths(method))).collect(),
            others: Paths::new(scopes, |pattern| pattern.methods.is_empty()),
            otherwise: rules(scopes, |scope| matches!(scope, Scope::Every | Scope::Otherwise)),
            lacks_prefix: AtomicBool::new(false),
        })
    }

    /// The rules that apply to `request`, in order.
    ///
    /// A path that a router may read in several ways has the rules of all, so no spelling evades a rule.
    ///
    /// # Errors
    ///
    /// The [readings] of the path are too long.
    pub(super) fn of(&self, request: &Parts) -> Result<Cow<'_, [usize]>, Error> {
        let path = full_path(request);
        let named = self.by_method.iter().find(|(named, _)| *named == request.method);
        let paths = named.map_or(&self.others, |(_, paths)| paths);
        let written = paths.written.at(path).map_or_else(
            |_| {
                self.check_prefix(request, path, paths);
                &self.otherwise
            },
            |found| found.value,
        );
        let mut rules = Cow::Borrowed(&**written);
        for more in paths.changed(path, true) {
            add(&mut rules, more);
        }
        for (path, is_decoded) in readings(path)? {
            let written = paths.written.at(&path).ok().map(|found| &**found.value);
            // A router that does not decode paths does not decode its routes either.
            let mut of_routers = written.into_iter().chain(paths.changed(&path, is_decoded));
            if of_routers.next().is_none() {
                add(&mut rules, &self.otherwise);
            }
            written.into_iter().chain(paths.changed(&path, true)).for_each(|more| add(&mut rules, more));
        }
        Ok(rules)
    }

    /// Logs once that a route lacks the prefix of its nested router, if `request` shows it: no route matches
    /// its full path, and one matches the path without the prefix.
    #[cold]
    fn check_prefix(&self, request: &Parts, full_path: &str, paths: &Paths) {
        let inner = request.uri.path();
        let shows = || inner.len() < full_path.len() && paths.written.at(inner).is_ok();
        if !self.lacks_prefix.load(Ordering::Relaxed) && shows() && is_first(&self.lacks_prefix) {
            log!(
                warn,
                "a route of the table matches a request's path inside a nested router, and no route matches the full \
                 path, so the rules of the route do not apply to it; if they should, write the full path, {}",
                route_of(request).map_or_else(
                    || "with the prefix of the nested router".to_owned(),
                    |route| format!("such as {route:?}")
                )
            );
        }
    }
}

/// Adds `more` rules to `rules`.
fn add(rules: &mut Cow<'_, [usize]>, more: &[usize]) {
    if more.iter().any(|rule| !rules.contains(rule)) {
        let rules = rules.to_mut();
        rules.extend(more);
        rules.sort_unstable();
        rules.dedup();
    }
}

/// The numbers of the rules for which `applies` holds.
fn rules(scopes: &[(&Scope, usize)], applies: impl Fn(&Scope) -> bool) -> Vec<usize> {
    let mut rules: Vec<_> =
        scopes.iter().filter(|(scope, _)| applies(scope)).map(|(_, number)| *number).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

impl Paths {
    /// The routes whose patterns `applies` accepts, with their rules.
    fn new(scopes: &[(&Scope, usize)], applies: impl Fn(&Pattern) -> bool) -> Self {
        let patterns = scopes.iter().filter_map(|(scope, _)| scope.pattern());
        let patterns: Vec<_> = patterns.filter(|pattern| applies(pattern)).collect();
        let router = |forms: &Vec<&String>| {
            let mut router = Router::new();
            for (pattern, form) in patterns.iter().zip(forms) {
                let rules = rules(scopes, |scope| match scope {
                    Scope::Every => true,
                    Scope::Route(other) => {
                        applies(other) && (other.is_route_of(pattern) || other.reads_as(form))
                    }
                    Scope::Otherwise => false,
                });
                // Patterns of one route insert it more than once, and `Rules` has checked that no other
                // routes conflict.
                let _ = router.insert(form.as_str(), rules);
            }
            router
        };
        let mut all: Vec<(Vec<&String>, bool)> = Vec::new();
        let combinations = 0..patterns.first().map_or(0, |pattern| pattern.forms.len());
        // The first change is the decoding.
        for combination in combinations.clone().step_by(2).chain(combinations.skip(1).step_by(2)) {
            let forms = patterns.iter().map(|pattern| &pattern.forms[combination]).collect();
            if !all.iter().any(|(known, _)| *known == forms) {
                all.push((forms, combination % 2 == 1));
            }
        }
        let mut routers = all.iter().map(|(forms, is_decoded)| (router(forms), *is_decoded));
        let written = routers.next().map(|(written, _)| written).unwrap_or_default();
        Self { written, changed: routers.collect() }
    }

    /// The rules of the normalized routes that `path` matches. The decoded routes count only if `decodes`.
    fn changed(&self, path: &str, decodes: bool) -> impl Iterator<Item = &[usize]> {
        let routers = self.changed.iter().filter(move |(_, is_decoded)| decodes || !is_decoded);
        routers.filter_map(move |(router, _)| Some(&**router.at(path).ok()?.value))
    }
}

/// The path as the client sent it. A nested router of axum removes its prefix from the request's path.
fn full_path(request: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = request.extensions.get() {
        return uri.path();
    }
    request.uri.path()
}

/// The route of axum that serves the request. Unlike the path, it contains no secret.
fn route_of(request: &Parts) -> Option<&str> {
    #[cfg(feature = "axum")]
    return request.extensions.get().map(axum::extract::MatchedPath::as_str);
    #[cfg(not(feature = "axum"))]
    {
        let _ = request;
        None
    }
}
