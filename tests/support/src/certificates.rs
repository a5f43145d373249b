//! A certificate authority for one test, and the files that a redis-server with TLS needs.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::redis_server::{RedisServer, bus_is_free, free_port};

/// An authority and what it signed for `localhost` and `127.0.0.1`, in PEM. Its files live as long as the value.
pub struct Authority {
    pub ca: String,
    pub certificate: String,
    pub key: String,
    directory: PathBuf,
}

impl Authority {
    pub fn new() -> Self {
        Self::for_hosts(&["localhost", "127.0.0.1"])
    }

    pub fn for_hosts(hosts: &[&str]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let mut params = CertificateParams::new([]).unwrap();
        // OpenSSL takes a certificate for self-signed if it has the name of its issuer.
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
        let certificate = CertificateParams::new(hosts).unwrap().signed_by(&key, &issuer).unwrap().pem();
        let key = key.serialize_pem();
        let name =
            format!("tower-ratelimit-tls-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        for (file, pem) in [("ca.pem", &ca), ("server.pem", &certificate), ("server.key", &key)] {
            fs::write(directory.join(file), pem).unwrap();
        }
        Self { ca, certificate, key, directory }
    }

    /// A server with this authority's certificate, and its URL for TLS. Its other port is without TLS.
    pub fn serve(&self, arguments: &[&str]) -> (RedisServer, String) {
        let (tls, url) = self.arguments();
        let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
        (RedisServer::with(&[&tls, arguments].concat()), url)
    }

    /// The arguments of such a server or cluster node, and its URL.
    pub fn arguments(&self) -> (Vec<String>, String) {
        let port = (0..100).map(|_| free_port()).find(|&port| bus_is_free(port)).unwrap().to_string();
        let path = |file: &str| self.directory.join(file).to_str().unwrap().to_owned();
        let [ca, certificate, key] = ["ca.pem", "server.pem", "server.key"].map(path);
        let tls = [
            ["--tls-port", &port],
            ["--tls-ca-cert-file", &ca],
            ["--tls-cert-file", &certificate],
            ["--tls-key-file", &key],
        ];
        let arguments = tls.as_flattened().iter().map(|&word| word.to_owned()).collect();
        (arguments, format!("rediss://127.0.0.1:{port}"))
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
