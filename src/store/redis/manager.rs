//! Opens the connections of a pool to one server, and names them.

use std::{fmt, future::Future, io, sync::Arc};

use bb8_redis::bb8::ManageConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, aio::MultiplexedConnection};

use tokio::time::timeout;

#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
use super::{error::is_broken, transport::CONNECT_TIMEOUT};

/// Where the server is.
pub(super) enum Source {
    /// At the address of a URL.
    Url(Client),
    /// Where the sentinels say.
    #[cfg(feature = "sentinel")]
    Sentinels(Sentinels),
}

/// Connects to the server of a `Source`. Connections have a name, for `CLIENT LIST`.
pub(super) struct Manager {
    source: Source,
    name: Arc<str>,
}

impl Manager {
    pub(super) fn new(source: Source, name: &str) -> Self {
        Self { source, name: name.into() }
    }

    pub(super) const fn asks_sentinels(&self) -> bool {
        match self.source {
            Source::Url(_) => false,
            #[cfg(feature = "sentinel")]
            Source::Sentinels(_) => true,
        }
    }

    /// The number of the database that connections select.
    pub(super) fn database(&self) -> i64 {
        match &self.source {
            Source::Url(client) => client.get_connection_info().redis_settings().db(),
            #[cfg(feature = "sentinel")]
            Source::Sentinels(sentinels) => sentinels.database,
        }
    }

    async fn client(&self) -> RedisResult<Client> {
        match &self.source {
            Source::Url(client) => Ok(client.clone()),
            #[cfg(feature = "sentinel")]
            Source::Sentinels(sentinels) => sentinels.primary().await,
        }
    }
}

impl ManageConnection for Manager {
    type Connection = MultiplexedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, Self::Error> {
        let client = self.client().await?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config()).await?;
        let mut set_name = redis::cmd("CLIENT");
        set_name.arg("SETNAME").arg(&*self.name);
        let named: RedisResult<()> = answered(set_name.query_async(&mut connection)).await;
        match named {
            Err(error) if is_broken(&error) => Err(error),
            // A user without the permission, or a proxy that does not support the command, needs no name.
            _ => Ok(connection),
        }
    }

    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), Self::Error> {
        answered(redis::cmd("PING").query_async(connection)).await
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}

/// The reply, if it comes in time.
async fn answered<T>(reply: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    timeout(CONNECT_TIMEOUT, reply).await.unwrap_or_else(late)
}

/// Without the timeout of redis-rs for replies: who sends a call knows its deadline.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None)
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Manager");
        match &self.source {
            Source::Url(client) => debug.field("url", client),
            #[cfg(feature = "sentinel")]
            Source::Sentinels(sentinels) => debug.field("sentinels", sentinels),
        };
        debug.field("name", &self.name).finish()
    }
}
