//! Opens the connections of a pool to one server, and names them.

use std::{fmt, sync::Arc};

use bb8_redis::bb8::ManageConnection;
use redis::{Client, RedisError, RedisResult, aio::MultiplexedConnection};

use super::error::is_broken;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;

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
        let mut connection = self.client().await?.get_multiplexed_async_connection().await?;
        let mut set_name = redis::cmd("CLIENT");
        set_name.arg("SETNAME").arg(&*self.name);
        let named: RedisResult<()> = set_name.query_async(&mut connection).await;
        match named {
            Err(error) if is_broken(&error) => Err(error),
            // A user without the permission, or a proxy that does not support the command, needs no name.
            _ => Ok(connection),
        }
    }

    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), Self::Error> {
        redis::cmd("PING").query_async(connection).await
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
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
