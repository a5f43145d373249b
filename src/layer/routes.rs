//! Which rules of a table apply to a request.

use std::borrow::Cow;

use http::{Method, request::Parts};
use matchit::Router;

use super::pattern::{Pattern, canonical};

/// The requests that a rule of a table is for.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// All requests.
    Every,
    /// Those that match a route.
    Route(Pattern),
    /// Those that match no route.
    Otherwise,
}

/// A table of routes. Its rules are numbered.
#[derive(Clone)]
pub(super) struct Routes {
    scopes: Vec<Scope>,
    /// The routes of the methods that the table names. Those of HEAD are those of GET too.
    by_method: Vec<(Method, Router<Vec<usize>>)>,
    /// The routes of all other methods.
    others: Router<Vec<usize>>,
    /// The rules of requests that match no route.
    otherwise: Vec<usize>,
}

impl Routes {
    /// The table whose rules are for `scopes`.
    pub(super) fn new(scopes: Vec<Scope>) -> Self {
        let mut methods = Vec::new();
        for pattern in patterns(&scopes) {
            let head = (pattern.method == Some(Method::GET)).then_some(Method::HEAD);
            for method in pattern.method.iter().cloned().chain(head) {
                if !methods.contains(&method) {
                    methods.push(method);
                }
            }
        }
        let by_method = methods.into_iter().map(|method| {
            let router = router(&scopes, |pattern| pattern.matches(&method));
            (method, router)
        });
        Self {
            by_method: by_method.collect(),
            others: router(&scopes, |pattern| pattern.method.is_none()),
            otherwise: rules(&scopes, |scope| matches!(scope, Scope::Every | Scope::Otherwise)),
            scopes,
        }
    }

    /// Whether there is a route. Otherwise all rules apply to all requests.
    pub(super) fn is_needed(scopes: &[Scope]) -> bool {
        patterns(scopes).next().is_some()
    }

    /// The table with one more rule, for all requests.
    pub(super) fn with_every(&self) -> Self {
        let mut scopes = self.scopes.clone();
        scopes.push(Scope::Every);
        Self::new(scopes)
    }

    /// The rules that apply to `request`, in order.
    ///
    /// A path that a router may read in two ways has the rules of both, so no spelling evades a rule.
    pub(super) fn of(&self, request: &Parts) -> Cow<'_, [usize]> {
        let path = full_path(request);
        let rules = self.at(&request.method, path);
        let Some(other) = canonical(path) else { return Cow::Borrowed(rules) };
        let other = self.at(&request.method, &other);
        if other == rules {
            return Cow::Borrowed(rules);
        }
        let mut both = [rules, other].concat();
        both.sort_unstable();
        both.dedup();
        Cow::Owned(both)
    }

    fn at(&self, method: &Method, path: &str) -> &[usize] {
        let named = self.by_method.iter().find(|(named, _)| named == method);
        let router = named.map_or(&self.others, |(_, router)| router);
        router.at(path).map_or(&self.otherwise, |found| found.value)
    }
}

fn patterns(scopes: &[Scope]) -> impl Iterator<Item = &Pattern> {
    scopes.iter().filter_map(|scope| match scope {
        Scope::Route(pattern) => Some(pattern),
        _ => None,
    })
}

/// The numbers of the rules for which `applies` holds.
fn rules(scopes: &[Scope], applies: impl Fn(&Scope) -> bool) -> Vec<usize> {
    scopes.iter().enumerate().filter(|(_, scope)| applies(scope)).map(|(at, _)| at).collect()
}

/// The routes whose patterns `applies` accepts, with their rules.
fn router(scopes: &[Scope], applies: impl Fn(&Pattern) -> bool) -> Router<Vec<usize>> {
    let mut router = Router::new();
    for pattern in patterns(scopes).filter(|pattern| applies(pattern)) {
        let rules = rules(scopes, |scope| match scope {
            Scope::Every => true,
            Scope::Route(other) => other.canonical == pattern.canonical && applies(other),
            Scope::Otherwise => false,
        });
        // Patterns of one route insert it more than once, and `Rules` has checked that no other routes conflict.
        let _ = router.insert(&*pattern.written, rules.clone());
        let _ = router.insert(&*pattern.canonical, rules);
    }
    router
}

/// The path as the client sent it, also in a nested router of axum, which removes its prefix.
fn full_path(request: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = request.extensions.get() {
        return uri.path();
    }
    request.uri.path()
}
