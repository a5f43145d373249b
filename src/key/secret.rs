use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What turns identities into something that shows nothing of them.
#[derive(Clone)]
pub(crate) struct Secret(Arc<Inner>);

struct Inner {
    secret: Box<[u8]>,
    /// Made once: that is half of what a short text costs.
    mac: Hmac<Sha256>,
}

/// An address has 32 bits: whoever knows or guesses the secret has tried them all within minutes.
const SHORTEST: usize = 16;

impl Secret {
    /// # Panics
    ///
    /// If it is shorter than 16 bytes.
    pub(crate) fn new(secret: &[u8]) -> Self {
        assert!(secret.len() >= SHORTEST, "a secret must have at least 16 bytes, random ones");
        let Ok(mac) = Hmac::new_from_slice(secret) else {
            unreachable!("HMAC takes keys of any length");
        };
        Self(Arc::new(Inner { secret: secret.into(), mac }))
    }

    /// 128 bits of the HMAC-SHA256 of `text`.
    pub(crate) fn mac(&self, text: &str) -> [u8; 16] {
        let mut bits = [0; 16];
        let mac = self.0.mac.clone().chain_update(text).finalize();
        bits.copy_from_slice(&mac.into_bytes()[..16]);
        bits
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.secret == other.0.secret
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
