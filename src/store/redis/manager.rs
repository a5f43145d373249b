//! Opens the connections of a pool to one server, and names them.

use std::{fmt, sync::Arc};

use bb8_redis::bb8::ManageConnection;
use redis::{ConnectionInfo, RedisError, RedisResult};

#[cfg(feature = "sentinel")]
use super::primary::Primary;
use super::{
    error::is_broken,
    gate::Gate,
    opener::{Connection, Opener},
    transport::answered,
};

/// Where the server is.
pub(super) enum Source {
    /// At the address of a URL.
    Url(Box<ConnectionInfo>),
    /// At the address that the sentinels report.
    #[cfg(feature = "sentinel")]
    Primary(Arc<Primary>),
}

/// Connects to the server of a `Source`. Connections have a name, for `CLIENT LIST`.
pub(super) struct Manager {
    source: Arc<Source>,
    name: Arc<str>,
    opener: Arc<Opener>,
    gate: Gate,
}

impl Manager {
    pub(super) fn new(source: Source, name: &str, opener: Arc<Opener>) -> Self {
        let source = Arc::new(source);
        Self { source, name: name.into(), opener, gate: Gate::default() }
    }

    /// The same for another pool, whose attempts to connect do not wait for this one's.
    pub(super) fn for_another_pool(&self) -> Self {
        let (source, name, opener) = (self.source.clone(), self.name.clone(), self.opener.clone());
        Self { source, name, opener, gate: Gate::default() }
    }

    pub(super) fn asks_sentinels(&self) -> bool {
        match *self.source {
            Source::Url(_) => false,
            #[cfg(feature = "sentinel")]
            Source::Primary(_) => true,
        }
    }

    /// The number of the database that connections select.
    pub(super) fn database(&self) -> i64 {
        match &*self.source {
            Source::Url(info) => info.redis_settings().db(),
            #[cfg(feature = "sentinel")]
            Source::Primary(primary) => primary.database(),
        }
    }

    async fn open(&self) -> RedisResult<Connection> {
        match &*self.source {
            Source::Url(info) => self.opener.open(info).await,
            #[cfg(feature = "sentinel")]
            Source::Primary(primary) => primary.connect().await,
        }
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, Self::Error> {
        let mut connection = self.gate.pass(Box::pin(self.open())).await?;
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

    fn has_broken(&self, connection: &mut Self::Connection) -> bool {
        #[cfg(feature = "sentinel")]
        return connection.is_outdated();
        #[cfg(not(feature = "sentinel"))]
        {
            let _ = connection;
            false
        }
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Manager");
        match &*self.source {
            Source::Url(info) => debug.field("url", info),
            #[cfg(feature = "sentinel")]
            Source::Primary(primary) => debug.field("primary", &primary.name()),
        };
        debug.field("name", &self.name).finish()
    }
}
