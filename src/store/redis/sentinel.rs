//! Asks Redis Sentinel which server is the primary.

use std::{collections::HashMap, fmt, sync::Arc};

use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind as RedisErrorKind, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError, RedisResult, Role,
};
use tokio::task::JoinSet;

use super::{
    address::connection_info,
    error::from_redis,
    opener::{Connection, Opener, answered},
    tls::TlsSettings,
    transport::tcp_settings,
};
use crate::{error::Error, fault::Fault};

/// The user and the password that the sentinels require.
#[derive(Clone)]
pub(super) struct SentinelUser {
    pub(super) name: String,
    pub(super) password: String,
}

/// The sentinels of one primary. All are asked at the same time: one whose host is down answers after no attempt to connect.
pub(super) struct Sentinels {
    sentinels: Vec<ConnectionInfo>,
    primary: Arc<Primary>,
    /// The sentinels' addresses, without passwords, and the name of the primary.
    pub(super) description: String,
}

/// What is known of a primary.
struct Primary {
    name: String,
    /// The user, the password and the database.
    settings: RedisConnectionInfo,
    is_tls: bool,
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
        // It is logged, and a URL may have a password.
        if primary.contains("://") {
            return Err(Error::invalid(
                "the name of the primary is a URL: it must be the first argument of `sentinel monitor` in sentinel.conf, and \
                 the URLs belong to the sentinels",
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
        let addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
        let description = format!("{primary} of the sentinels at {}", addresses.join(", "));
        let (settings, is_tls) = infos.first().map_or_else(Default::default, |info| {
            (info.redis_settings().clone(), matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
        });
        let credentials = user.map_or_else(RedisConnectionInfo::default, |user| {
            RedisConnectionInfo::default().set_username(&user.name).set_password(&user.password)
        });
        let sentinel = |info: ConnectionInfo| {
            info.set_redis_settings(credentials.clone()).set_tcp_settings(tcp_settings())
        };
        Ok(Self {
            sentinels: infos.into_iter().map(sentinel).collect(),
            primary: Arc::new(Primary { name: primary.to_owned(), settings, is_tls }),
            description,
        })
    }

    /// The number of the database on the primary.
    pub(super) fn database(&self) -> i64 {
        self.primary.settings.db()
    }

    /// A connection to the primary, from the sentinel that leads to it first.
    pub(super) async fn primary(&self, opener: &Arc<Opener>) -> RedisResult<Connection> {
        let mut lookups = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, primary, opener) = (sentinel.clone(), self.primary.clone(), opener.clone());
            lookups.spawn(async move { primary.from(&sentinel, &opener).await });
        }
        let mut worst: Option<RedisError> = None;
        while let Some(lookup) = lookups.join_next().await {
            // The error means that the runtime was shut down.
            let Ok(lookup) = lookup else { continue };
            match lookup {
                Ok(connection) => return Ok(connection),
                Err(error) if worst.as_ref().is_none_or(|worst| says_more(&error, worst)) => {
                    worst = Some(error)
                }
                Err(_) => {}
            }
        }
        Err(worst.unwrap_or_else(|| std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into()))
    }
}

impl Primary {
    /// A connection to the primary that `sentinel` names, if it is one.
    async fn from(&self, sentinel: &ConnectionInfo, opener: &Opener) -> RedisResult<Connection> {
        let mut asked = opener.open(sentinel).await.map_err(of_sentinel)?;
        let primaries: RedisResult<Vec<HashMap<String, String>>> =
            answered(redis::cmd("SENTINEL").arg("MASTERS").query_async(&mut asked)).await;
        let primaries = primaries.map_err(of_sentinel)?;
        for (host, port) in primaries.iter().filter_map(|primary| self.address(primary)) {
            let mut connection = opener.open(&self.info(host, port)?).await?;
            let role: Role = answered(redis::cmd("ROLE").query_async(&mut connection)).await?;
            if let Role::Primary { .. } = role {
                return Ok(connection);
            }
        }
        Err((RedisErrorKind::MasterNameNotFoundBySentinel, "no such primary is up").into())
    }

    /// The address in a sentinel's description of a primary, if it is this one and up.
    fn address(&self, described: &HashMap<String, String>) -> Option<(String, u16)> {
        let flags = described.get("flags").filter(|_| described.get("name") == Some(&self.name))?;
        let is_up = flags.split(',').all(|flag| flag != "s_down" && flag != "o_down");
        let (host, port) = (described.get("ip")?, described.get("port")?.parse().ok()?);
        is_up.then(|| (host.clone(), port))
    }

    fn info(&self, host: String, port: u16) -> RedisResult<ConnectionInfo> {
        let address = if self.is_tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?;
        Ok(info.set_redis_settings(self.settings.clone()).set_tcp_settings(tcp_settings()))
    }
}

/// An error of a sentinel, whose remedy differs from a server's.
fn of_sentinel(error: RedisError) -> RedisError {
    let problem = match from_redis(&error).fault() {
        Some(Fault::UnknownCommand) => "the address does not point to a sentinel",
        Some(Fault::NoAuth) => "the sentinel requires a password",
        _ => return error,
    };
    (RedisErrorKind::InvalidClientConfig, problem).into()
}

/// Whether `error` is nearer to the cause than `other`: a sentinel that does not answer is expected in an outage.
fn says_more(error: &RedisError, other: &RedisError) -> bool {
    other.is_io_error() && !error.is_io_error()
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
