//! Connections with TLS.
//!
//! redis-rs reads the certificates of the system for each connection that it opens, on a thread of the runtime, even if it
//! then uses others. That takes long, and fails where the system has none. So the stream is opened here, with settings
//! that are made once, and redis-rs gets it.

use std::{
    io,
    sync::{Arc, Mutex},
};

use redis::{ConnectionInfo, RedisResult, aio::MultiplexedConnection};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    net::{TcpStream, lookup_host},
    task::{AbortHandle, JoinSet, spawn_blocking},
};
use tokio_rustls::TlsConnector;

use super::tls::TlsSettings;
use crate::base::sync::lock;

/// Opens connections with the certificates of a store.
pub(super) struct Connector {
    settings: TlsSettings,
    /// `None` until the first connection. Locked while it is made, on a thread that any runtime may wait for.
    config: Arc<Mutex<Option<Arc<ClientConfig>>>>,
}

/// Ends the task of a connection once nothing uses it: a server that hangs would keep it.
pub(super) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connector {
    pub(super) fn new(settings: TlsSettings) -> Self {
        Self { settings, config: Arc::default() }
    }

    /// Connects to `host`. The handshake begins only once the server accepts connections, because it costs much more.
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        info: &ConnectionInfo,
        config: redis::AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, Driver)> {
        let tcp = open(host, port).await?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(self.config().await?);
        let name = ServerName::try_from(host.to_owned())?;
        let stream = tls.connect(name, tcp).await?;
        let (connection, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
        Ok((connection, Driver(tokio::spawn(driver).abort_handle())))
    }

    async fn config(&self) -> io::Result<Arc<ClientConfig>> {
        let (settings, config) = (self.settings.clone(), self.config.clone());
        let made = spawn_blocking(move || {
            let mut config = lock(&config);
            if let Some(config) = &*config {
                return Ok(config.clone());
            }
            let made = Arc::new(settings.client_config()?);
            *config = Some(made.clone());
            Ok(made)
        });
        made.await.map_err(io::Error::other)?
    }
}

/// Connects to the first address of `host` that accepts it.
async fn open(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|ended| Err(io::Error::other(ended))) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
