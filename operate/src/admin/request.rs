//! The parts of a request: path, query and body.

use std::{collections::HashMap, fmt::Display};

use axum::{
    body::Bytes,
    extract::{
        Path,
        rejection::{BytesRejection, PathRejection},
    },
};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The parameters of the path. The router may be nested under a path with parameters of the same names, of
/// which a map keeps the last.
pub(super) type PathNames = Result<Path<HashMap<String, String>>, PathRejection>;

pub(super) struct Names {
    pub(super) policy: String,
    /// Empty if the path has none.
    pub(super) key: String,
}

/// The body.
pub(super) type Body = Result<Bytes, BytesRejection>;

pub(super) fn names(path: PathNames) -> Result<Names, Problem> {
    let Path(mut names) = path.map_err(|rejection| {
        Problem::bad_request(format!(
            "{}: encode the name of the policy and the key, and in the key write a byte that is not UTF-8 as %25FF",
            rejection.body_text()
        ))
    })?;
    let [policy, key] = ["policy", "key"].map(|name| names.remove(name).unwrap_or_default());
    Ok(Names { policy, key })
}

/// The names, whose key is not empty.
pub(super) fn with_key(names: Names) -> Result<Names, Problem> {
    // Probably a script with an unset variable.
    if names.key.is_empty() {
        return Err(Problem::bad_request("the path has no key: write `%25` for the empty identity"));
    }
    Ok(names)
}

/// The `cost` in the query. Defaults to 1.
pub(super) fn cost(query: Option<&str>) -> Result<u64, Problem> {
    let mut cost = 1;
    for parameter in query.unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty()) {
        cost = parameter.strip_prefix("cost=").and_then(|units| units.parse().ok()).ok_or_else(|| {
            Problem::bad_request("the only parameter is `cost`, a whole number of units: write `?cost=5`")
        })?;
    }
    Ok(cost)
}

/// The body, which is JSON such as `example`.
pub(super) fn body<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    example: &str,
) -> Result<T, Problem> {
    // A web page of another origin can send other types without the browser asking first.
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON: send the header `content-type: application/json`",
        ));
    }
    let body = body.map_err(|rejection| Problem::new(rejection.status(), rejection.body_text()))?;
    let invalid = |problem: &dyn Display| {
        Problem::bad_request(format!("the body must be JSON such as {example}: {problem}"))
    };
    // serde reads the members from a list too.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(invalid(&"it is a list"));
    }
    serde_json::from_slice(&body).map_err(|error| invalid(&error))
}
