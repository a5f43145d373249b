//! Certificates for TLS, and the crypto provider.

use std::fmt;
#[cfg(feature = "tls-rustls-no-provider")]
use std::io;

use redis::ConnectionInfo;
#[cfg(feature = "tls-rustls-no-provider")]
use {
    redis::{Client, ClientTlsConfig, ConnectionAddr, TlsCertificates},
    rustls::{
        ClientConfig, RootCertStore,
        crypto::CryptoProvider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
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

    /// Adds the certificates to `info` if its URL asks for TLS. Otherwise there must be none.
    pub(crate) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        match info.addr() {
            #[cfg(feature = "tls-rustls-no-provider")]
            ConnectionAddr::TcpTls { .. } => self.with_certificates(info),
            _ if self.are_default() => Ok(info),
            _ => Err(Error::invalid(
                "a certificate for TLS is set, but the Redis URL does not ask for TLS: write rediss://, or remove the \
                 certificate",
            )),
        }
    }

    #[cfg(feature = "tls-rustls-no-provider")]
    fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        let provider_is_missing = Error::invalid(
            "TLS to Redis has no crypto provider: turn on the feature `tls-rustls` of tower-ratelimit, or install a \
             provider of rustls before the store is made",
        );
        ensure_provider().ok_or(provider_is_missing)?;
        let Some(certificates) = self.certificates()? else { return Ok(info) };
        let client = Client::build_with_tls(info, certificates).map_err(|_| Error::invalid(INVALID_CA))?;
        Ok(client.get_connection_info().clone())
    }

    /// The certificates for a client of redis-rs, `None` for the system's.
    #[cfg(feature = "tls-rustls-no-provider")]
    pub(crate) fn certificates(&self) -> Result<Option<TlsCertificates>, Error> {
        if self.are_default() {
            return Ok(None);
        }
        self.check()?;
        let client_tls = self.client.clone();
        Ok(Some(TlsCertificates {
            client_tls: client_tls
                .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: self.ca.clone(),
        }))
    }

    /// Finds invalid certificates. redis-rs would only find some of them, or only when it connects.
    #[cfg(feature = "tls-rustls-no-provider")]
    fn check(&self) -> Result<(), Error> {
        self.with_roots(self.own_roots()?.unwrap_or_else(RootCertStore::empty)).map(|_| ())
    }

    /// The settings of a connection: with the certificates of the CA if there is one, and otherwise with the system's,
    /// which takes a while.
    #[cfg(feature = "tls-rustls-no-provider")]
    pub(super) fn client_config(&self) -> io::Result<ClientConfig> {
        let roots = match self.own_roots().map_err(io::Error::other)? {
            Some(roots) => roots,
            None => system_roots()?,
        };
        self.with_roots(roots).map_err(io::Error::other)
    }

    /// The certificates of the CA.
    #[cfg(feature = "tls-rustls-no-provider")]
    fn own_roots(&self) -> Result<Option<RootCertStore>, Error> {
        let Some(pem) = &self.ca else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem).ok_or_else(|| Error::invalid(INVALID_CA))? {
            roots.add(certificate).map_err(|_| Error::invalid(INVALID_CA))?;
        }
        Ok(Some(roots))
    }

    #[cfg(feature = "tls-rustls-no-provider")]
    fn with_roots(&self, roots: RootCertStore) -> Result<ClientConfig, Error> {
        let config = ClientConfig::builder().with_root_certificates(roots);
        if let Some((certificate, key)) = &self.client {
            let chain = certificates(certificate).ok_or_else(|| {
                Error::invalid("the client certificate for Redis is invalid: it must be a certificate in PEM")
            })?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
                Error::invalid(
                    "the private key of the client certificate for Redis is invalid: it must be in PEM",
                )
            })?;
            return config.with_client_auth_cert(chain, key).map_err(|_| {
                Error::invalid(
                    "the private key of the client certificate for Redis cannot be used: it must belong to the \
                     certificate",
                )
            });
        }
        Ok(config.with_no_client_auth())
    }
}

#[cfg(feature = "tls-rustls-no-provider")]
const INVALID_CA: &str =
    "the CA certificate for Redis is invalid: it must be one or more certificates in PEM";

/// The certificates in `pem`: at least one.
#[cfg(feature = "tls-rustls-no-provider")]
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!all.is_empty()).then_some(all)
}

/// The certificates that the system trusts. One that cannot be read is left out.
#[cfg(feature = "tls-rustls-no-provider")]
fn system_roots() -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(io::Error::other(NO_SYSTEM_CERTIFICATES));
    }
    Ok(roots)
}

/// `explain` has the remedy.
#[cfg(feature = "tls-rustls-no-provider")]
const NO_SYSTEM_CERTIFICATES: &str = "the system has no certificates of authorities";

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
