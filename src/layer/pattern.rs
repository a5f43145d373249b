//! The patterns of a table, and paths in the form in which they are compared.

use http::Method;
use matchit::InsertError;

use crate::{
    error::{Error, ErrorKind},
    key::percent_decode,
};

/// Stand for a parameter and for a catch-all while a pattern is brought into its form. No request has them.
const PARAMETER: char = '\u{f0000}';
const CATCH_ALL: char = '\u{f0001}';

/// Which requests a route of a table matches.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// As the user writes it.
    text: String,
    /// `None`: every method.
    pub(super) method: Option<Method>,
    /// The path as it is written, with other names of its parameters.
    pub(super) written: String,
    /// The same in canonical form. Patterns with one canonical form are one route.
    pub(super) canonical: String,
}

impl Pattern {
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig), with a message that says what to write.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let invalid = |problem: String| invalid(text, &problem);
        let (method, path) = match text.split_once(char::is_whitespace) {
            Some((method, path)) => (Some(method), path.trim()),
            None => (None, text),
        };
        if !path.starts_with('/') {
            let remedy = if text.is_empty() || path.is_empty() || text.contains("://") {
                "write a path such as \"/orders/{id}\", or a method and a path such as \"POST /orders/{id}\""
                    .into()
            } else if method.is_none() && Method::try_from(path).is_ok_and(|method| is_standard(&method)) {
                format!("write a path after the method, such as \"{path} /orders/{{id}}\"")
            } else {
                format!(
                    "a path begins with a slash: write \"{}/{path}\"",
                    method.map(|m| format!("{m} ")).unwrap_or_default()
                )
            };
            return Err(invalid(remedy));
        }
        let method = method.map(|method| parse_method(text, method, path)).transpose()?;
        if path.contains(['?', '#']) || path.contains(char::is_whitespace) {
            return Err(invalid(
                "only the path is compared: leave out the query, and write a space as %20".into(),
            ));
        }
        for segment in path.split('/') {
            if let Some(name) = segment.strip_prefix(':') {
                return Err(invalid(format!("write the parameter as \"{{{name}}}\"")));
            }
            if let Some(name) = segment.strip_prefix('*') {
                let name = if name.is_empty() { "rest" } else { name };
                return Err(invalid(format!("write the rest of the path as \"{{*{name}}}\"")));
            }
        }
        if let Err(error) = matchit::Router::new().insert(path, ()) {
            return Err(invalid(match error {
                InsertError::InvalidParamSegment => {
                    "a segment has at most one parameter, which ends it, such as \"/v{version}\"".into()
                }
                InsertError::InvalidCatchAll => "\"{*rest}\" must be the end of the path".into(),
                _ => "write a parameter as \"{name}\", the rest of the path as \"{*rest}\", and braces as \"{{\" and \"}}\"".into(),
            }));
        }
        let path = without_names(path);
        let canonical =
            canonical(&path).map_or_else(|| with_names(&path), |canonical| with_names(&canonical));
        Ok(Self { text: text.to_owned(), method, written: with_names(&path), canonical })
    }

    /// As the user writes it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether requests with `method` match, if their path does. GET matches HEAD too, which routers answer as GET.
    pub(super) fn matches(&self, method: &Method) -> bool {
        match &self.method {
            None => true,
            Some(own) => own == method || (own == Method::GET && method == Method::HEAD),
        }
    }

    /// Whether one request can match both, read in one way.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let methods = match (&self.method, &other.method) {
            (Some(own), Some(_)) => {
                other.matches(own) || other.method.as_ref().is_some_and(|m| self.matches(m))
            }
            _ => true,
        };
        methods && self.canonical == other.canonical
    }
}

fn parse_method(text: &str, method: &str, path: &str) -> Result<Method, Error> {
    let upper = method.to_ascii_uppercase();
    match Method::try_from(method) {
        Ok(parsed) if method == upper => Ok(parsed),
        _ if Method::try_from(&*upper).is_ok() => Err(invalid(text, &format!("write \"{upper} {path}\""))),
        _ => Err(invalid(text, &format!("{method:?} is not a method: write one such as \"POST {path}\""))),
    }
}

fn is_standard(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        .contains(method)
}

fn invalid(text: &str, remedy: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("the route {text:?} is invalid: {remedy}"))
}

/// `path`, valid, with characters in place of its parameters and with plain braces.
fn without_names(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let mut chars = path.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '{' | '}' if chars.next_if_eq(&char).is_some() => text.push(char),
            '{' => {
                text.push(if chars.peek() == Some(&'*') { CATCH_ALL } else { PARAMETER });
                for _ in chars.by_ref().take_while(|char| *char != '}') {}
            }
            other => text.push(other),
        }
    }
    text
}

/// The pattern of which `text` is the [form without names](without_names).
fn with_names(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for (at, char) in text.chars().enumerate() {
        match char {
            PARAMETER => pattern.push_str(&format!("{{{at}}}")),
            CATCH_ALL => pattern.push_str("{*rest}"),
            '{' => pattern.push_str("{{"),
            '}' => pattern.push_str("}}"),
            other => pattern.push(other),
        }
    }
    pattern
}

/// How a router may read `path` that is less literal than axum: percent-decoded except for slashes, without dot segments,
/// empty segments and a slash at the end. `None` if that changes nothing.
pub(super) fn canonical(path: &str) -> Option<String> {
    let has_end = path.len() > 1 && path.ends_with('/');
    if !has_end && !path.contains('%') && !path.contains("//") && !path.contains("/.")
        || !path.starts_with('/')
    {
        return None;
    }
    let mut decoded = String::with_capacity(path.len());
    for (i, part) in path.replace("%2f", "%2F").split("%2F").enumerate() {
        decoded.push_str(if i == 0 { "" } else { "%2F" });
        decoded.push_str(&String::from_utf8_lossy(&percent_decode(part.as_bytes())));
    }
    let mut segments = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let canonical = format!("/{}", segments.join("/"));
    (canonical != path).then_some(canonical)
}
