//! `X-RateLimit-Exceeded`: the mark of a layer that only reports.

use http::{HeaderMap, request::Parts};

use super::{
    insert::{append, list, value},
    names::X_EXCEEDED,
};
use crate::decision::Decision;

/// In a request's extensions: the policies that denied it, of layers that only report, as the header lists them.
#[derive(Clone)]
struct Exceeded(String);

/// Marks a request that `decision` denied, or a layer further out that only reports. A mark that the client sent is removed.
pub(crate) fn mark_request(request: &mut Parts, decision: Option<&Decision>) {
    let ours = decision.map(exceeded).unwrap_or_default();
    let marks = match request.extensions.remove::<Exceeded>() {
        Some(Exceeded(outer)) if ours.is_empty() => outer,
        Some(Exceeded(outer)) => format!("{outer}, {ours}"),
        None => ours,
    };
    request.headers.remove(X_EXCEEDED);
    append(&mut request.headers, X_EXCEEDED, value(marks.clone()));
    if !marks.is_empty() {
        request.extensions.insert(Exceeded(marks));
    }
}

/// Marks the response to a request that `decision` denied.
pub(super) fn mark_response(headers: &mut HeaderMap, decision: &Decision) {
    append(headers, X_EXCEEDED, value(exceeded(decision)));
}

/// The policies that denied.
fn exceeded(decision: &Decision) -> String {
    let denied = decision.outcomes().iter().filter(|outcome| outcome.is_denied());
    list(denied.map(|outcome| outcome.policy().quoted_name().to_owned()))
}
