use http::request::Parts;

use super::{Key, ip::peer_key};
use crate::base::{Answer, ErrorKind};

/// The key of a CORS preflight under a rule whose extractor returns `key`.
///
/// A browser sends a preflight without credentials. If the key is missing for that reason, the address of the peer is
/// used, and if the server does not know that, one key for all such preflights. No other request has one of these keys.
pub(crate) fn preflight_key(key: Answer<Key>, request: &Parts) -> Answer<Key> {
    let fallback = peer_key(request).unwrap_or_else(|| Key::new(""));
    key.then(move |key| match key {
        Ok(key) => Ok(key.of_preflight()),
        // Marked twice, because a preflight can send the address of another client as its identity.
        Err(error) if error.kind() == ErrorKind::MissingIdentity => {
            Ok(fallback.of_preflight().of_preflight())
        }
        Err(error) => Err(error),
    })
}
