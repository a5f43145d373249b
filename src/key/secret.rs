use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What turns identities into something that shows nothing of them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<[u8]>);

/// An address has 32 bits: whoever knows or guesses the secret has tried them all within minutes.
const SHORTEST: usize = 16;

impl Secret {
    /// # Panics
    ///
    /// If it is shorter than 16 bytes.
    pub(crate) fn new(secret: &[u8]) -> Self {
        assert!(secret.len() >= SHORTEST, "a secret must have at least 16 bytes, random ones");
        Self(secret.into())
    }

    /// 128 bits of the HMAC-SHA256 of `text`.
    pub(crate) fn mac(&self, text: &str) -> [u8; 16] {
        let mut bits = [0; 16];
        // HMAC takes keys of any length.
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) {
            mac.update(text.as_bytes());
            bits.copy_from_slice(&mac.finalize().into_bytes()[..16]);
        }
        bits
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
