//! The host that a request names.

use std::borrow::Cow;

use http::{header::HOST, request::Parts};

/// The hosts that `request` names, [normalized](normalized): HTTP/2 and HTTP/3 have it in `:authority`, and
/// HTTP/1.1 in the header `host`, or in a URL that is the request's target.
pub(super) fn hosts(request: &Parts) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let authority = request.uri.authority().map(|authority| authority.as_str().as_bytes());
    let headers = request.headers.get_all(HOST).iter().map(|value| value.as_bytes().trim_ascii());
    authority.into_iter().chain(headers).map(normalized)
}

/// `authority` in lower case, without the user, the port and one dot at its end.
///
/// Clients write names in any case, and with the dot of a complete name. The port is the client's text as
/// well: nothing compares it with the port of the connection, so each of 65,536 would be a separate key.
pub(super) fn normalized(authority: &[u8]) -> Cow<'_, [u8]> {
    let host = authority.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
    // The colons of an IPv6 address are in brackets.
    let address = if host.starts_with(b"[") { host.iter().position(|byte| *byte == b']') } else { None };
    let from = address.unwrap_or_default();
    let colon = host[from..].iter().position(|byte| *byte == b':');
    let name = &host[..colon.map_or(host.len(), |colon| from + colon)];
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}
