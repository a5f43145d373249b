//! The settings of Redis Sentinel.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo};

use super::{
    address::connection_info, opener::Opener, primary::Primary, servers::Sentinels, tls::TlsSettings,
    transport::tcp_settings,
};
use crate::base::Error;

/// The primary of `sentinels`, and a description without passwords. The URLs have the addresses of the sentinels, and the
/// user, the password and the database of the primary.
pub(super) fn primary(
    sentinels: &Sentinels,
    tls: &TlsSettings,
    opener: Arc<Opener>,
) -> Result<(Primary, String), Error> {
    let name = sentinels.primary.as_str();
    let infos: Result<Vec<ConnectionInfo>, _> =
        sentinels.urls.iter().map(|url| connection_info(url, tls)).collect();
    let infos = infos?;
    if infos.is_empty() {
        return Err(Error::invalid("there must be the URL of at least one sentinel"));
    }
    if name.is_empty() {
        return Err(Error::invalid(
            "the name of the primary is empty: it is the first argument of `sentinel monitor` in sentinel.conf",
        ));
    }
    // It is logged, and a URL may have a password.
    if name.contains("://") {
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
            "the URLs of the sentinels must have the same scheme, user, password and database, which also apply to the \
             primary",
        ));
    }
    let addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
    let description = format!("{name} of the sentinels at {}", addresses.join(", "));
    let (settings, is_tls) = infos.first().map_or_else(Default::default, |info| {
        (info.redis_settings().clone(), matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
    });
    let credentials = match &sentinels.credentials {
        Some((user, password)) => RedisConnectionInfo::default().set_username(user).set_password(password),
        None => RedisConnectionInfo::default(),
    };
    let sentinel =
        |info: ConnectionInfo| info.set_redis_settings(credentials.clone()).set_tcp_settings(tcp_settings());
    let sentinels = infos.into_iter().map(sentinel).collect();
    Ok((Primary::new(name, settings, is_tls, sentinels, opener), description))
}
