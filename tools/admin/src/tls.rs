//! TLS to routers.

use std::{error::Error, fs, io, path::Path, sync::Arc};

use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    },
};

use crate::{failure::Failure, options::Options};

/// Trusts the system's certificates, or only the ones in the file of `--ca`.
pub(crate) fn connector(options: &Options) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    match &options.redis.ca {
        Some(path) => roots.add_parsable_certificates(certificates(path)?),
        None => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    };
    let invalid = |error: &dyn std::fmt::Display| Failure::Usage(format!("TLS cannot be set up: {error}"));
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(&error))?
        .with_root_certificates(roots);
    let config = match (&options.redis.client_certificate, &options.redis.client_key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| invalid(&error))?;
            config.with_client_auth_cert(certificates(certificate)?, key).map_err(|error| invalid(&error))?
        }
        _ => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())
}

/// What went wrong on a connection with TLS, and what to do about it.
pub(crate) fn explain(error: &(dyn Error + 'static)) -> String {
    let remedy = match cause(error) {
        Some(rustls::Error::InvalidCertificate(problem)) => match problem {
            // The latter is an authority of the same name with another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "pass the authority's certificate to --ca, or install it in the system"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "use a host that the certificate names in --url"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "renew the certificate, and check the clocks"
            }
            _ => "the router's certificate is invalid",
        },
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "if the router does not expect TLS, write http:// instead of https://"
        }
        Some(rustls::Error::AlertReceived(alert)) => match alert {
            AlertDescription::CertificateRequired => {
                "the router requires a client certificate: pass one to --client-certificate"
            }
            // What a router with TLS 1.2 answers then.
            AlertDescription::HandshakeFailure => {
                "if the router requires a client certificate, pass one to --client-certificate"
            }
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown => {
                "does the router trust the authority of --client-certificate?"
            }
            _ => return error.to_string(),
        },
        _ => return error.to_string(),
    };
    format!("{error}: {remedy}")
}

/// The error of TLS that `error` stands for.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let cause = inner.and_then(|inner| inner.downcast_ref());
    cause.or_else(|| error.source().and_then(self::cause))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let pem = read(path)?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
    if all.is_empty() {
        return Err(Failure::Usage(format!("{} has no certificate in PEM", path.display())));
    }
    Ok(all)
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))
}
