//! Streams with TLS: the settings of rustls, and the handshake.

use std::sync::Arc;

use redis::RedisResult;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{stream::connect, tls::TlsSettings};
use crate::base::Error;

impl TlsSettings {
    /// The certificates for a client of redis-rs, `None` for the system's.
    #[cfg(feature = "cluster")]
    pub(crate) fn certificates(&self) -> Result<Option<redis::TlsCertificates>, Error> {
        if self.are_default() {
            return Ok(None);
        }
        // redis-rs finds some invalid certificates only when it connects, and others never.
        self.with_roots(self.own_roots()?.unwrap_or_else(RootCertStore::empty))?;
        let client_tls = self.client.clone();
        let client_tls =
            client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        Ok(Some(redis::TlsCertificates { client_tls, root_cert: self.ca.clone() }))
    }

    /// The settings of connections: with the certificates of the CA if there is one, and otherwise with the
    /// system's, which takes milliseconds.
    pub(super) fn client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        let roots = self.own_roots()?.map_or_else(system_roots, Ok)?;
        Ok(Arc::new(self.with_roots(roots)?))
    }

    /// The certificates of the CA, `None` if none is set.
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
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!all.is_empty()).then_some(all)
}

/// The certificates that the system trusts, without those that cannot be read.
fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    ensure!(
        !roots.is_empty(),
        "this system has no certificates of authorities: pass the certificate of the Redis server's authority to \
             RedisStoreBuilder::tls_ca_certificate, or install the system's package of certificates"
    );
    Ok(roots)
}

/// A stream to `host`. The handshake begins only once the server accepts connections, because it costs much
/// more.
pub(super) async fn open(host: &str, port: u16, tls: Arc<ClientConfig>) -> RedisResult<TlsStream<TcpStream>> {
    let tcp = connect(host, port).await?;
    let name = ServerName::try_from(host.to_owned())?;
    Ok(TlsConnector::from(tls).connect(name, tcp).await?)
}
