//! Identities, hashed.

use std::hash::{BuildHasher as _, RandomState};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tower_ratelimit::Key;

use crate::verdicts::shown;

/// Shows keys, or a hash of them under a secret of this run, from which an address cannot be found by trying
/// all of them.
pub(super) struct Names(Option<Hmac<Sha256>>);

impl Names {
    pub(super) fn new(shows_keys: bool) -> Self {
        // The standard library seeds a `RandomState` from the system.
        let secret: Vec<u8> =
            (0..4).flat_map(|place: u64| RandomState::new().hash_one(place).to_le_bytes()).collect();
        Self(if shows_keys { None } else { Hmac::new_from_slice(&secret).ok() })
    }

    /// The text for `key`, not escaped.
    pub(super) fn of(&self, key: &Key) -> String {
        let Some(keyed) = &self.0 else { return shown(key) };
        let hash = keyed.clone().chain_update(key.as_str()).finalize().into_bytes();
        let hex = hash.iter().take(6).map(|byte| format!("{byte:02x}"));
        format!("#{}", hex.collect::<String>())
    }
}
