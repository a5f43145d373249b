//! Asks Redis Sentinel which server is the primary.

use std::{fmt, sync::Arc};

use redis::{
    Client, ConnectionAddr, ConnectionInfo, RedisError, RedisResult, TlsMode,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use tokio::{sync::Mutex, task::JoinSet};

use super::{address::connection_info, tls::TlsSettings, transport::tcp_settings};
use crate::error::{Error, ErrorKind};

/// The user and the password that the sentinels require.
#[derive(Clone)]
pub(super) struct SentinelUser {
    pub(super) name: String,
    pub(super) password: String,
}

/// The sentinels of one primary, each with a client of its own.
///
/// One client for all of them would ask them one after the other, and wait for the timeout of a first one whose host is
/// down. That is longer than the time for one attempt to connect, so no later sentinel would ever be asked.
pub(super) struct Sentinels {
    clients: Vec<Arc<Mutex<SentinelClient>>>,
    /// The sentinels' addresses, without passwords, and the name of the primary.
    pub(super) description: String,
    /// The number of the database on the primary.
    pub(super) database: i64,
}

impl Sentinels {
    /// `urls` have the addresses of the sentinels, and the user, the password and the database of the primary.
    pub(super) fn new<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        primary: &str,
        user: Option<&SentinelUser>,
        tls: &TlsSettings,
    ) -> Result<Self, Error> {
        let infos: Result<Vec<ConnectionInfo>, _> =
            urls.into_iter().map(|url| connection_info(url.as_ref(), tls)).collect();
        let infos = infos?;
        if infos.is_empty() {
            return Err(Error::invalid("there must be the URL of at least one sentinel"));
        }
        if primary.is_empty() {
            return Err(Error::invalid(
                "the name of the primary is empty: it is the first argument of `sentinel monitor` in sentinel.conf",
            ));
        }
        let settings = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            let [user, password] =
                [settings.username(), settings.password()].map(|text| text.map(ToOwned::to_owned));
            (user, password, settings.db(), matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
        };
        if infos.windows(2).any(|pair| settings(&pair[0]) != settings(&pair[1])) {
            return Err(Error::invalid(
                "the URLs of the sentinels must have the same scheme, user, password and database, which are those of the \
                 primary",
            ));
        }
        let database = infos.first().map_or(0, |info| info.redis_settings().db());
        let addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
        let clients = infos.iter().map(|info| client(info, primary, user, tls));
        Ok(Self {
            clients: clients.map(|client| Ok(Arc::new(Mutex::new(client?)))).collect::<Result<_, Error>>()?,
            description: format!("{primary} of the sentinels at {}", addresses.join(", ")),
            database,
        })
    }

    /// A client for the primary, from the sentinel that answers first.
    pub(super) async fn primary(&self) -> RedisResult<Client> {
        let mut lookups = JoinSet::new();
        for client in &self.clients {
            let client = client.clone();
            lookups.spawn(async move { client.lock().await.async_get_client().await });
        }
        let mut worst: Option<RedisError> = None;
        while let Some(lookup) = lookups.join_next().await {
            // The error means that the runtime was shut down.
            let Ok(lookup) = lookup else { continue };
            match lookup {
                Ok(client) => return Ok(client),
                Err(error) if worst.as_ref().is_none_or(|worst| says_more(&error, worst)) => {
                    worst = Some(error)
                }
                Err(_) => {}
            }
        }
        Err(worst.unwrap_or_else(|| std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into()))
    }
}

/// Whether `error` is nearer to the cause than `other`: a sentinel that does not answer is expected in an outage.
fn says_more(error: &RedisError, other: &RedisError) -> bool {
    other.is_io_error() && !error.is_io_error()
}

fn client(
    info: &ConnectionInfo,
    primary: &str,
    user: Option<&SentinelUser>,
    tls: &TlsSettings,
) -> Result<SentinelClient, Error> {
    // redis-rs quotes nothing secret here, and checked the address already.
    let invalid = |_: RedisError| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the URL of the sentinel at {} cannot be used", info.addr()),
        )
    };
    let sentinel = [info.addr().clone()];
    let mut builder =
        SentinelClientBuilder::new(sentinel, primary, SentinelServerType::Master).map_err(invalid)?;
    builder = builder
        .set_client_to_sentinel_tcp_settings(tcp_settings())
        .set_client_to_redis_tcp_settings(tcp_settings())
        .set_client_to_redis_db(info.redis_settings().db())
        .set_client_to_redis_protocol(info.redis_settings().protocol());
    if let Some(user) = user {
        builder = builder
            .set_client_to_sentinel_username(&user.name)
            .set_client_to_sentinel_password(&user.password);
    }
    if let Some(name) = info.redis_settings().username() {
        builder = builder.set_client_to_redis_username(name);
    }
    if let Some(password) = info.redis_settings().password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if let ConnectionAddr::TcpTls { .. } = info.addr() {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        #[cfg(feature = "tls-rustls-no-provider")]
        if let Some(certificates) = tls.certificates()? {
            builder = builder.set_client_to_redis_certificates(certificates);
        }
    }
    // Only used with TLS.
    let _ = tls;
    builder.build().map_err(invalid)
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels").field("description", &self.description).finish_non_exhaustive()
    }
}

impl fmt::Debug for SentinelUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelUser").field("name", &self.name).finish_non_exhaustive()
    }
}
