//! The patterns of a table, and the ways in which a path can be read.

use http::Method;
use matchit::InsertError;

use crate::{
    base::{Error, ErrorKind},
    key::percent_decode,
};

/// Which requests a route of a table matches.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// The pattern as the user writes it.
    pub(super) text: String,
    /// None: every method.
    pub(super) methods: Vec<Method>,
    /// The path with numbered parameters: as it is written, and with each combination of the [changes](CHANGES).
    pub(super) forms: Vec<String>,
}

/// The methods that a text can name: those registered with IANA, and two that are widely used.
const METHODS: &str = "ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK MERGE \
    MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PROPFIND PROPPATCH PURGE PUT \
    QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL";

impl Pattern {
    /// Reads a path, or one or more methods and a path.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig), with a message that states what to write.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let (methods, path) =
            parse(text).map_err(|remedy| invalid!("the route {text:?} is invalid: {remedy}"))?;
        Ok(Self { text: text.to_owned(), methods, forms: forms(renamed(path)) })
    }

    /// Whether requests with `method` match, if their path does. GET matches HEAD too, which routers answer
    /// as GET, and CONNECT: with a path, it opens what GET opens over HTTP/1.1, such as a WebSocket (RFC
    /// 8441). Any other CONNECT has no path, which no route matches.
    pub(super) fn matches(&self, method: &Method) -> bool {
        let has = |method| self.methods.contains(method);
        let is_as_get = matches!(*method, Method::HEAD | Method::CONNECT);
        self.methods.is_empty() || has(method) || (is_as_get && has(&Method::GET))
    }

    /// Whether `path` is one of this pattern's normalized forms.
    pub(super) fn reads_as(&self, path: &str) -> bool {
        self.forms.iter().any(|form| form == path)
    }

    /// Whether both are one route: they are the same with all changes.
    pub(super) fn is_route_of(&self, other: &Self) -> bool {
        self.forms.last() == other.forms.last()
    }

    /// Whether each request that matches `other` matches this one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty() && other.methods.iter().all(|method| self.matches(method)));
        methods && self.is_route_of(other)
    }

    /// Whether one request can match both, read in one way.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let meets = |one: &Self, other: &Self| {
            one.methods.is_empty() || one.methods.iter().any(|method| other.matches(method))
        };
        self.is_route_of(other) && (meets(self, other) || meets(other, self))
    }
}

/// The methods and the path of `text`, or what to write instead.
fn parse(text: &str) -> Result<(Vec<Method>, &str), String> {
    let begins_path = |at: usize| text[..at].ends_with(char::is_whitespace);
    let Some((at, _)) = text.match_indices('/').find(|(at, _)| *at == 0 || begins_path(*at)) else {
        let (first, rest) = text.split_once(char::is_whitespace).unwrap_or(("", text));
        let rest = rest.trim();
        return Err(if rest.is_empty() || text.contains("://") {
            "write a path such as \"/orders/{id}\", or a method and a path such as \"POST /orders/{id}\""
                .into()
        } else if first.is_empty() && is_known(rest) {
            format!("write a path after the method, such as \"{rest} /orders/{{id}}\"")
        } else {
            let space = if first.is_empty() { "" } else { " " };
            format!("a path begins with a slash: write \"{first}{space}/{rest}\"")
        });
    };
    let path = text[at..].trim_end();
    let methods = parse_methods(text[..at].trim(), path)?;
    if let Some((path, method)) = path.split_once(char::is_whitespace)
        && is_known(method.trim())
    {
        return Err(format!("write the method before the path: \"{} {path}\"", method.trim()));
    }
    if path.contains(['?', '#']) || path.contains(char::is_whitespace) {
        return Err("only the path is compared: leave out the query, and write a space as %20".into());
    }
    for segment in path.split('/') {
        if let Some(name) = segment.strip_prefix(':') {
            return Err(format!("write the parameter as \"{{{name}}}\""));
        }
        if segment.starts_with('*') {
            let name = segment.trim_matches('*');
            let name = if name.is_empty() { "rest" } else { name };
            return Err(format!("write the rest of the path as \"{{*{name}}}\""));
        }
    }
    match matchit::Router::new().insert(path, ()) {
        Ok(()) => Ok((methods, path)),
        Err(InsertError::InvalidParamSegment) => {
            Err("a segment has at most one parameter, which ends it, such as \"/v{version}\"".into())
        }
        Err(InsertError::InvalidCatchAll) => Err("\"{*rest}\" must be the end of the path".into()),
        Err(_) => Err(
            "write a parameter as \"{name}\", the rest of the path as \"{*rest}\", and braces as \"{{\" and \
                       \"}}\""
                .into(),
        ),
    }
}

/// The methods that `text` names in front of `path`, or what to write instead.
fn parse_methods(text: &str, path: &str) -> Result<Vec<Method>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let names = text.split(|char: char| char.is_whitespace() || "|,".contains(char));
    let names: Vec<_> = names.filter(|name| !name.is_empty()).map(str::to_ascii_uppercase).collect();
    if let [name] = &*names
        && matches!(&**name, "*" | "ANY" | "ALL")
    {
        return Err(format!("for all methods, leave the method out: write {path:?}"));
    }
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        return Err(format!(
            "{name:?} is not a known method: write one such as \"POST {path}\", or leave the method out"
        ));
    }
    let plain = names.join("|");
    if plain != text {
        return Err(format!("write \"{plain} {path}\""));
    }
    let methods = names.iter().filter_map(|name| Method::try_from(&**name).ok());
    Ok(methods.collect())
}

fn is_known(method: &str) -> bool {
    METHODS.split(' ').any(|known| known == method)
}

/// `path`, valid, with one name for all parameters, because their names do not matter.
fn renamed(path: &str) -> String {
    let mut renamed = String::with_capacity(path.len());
    let mut chars = path.chars().peekable();
    while let Some(char) = chars.next() {
        renamed.push(char);
        if "{}".contains(char) && chars.next_if_eq(&char).is_some() {
            renamed.push(char);
        } else if char == '{' {
            renamed.push_str(if chars.next_if_eq(&'*').is_some() { "*p}" } else { "p}" });
            for _ in chars.by_ref().take_while(|char| *char != '}') {}
        }
    }
    renamed
}

/// What routers and the middlewares in front of them do to a path before they compare it, in this order.
const CHANGES: [fn(&str) -> Option<String>; 4] = [decoded, merged, resolved, trimmed];

/// What services of axum do to a path that are nested with `nest_service`. Three may be nested in each other,
/// and one parameter of their prefixes may be empty, so that all readings of a path are known.
const NESTED: [fn(&str) -> Option<String>; 6] =
    [unslashed, unslashed, unslashed, unslashed_later, unslashed_later, unslashed_later];

/// The most bytes of all readings of a path: one reading of the longest path that hyper accepts, or eight of
/// a path of 8 KiB, which is what most servers and proxies accept.
const MOST_BYTES: usize = 64 * 1024;

/// The other ways in which a router may read `path`: with each combination of the [changes](CHANGES), and as
/// [nested services](NESTED) of axum do; and whether `path` is decoded for it. Nearly every path has none;
/// at most 135.
///
/// # Errors
///
/// [`InvalidIdentity`](ErrorKind::InvalidIdentity): the readings are longer than [`MOST_BYTES`]. So a path
/// costs a bounded time, and as not all of its rules are known, the request must be rejected.
pub(super) fn readings(path: &str) -> Result<Vec<(String, bool)>, Error> {
    if is_plain(path) {
        return Ok(Vec::new());
    }
    let mut bytes = 0;
    let mut made = |changed: String| {
        bytes += changed.len();
        if bytes <= MOST_BYTES { Ok(changed) } else { Err(too_long()) }
    };
    let mut readings = vec![(path.to_owned(), false)];
    if let Some(decoded) = decoded(path).filter(|decoded| decoded != path) {
        readings.push((made(decoded)?, true));
    }
    for change in CHANGES[1..].iter().chain(&NESTED) {
        for at in 0..readings.len() {
            let (reading, is_decoded) = &readings[at];
            let (changed, is_decoded) = (change(reading), *is_decoded);
            let Some(changed) = changed else { continue };
            let changed = made(changed)?;
            match readings.iter_mut().find(|(known, _)| *known == changed) {
                // A router that does not decode reads it so, too.
                Some((_, known)) => *known &= is_decoded,
                None => readings.push((changed, is_decoded)),
            }
        }
    }
    Ok(readings.split_off(1))
}

#[cold]
fn too_long() -> Error {
    let message =
        "the path is too long for one with repeated slashes, dot segments or percent-encoded characters";
    Error::new(ErrorKind::InvalidIdentity, message)
}

/// The pattern `path` with each combination of the changes: none first, all last.
fn forms(path: String) -> Vec<String> {
    // A pattern has two braces for one that is decoded.
    let escaped = path.replace("%7B", "{{").replace("%7b", "{{").replace("%7D", "}}").replace("%7d", "}}");
    let decoded = decoded(&escaped).unwrap_or(escaped);
    let mut forms = vec![path, decoded];
    for change in &CHANGES[1..] {
        let changed: Vec<_> = forms.iter().map(|form| change(form).unwrap_or_else(|| form.clone())).collect();
        forms.extend(changed);
    }
    forms
}

/// Whether no change changes `path`.
fn is_plain(path: &str) -> bool {
    let ends = path.len() > 1 && path.ends_with('/');
    !path.starts_with('/') || !(ends || path.contains('%') || path.contains("//") || path.contains("/."))
}

/// `path`, percent-decoded except for slashes.
fn decoded(path: &str) -> Option<String> {
    if !path.contains('%') {
        return None;
    }
    let decoded = |part: &str| String::from_utf8_lossy(&percent_decode(part.as_bytes())).into_owned();
    let parts: Vec<String> = path.replace("%2f", "%2F").split("%2F").map(decoded).collect();
    Some(parts.join("%2F"))
}

/// `path` with one slash in place of several.
fn merged(path: &str) -> Option<String> {
    if !path.contains("//") {
        return None;
    }
    let mut merged = String::with_capacity(path.len());
    for segment in path.split_inclusive('/') {
        if segment != "/" || !merged.ends_with('/') {
            merged.push_str(segment);
        }
    }
    Some(merged)
}

/// `path` without one slash of the first run of several: what a service sees that is nested with
/// `nest_service` in front of them, after the prefix.
fn unslashed(path: &str) -> Option<String> {
    // Much faster than a search for the place.
    if !path.contains("//") {
        return None;
    }
    let (before, after) = path.split_once("//")?;
    Some(format!("{before}/{after}"))
}

/// The same for the second run of slashes. The first one is around an empty parameter of the prefix.
fn unslashed_later(path: &str) -> Option<String> {
    let (_, after) = path.split_once("//")?;
    let after = after.trim_start_matches('/');
    let kept = path.strip_suffix(after)?;
    unslashed(after).map(|after| format!("{kept}{after}"))
}

/// `path` without dot segments.
fn resolved(path: &str) -> Option<String> {
    if !path.contains("/.") || !path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return None;
    }
    let mut segments = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        segments.push("");
    }
    Some(format!("/{}", segments.join("/")))
}

/// `path` with one slash at its start and none at its end.
fn trimmed(path: &str) -> Option<String> {
    let inner = path.trim_matches('/');
    (inner.len() + 1 != path.len()).then(|| format!("/{inner}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readings_of_a_path_have_a_bounded_size() {
        for filler in [
            "a",
            "/",
            "//",
            "/.",
            "/..",
            "/x/..",
            "%",
            "%ff",
            "%2F",
            "%2e%2e//./%61/..",
            "//%2F%2f/./%25/..//",
        ] {
            for bytes in [10, 100, 1_000, 8_192, 65_534] {
                let path = format!("/{}", filler.repeat(bytes / filler.len()));
                let Ok(readings) = readings(&path) else {
                    assert!(bytes > 100, "{filler}");
                    continue;
                };
                assert!(readings.len() <= 135, "{filler}: {}", readings.len());
                let all: usize = readings.iter().map(|(reading, _)| reading.len()).sum();
                assert!(all <= MOST_BYTES, "{filler}, {bytes}: {all}");
            }
        }
    }
}
