//! A pool of a user, whose connections wait for their replies.

use redis::{
    AsyncConnectionConfig, Client, RedisError,
    aio::{ConnectionLike as _, MultiplexedConnection},
};
use tower_ratelimit::bb8_redis::bb8::{ManageConnection, Pool};

use super::redis_server::RedisServer;

/// Connections that several stores can share.
pub type RedisPool = Pool<PatientManager>;

/// Opens connections without redis-rs' timeout of 500 ms for replies, which a busy machine exceeds.
#[derive(Debug)]
pub struct PatientManager(Client);

/// Connections to `server`.
pub async fn pool(server: &RedisServer) -> RedisPool {
    let manager = PatientManager(Client::open(server.url()).unwrap());
    Pool::builder().max_size(8).min_idle(1).test_on_check_out(false).build(manager).await.unwrap()
}

impl ManageConnection for PatientManager {
    type Connection = MultiplexedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, Self::Error> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        self.0.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), Self::Error> {
        connection.req_packed_command(&redis::cmd("PING")).await.map(|_| ())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}
