//! Opens connections to servers and sentinels.

#[cfg(feature = "tls-rustls-no-provider")]
use redis::ConnectionAddr;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

#[cfg(feature = "tls-rustls-no-provider")]
use super::encrypted::{Connector, Driver};
use super::{tls::TlsSettings, transport::answered};

/// Opens connections with the certificates of a store.
pub(super) struct Opener {
    #[cfg(feature = "tls-rustls-no-provider")]
    tls: Connector,
}

/// A connection to a server.
pub(super) struct Connection {
    inner: MultiplexedConnection,
    /// With TLS. Otherwise redis-rs has it.
    #[cfg(feature = "tls-rustls-no-provider")]
    _driver: Option<Driver>,
    /// If sentinels named its server.
    #[cfg(feature = "sentinel")]
    pub(super) follows: Option<Box<dyn Follow>>,
}

/// Follows the server that sentinels name.
#[cfg(feature = "sentinel")]
pub(super) trait Follow: Send + Sync {
    /// Whether the sentinels name another server now.
    fn is_outdated(&mut self) -> bool;

    /// Call it before a command.
    ///
    /// # Errors
    ///
    /// The error of a closed connection, if the sentinels name another server.
    fn before_command(&mut self) -> RedisResult<()>;

    /// Call it with each reply.
    fn observe(&self, reply: &RedisResult<Value>);
}

impl Opener {
    pub(super) fn new(tls: &TlsSettings) -> Self {
        // Only used with TLS.
        let _ = tls;
        Self {
            #[cfg(feature = "tls-rustls-no-provider")]
            tls: Connector::new(tls.clone()),
        }
    }

    pub(super) async fn open(&self, info: &ConnectionInfo) -> RedisResult<Connection> {
        // Without the timeouts of redis-rs: who sends a call knows its deadline, and the time in which a runtime does not
        // run would count.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        #[cfg(feature = "tls-rustls-no-provider")]
        if let ConnectionAddr::TcpTls { host, port, .. } = info.addr() {
            let opened = answered(self.tls.connect(host, *port, info, config));
            let (inner, driver) = opened.await?;
            return Ok(Connection::new(inner, Some(driver)));
        }
        let client = Client::open(info.clone())?;
        let inner = answered(client.get_multiplexed_async_connection_with_config(&config)).await?;
        Ok(Connection::new(
            inner,
            #[cfg(feature = "tls-rustls-no-provider")]
            None,
        ))
    }
}

impl Connection {
    const fn new(
        inner: MultiplexedConnection,
        #[cfg(feature = "tls-rustls-no-provider")] driver: Option<Driver>,
    ) -> Self {
        Self {
            inner,
            #[cfg(feature = "tls-rustls-no-provider")]
            _driver: driver,
            #[cfg(feature = "sentinel")]
            follows: None,
        }
    }

    /// Whether the sentinels name another server now.
    #[cfg(feature = "sentinel")]
    pub(super) fn is_outdated(&mut self) -> bool {
        self.follows.as_mut().is_some_and(|follows| follows.is_outdated())
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        #[cfg(feature = "sentinel")]
        if let Some(follows) = &mut self.follows {
            return Box::pin(async {
                follows.before_command()?;
                let reply = self.inner.req_packed_command(cmd).await;
                follows.observe(&reply);
                reply
            });
        }
        self.inner.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}
