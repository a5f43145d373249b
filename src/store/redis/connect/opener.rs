//! Opens connections to servers and sentinels.
//!
//! With TLS, redis-rs reads the certificates of the system for each connection that it opens, on a thread of
//! the runtime, even if it then uses others. That takes long, and fails on a system without certificates. So
//! the stream is opened here, with settings that are made once, and handed to redis-rs.

use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisResult, aio::MultiplexedConnection};
use tokio::task::JoinSet;
#[cfg(feature = "tls-rustls-no-provider")]
use {redis::ConnectionAddr, rustls::ClientConfig, std::sync::Arc};

use super::tls::TlsSettings;
#[cfg(feature = "tls-rustls-no-provider")]
use super::{address::is_tls, tls_stream};
use crate::{base::Error, store::redis::transport::answered};

/// Opens connections with the certificates of a store.
#[derive(Clone)]
pub(super) struct Opener {
    /// The settings of TLS, if the servers have it.
    #[cfg(feature = "tls-rustls-no-provider")]
    tls: Option<Arc<ClientConfig>>,
}

/// A connection, and the task that drives it. The task ends when the set is dropped, even if the server
/// hangs. Without TLS, redis-rs owns the task, and the set is empty.
pub(super) type Opened = (MultiplexedConnection, JoinSet<()>);

impl Opener {
    pub(super) fn new(tls: &TlsSettings, info: &ConnectionInfo) -> Result<Self, Error> {
        // Both are only used with TLS.
        let _ = (tls, info);
        Ok(Self {
            #[cfg(feature = "tls-rustls-no-provider")]
            tls: if is_tls(info) { Some(tls.client_config()?) } else { None },
        })
    }

    pub(super) async fn open(&self, info: &ConnectionInfo) -> RedisResult<Opened> {
        // The timeouts of redis-rs are off: the sender of a call knows its deadline, and they would count
        // time in which the runtime does not run.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        #[cfg(feature = "tls-rustls-no-provider")]
        if let (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) = (info.addr(), &self.tls) {
            return answered(async {
                let stream = tls_stream::open(host, *port, tls.clone()).await?;
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
                let mut task = JoinSet::new();
                task.spawn(driver);
                Ok((connection, task))
            })
            .await;
        }
        let client = Client::open(info.clone())?;
        let connection = answered(client.get_multiplexed_async_connection_with_config(&config)).await?;
        Ok((connection, JoinSet::new()))
    }
}
