//! Certificates for TLS, and the crypto provider.

use std::fmt;
#[cfg(feature = "tls-rustls-no-provider")]
use std::sync::Arc;

use redis::ConnectionAddr;
#[cfg(feature = "tls-rustls-no-provider")]
use redis::{ClientTlsConfig, TlsCertificates};
#[cfg(feature = "tls-rustls-no-provider")]
use rustls::{
    ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::base::Error;

/// The certificates of a store, in PEM. Defaults to the system's certificates.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    /// Of the authority that signed the server's certificate.
    pub(crate) ca: Option<Vec<u8>>,
    /// The client's certificate and its private key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsSettings {
    const fn are_default(&self) -> bool {
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

    /// The certificates for a client of redis-rs, `None` for the system's.
    #[cfg(feature = "cluster")]
    #[cfg(feature = "tls-rustls-no-provider")]
    pub(crate) fn certificates(&self) -> Result<Option<TlsCertificates>, Error> {
        if self.are_default() {
            return Ok(None);
        }
        // redis-rs would only find some invalid certificates, or only when it connects.
        self.with_roots(self.own_roots()?.unwrap_or_else(RootCertStore::empty))?;
        let client_tls = self.client.clone();
        let client_tls =
            client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok(Some(TlsCertificates { client_tls, root_cert: self.ca.clone() }))
    }

    /// The settings of connections: with the certificates of the CA if there is one, and otherwise with the system's,
    /// which takes milliseconds.
    #[cfg(feature = "tls-rustls-no-provider")]
    pub(super) fn client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        let roots = self.own_roots()?.map_or_else(system_roots, Ok)?;
        Ok(Arc::new(self.with_roots(roots)?))
    }

    /// The certificates of the CA.
    #[cfg(feature = "tls-rustls-no-provider")]
    fn own_roots(&self) -> Result<Option<RootCertStore>, Error> {
        let invalid = || {
            Error::invalid(
                "the CA certificate for Redis is invalid: it must be one or more certificates in PEM",
            )
        };
        let Some(pem) = &self.ca else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem).ok_or_else(invalid)? {
            roots.add(certificate).map_err(|_| invalid())?;
        }
        Ok(Some(roots))
    }

    #[cfg(feature = "tls-rustls-no-provider")]
    fn with_roots(&self, roots: RootCertStore) -> Result<ClientConfig, Error> {
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some((certificate, key)) = &self.client else { return Ok(config.with_no_client_auth()) };
        let chain = certificates(certificate).ok_or_else(|| {
            Error::invalid("the client certificate for Redis is invalid: it must be a certificate in PEM")
        })?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            Error::invalid(
                "the private key of the client certificate for Redis is invalid: it must be in PEM",
            )
        })?;
        config.with_client_auth_cert(chain, key).map_err(|_| {
            Error::invalid(
                "the private key of the client certificate for Redis cannot be used: it must belong to the certificate",
            )
        })
    }
}

/// The certificates in `pem`: at least one.
#[cfg(feature = "tls-rustls-no-provider")]
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!all.is_empty()).then_some(all)
}

/// The certificates that the system trusts. One that cannot be read is left out.
#[cfg(feature = "tls-rustls-no-provider")]
fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid(
            "this system has no certificates of authorities: pass the certificate of the Redis server's authority to \
             RedisStoreBuilder::tls_ca_certificate, or install the system's package of certificates",
        ));
    }
    Ok(roots)
}

/// Installs ring unless the program has installed a provider. rustls panics if no provider is compiled in, or if
/// several are compiled in and none is installed; redis-rs takes no provider as a setting.
#[cfg(feature = "tls-rustls-no-provider")]
fn ensure_provider() -> Option<()> {
    #[cfg(feature = "tls-rustls")]
    if CryptoProvider::get_default().is_none() {
        // The error means that another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    CryptoProvider::get_default().map(|_| ())
}

/// Shows what is set and no part of it.
impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}
