//! The secret with which keys are hashed.

use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::base::Error;

/// A secret that turns identities into hashes which disclose nothing without it.
#[derive(Clone)]
pub(crate) struct Secret(Arc<Inner>);

struct Inner {
    secret: Box<[u8]>,
    /// Made once, because that is half of the work for a short text.
    mac: Hmac<Sha256>,
}

/// The shortest secret in bytes. An IPv4 address has only 32 bits, so its hash is as safe as the secret is.
const SHORTEST: usize = 16;

impl Secret {
    pub(crate) fn new(secret: &[u8]) -> Result<Self, Error> {
        ensure!(secret.len() >= SHORTEST, "a secret must have at least 16 bytes: use 32 random ones");
        let Ok(mac) = Hmac::new_from_slice(secret) else {
            unreachable!("HMAC takes keys of any length");
        };
        Ok(Self(Arc::new(Inner { secret: secret.into(), mac })))
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
