//! Opens connections to servers and sentinels.
//!
//! With TLS, redis-rs reads the certificates of the system for each connection that it opens, on a thread of the runtime,
//! even if it then uses others. That takes long, and fails where the system has none. So the stream is opened here, with
//! settings that are made once, and redis-rs gets it.

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
    /// If servers have TLS.
    #[cfg(feature = "tls-rustls-no-provider")]
    tls: Option<Arc<ClientConfig>>,
}

/// A connection, and its task, which ends with the set: a server that hangs would keep it. Without TLS, redis-rs has the task.
pub(super) type Opened = (MultiplexedConnection, JoinSet<()>);

impl Opener {
    pub(super) fn new(tls: &TlsSettings, info: &ConnectionInfo) -> Result<Self, Error> {
        // Only used with TLS.
        let _ = (tls, info);
        Ok(Self {
            #[cfg(feature = "tls-rustls-no-provider")]
            tls: if is_tls(info) { Some(tls.client_config()?) } else { None },
        })
    }

    pub(super) async fn open(&self, info: &ConnectionInfo) -> RedisResult<Opened> {
        // Without the timeouts of redis-rs: who sends a call knows its deadline, and the time in which a runtime does not
        // run would count.
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
