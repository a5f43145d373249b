use http::request::Parts;

use super::{Key, PeerIp};
use crate::{answer::Answer, error::ErrorKind};

/// The key that a CORS preflight counts by, whose rule gives it `key`.
///
/// A browser sends a preflight without credentials. Where the key is one of these, the peer counts, or, where
/// the server does not know it, all such preflights together. No key that a client can show is one of those.
pub(crate) fn preflight_key(key: Answer<Key>, request: &Parts) -> Answer<Key> {
    let fallback = match PeerIp::new().address(request) {
        Ok(address) => PeerIp::new().key(address),
        Err(_) => Key::new(""),
    };
    key.then(move |key| match key {
        Ok(key) => Ok(key.of_preflight()),
        // Twice, because a preflight may show the address of another client as its identity.
        Err(error) if error.kind() == ErrorKind::MissingIdentity => {
            Ok(fallback.of_preflight().of_preflight())
        }
        Err(error) => Err(error),
    })
}
