//! TLS to routers.

use std::{fs, path::Path, sync::Arc};

use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    },
};

use crate::{failure::Failure, options::Options};

/// Trusts the system's certificates, or only the ones in the file of `--ca`.
pub(crate) fn connector(options: &Options) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    match &options.ca {
        Some(path) => roots.add_parsable_certificates(certificates(path)?),
        None => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    };
    let invalid = |error: &dyn std::fmt::Display| Failure::Usage(format!("TLS cannot be set up: {error}"));
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(&error))?
        .with_root_certificates(roots);
    let config = match (&options.client_certificate, &options.client_key) {
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
