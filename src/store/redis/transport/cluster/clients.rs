use std::{any::TypeId, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{
    ConnectionAddr, ConnectionInfo, RedisError,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
};

use crate::{
    base::{Error, ErrorKind},
    store::redis::{address::connection_info, tls::TlsSettings, transport::connections::tcp_settings},
};

/// A client that tries again when a slot migrates or a connection could not be used, and one that does not.
pub(crate) struct Clients {
    pub(crate) retrying: ClusterClient,
    pub(crate) single_attempt: ClusterClient,
    /// The servers' addresses, without passwords.
    pub(crate) addresses: String,
}

/// The size of a pool. A cluster connection is one connection to each node, shared by all calls. Four of them made no
/// more decisions than one (`benches/cluster.rs`), and each would have to follow migrations itself.
pub(crate) const CONNECTIONS: u32 = 1;
/// An unresponsive node delays the search for other nodes by at most this.
pub(super) const CONNECT: Duration = Duration::from_millis(250);
/// The same with TLS, whose handshake takes long on a busy machine.
const CONNECT_TLS: Duration = Duration::from_secs(1);
/// A connection waits for a reply for at least this time, so that one late reply does not break it.
pub(super) const RESPONSE: Duration = Duration::from_millis(500);

/// Makes the clients for `urls`, for decisions with this `deadline`.
pub(crate) fn clients(urls: &[String], tls: &TlsSettings, deadline: Duration) -> Result<Clients, Error> {
    let infos: Result<Vec<ConnectionInfo>, _> = urls.iter().map(|url| connection_info(url, tls)).collect();
    let infos = infos?;
    let addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
    #[cfg(feature = "tls-rustls-no-provider")]
    let certificates = tls.certificates()?;
    let is_tls = infos.iter().any(|info| matches!(info.addr(), ConnectionAddr::TcpTls { .. }));
    let connect = if is_tls { CONNECT_TLS } else { CONNECT };
    let client = || {
        let client = ClusterClientBuilder::new(infos.clone());
        #[cfg(feature = "tls-rustls-no-provider")]
        let client = match &certificates {
            Some(certificates) => client.certs(certificates.clone()),
            None => client,
        };
        client
            .connection_timeout(connect)
            .response_timeout(RESPONSE.max(deadline))
            .tcp_settings(tcp_settings())
            // The waits after a multi-key command on a migrating slot, or on a slot without a primary: 2 ms, 4 ms...
            .min_retry_wait(1)
            .retry_wait_formula(1, 2)
            .max_retry_wait(25)
    };
    let invalid = |first_error: &str| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the URLs of the Redis Cluster are invalid: {first_error}"),
        )
    };
    // redis-rs uses the credentials of the first URL, and checks only some of those in the others.
    let credentials = |info: &ConnectionInfo| {
        let settings = info.redis_settings();
        let [user, password] =
            [settings.username(), settings.password()].map(|text| text.map(ToOwned::to_owned));
        (user, password, settings.db())
    };
    if infos.windows(2).any(|pair| credentials(&pair[0]) != credentials(&pair[1])) {
        return Err(invalid("they must have the same user, password and database"));
    }
    let unusable = |_: RedisError| invalid("none of them can be used; check the hosts and the ports");
    Ok(Clients {
        retrying: client().build().map_err(unusable)?,
        single_attempt: client().retries(0).build().map_err(unusable)?,
        addresses: addresses.join(", "),
    })
}

/// Whether the pool's connections are to a Cluster.
pub(crate) fn is_clustered<M: ManageConnection>(_: &Pool<M>) -> bool {
    TypeId::of::<M::Connection>() == TypeId::of::<ClusterConnection>()
}
