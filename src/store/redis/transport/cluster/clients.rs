//! The clients of a Cluster.

use std::{any::TypeId, sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{
    RedisError,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
};

use super::node::{CONNECT, CONNECT_TLS, NodeConnection};
use crate::{
    base::Error,
    store::redis::{
        connect::{TlsSettings, connection_infos, is_tls, tcp_settings},
        credentials::{Authenticator, Bridge},
    },
};

/// A client that tries again when a slot migrates or a connection could not be used, and one that does not.
pub(crate) struct Clients {
    pub(crate) retrying: ClusterManager,
    pub(crate) single_attempt: ClusterManager,
}

/// The size of a pool. A cluster connection is one connection to each node, shared by all calls. Four of them
/// made no more decisions than one (`benches/cluster.rs`), and each would have to follow migrations itself.
pub(crate) const CONNECTIONS: u32 = 1;
/// A connection waits for a reply for at least this time, so that one late reply does not break it.
const RESPONSE: Duration = Duration::from_millis(500);

/// Makes the clients for `urls`, for decisions with this `deadline`, and lists the addresses.
pub(crate) fn clients(
    urls: &[String],
    tls: &TlsSettings,
    deadline: Duration,
    authenticator: Option<&Arc<Authenticator>>,
) -> Result<(Clients, String), Error> {
    // redis-rs uses the credentials of the first URL, and checks only some of those in the others.
    let differ =
        "the URLs of the Redis Cluster are invalid: they must have the same user, password and database";
    let (infos, addresses) = connection_infos(urls, tls, differ)?;
    #[cfg(feature = "tls-rustls-no-provider")]
    let certificates = tls.certificates()?;
    let is_tls = infos.iter().any(is_tls);
    let client = |retries| {
        let client = ClusterClientBuilder::new(infos.clone());
        #[cfg(feature = "tls-rustls-no-provider")]
        let client = match &certificates {
            Some(certificates) => client.certs(certificates.clone()),
            None => client,
        };
        let client = client
            .connection_timeout(if is_tls { CONNECT_TLS } else { CONNECT })
            .response_timeout(RESPONSE.max(deadline))
            .tcp_settings(tcp_settings())
            // The waits after a multi-key command on a migrating slot, or on a slot without a primary: 2 ms,
            // 4 ms...
            .min_retry_wait(1)
            .retry_wait_formula(1, 2)
            .max_retry_wait(25);
        let client = match authenticator {
            Some(authenticator) => client.set_credentials_provider(Bridge(authenticator.clone())),
            None => client,
        };
        let client = if retries { client } else { client.retries(0) };
        client.build().map(ClusterManager).map_err(|_| {
            Error::invalid(
                "the URLs of the Redis Cluster are invalid: none of them can be used; check the hosts and the ports",
            )
        })
    };
    Ok((Clients { retrying: client(true)?, single_attempt: client(false)? }, addresses))
}

/// Whether the pool's connections are to a Cluster.
pub(crate) fn is_clustered<M: ManageConnection>(_: &Pool<M>) -> bool {
    TypeId::of::<M::Connection>() == TypeId::of::<ClusterConnection>()
}

/// Opens connections that a node which hangs does not stall.
#[derive(Clone, Debug)]
pub(crate) struct ClusterManager(ClusterClient);

impl ManageConnection for ClusterManager {
    /// A connection to all nodes. Its clones share it.
    type Connection = ClusterConnection<NodeConnection>;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, Self::Error> {
        self.0.get_async_generic_connection().await
    }

    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), Self::Error> {
        redis::cmd("PING").query_async(connection).await
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}
