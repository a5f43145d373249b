//! Opens connections to servers and sentinels.
//!
//! With TLS, redis-rs reads the certificates of the system for each connection that it opens, on a thread of
//! the runtime, even if it then uses others. That takes long, and fails on a system without certificates. So
//! the stream is opened here, with settings that are made once, and handed to redis-rs.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisResult, aio::MultiplexedConnection,
};
#[cfg(feature = "tls-rustls-no-provider")]
use rustls::ClientConfig;
use tokio::task::JoinSet;

#[cfg(feature = "tls-rustls-no-provider")]
use super::{address::is_tls, tls_stream};
use super::{
    stream::{connect, set_up},
    tls::TlsSettings,
};
use crate::{
    base::Error,
    store::redis::{
        credentials::{Authenticator, Session, is_login_error, not_accepted},
        transport::answered,
    },
};

/// Opens connections with the certificates of a store.
#[derive(Clone)]
pub(super) struct Opener {
    /// The settings of TLS, if the servers have it.
    #[cfg(feature = "tls-rustls-no-provider")]
    tls: Option<Arc<ClientConfig>>,
    /// Logs in instead of the user and the password of the address.
    authenticator: Option<Arc<Authenticator>>,
}

/// An open connection.
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    /// `None` if the address has the credentials.
    pub(super) session: Option<Session>,
    /// The task that drives the connection. For a Unix socket, redis-rs owns the task, and the set is empty.
    _task: JoinSet<()>,
}

impl Opener {
    pub(super) fn new(
        tls: &TlsSettings,
        info: &ConnectionInfo,
        authenticator: Option<Arc<Authenticator>>,
    ) -> Result<Self, Error> {
        // Both are only used with TLS.
        let _ = (tls, info);
        Ok(Self {
            #[cfg(feature = "tls-rustls-no-provider")]
            tls: if is_tls(info) { Some(tls.client_config()?) } else { None },
            authenticator,
        })
    }

    /// The same for servers that do not have the credentials of the authenticator.
    #[cfg(feature = "sentinel")]
    pub(super) fn without_authenticator(&self) -> Self {
        Self { authenticator: None, ..self.clone() }
    }

    pub(super) async fn open(&self, info: &ConnectionInfo) -> RedisResult<Opened> {
        let Some(authenticator) = &self.authenticator else {
            let (connection, _task) = self.connect(info).await?;
            return Ok(Opened { connection, session: None, _task });
        };
        let mut login = authenticator.login().await?;
        loop {
            let settings = login.settings(info.redis_settings());
            match self.connect(&info.clone().set_redis_settings(settings)).await {
                Ok((connection, _task)) => {
                    let session = Some(Session::begin(authenticator.clone(), login, connection.clone()));
                    return Ok(Opened { connection, session, _task });
                }
                // Ends, because the provider is called once a second at most.
                Err(error) if is_login_error(&error) => {
                    login = authenticator.instead_of(&login).await.ok_or_else(not_accepted)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn connect(&self, info: &ConnectionInfo) -> RedisResult<(MultiplexedConnection, JoinSet<()>)> {
        // The timeouts of redis-rs are off: the sender of a call knows its deadline, and they would count
        // time in which the runtime does not run.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let settings = info.redis_settings();
        #[cfg(feature = "tls-rustls-no-provider")]
        if let (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) = (info.addr(), &self.tls) {
            let opened =
                async { set_up(settings, tls_stream::open(host, *port, tls.clone()).await?, config).await };
            return answered(opened).await;
        }
        if let ConnectionAddr::Tcp(host, port) = info.addr() {
            return answered(async { set_up(settings, connect(host, *port).await?, config).await }).await;
        }
        let client = Client::open(info.clone())?;
        let connection = answered(client.get_multiplexed_async_connection_with_config(&config)).await?;
        Ok((connection, JoinSet::new()))
    }
}
