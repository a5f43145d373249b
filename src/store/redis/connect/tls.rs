//! The certificates for TLS that a store is given. `tls_stream` builds the settings of rustls from them.

use std::fmt;

use redis::ConnectionAddr;
#[cfg(feature = "tls-rustls-no-provider")]
use rustls::crypto::CryptoProvider;

use crate::base::Error;

/// The certificates of a store, in PEM. Defaults to the system's certificates.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    /// The certificate of the authority that signed the server's certificate.
    pub(crate) ca: Option<Vec<u8>>,
    /// The client's certificate and its private key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsSettings {
    pub(super) const fn are_default(&self) -> bool {
        self.ca.is_none() && self.client.is_none()
    }

    /// Checks that TLS has a crypto provider, and that certificates are only set for a server with TLS.
    pub(super) fn check(&self, address: &ConnectionAddr) -> Result<(), Error> {
        match address {
            #[cfg(feature = "tls-rustls-no-provider")]
            ConnectionAddr::TcpTls { .. } => ensure_provider().ok_or_else(|| {
                Error::invalid(
                    "TLS to Redis has no crypto provider: turn on the feature `tls-rustls` of tower-ratelimit, or install a \
                     provider of rustls before the store is made",
                )
            }),
            _ if self.are_default() => Ok(()),
            _ => Err(Error::invalid(
                "a certificate for TLS is set, but the Redis URL does not ask for TLS: write rediss://, or remove the \
                 certificate",
            )),
        }
    }
}

/// Installs ring unless the program has installed a provider. rustls panics if no provider is compiled in, or
/// if several are compiled in and none is installed; redis-rs takes no provider as a setting.
#[cfg(feature = "tls-rustls-no-provider")]
fn ensure_provider() -> Option<()> {
    #[cfg(feature = "tls-rustls")]
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    CryptoProvider::get_default().map(|_| ())
}

/// Shows which certificates are set, and no part of them.
impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
