//! Parses the URL of a server, and explains what is wrong with it.
//!
//! redis-rs quotes the password in some of its errors, so only its fixed texts are matched, and a text of a
//! URL is shown only if it is certainly not a part of the password.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisError, io::tcp::TcpSettings};

use super::{stream::keepalive, tls::TlsSettings};
use crate::base::Error;

/// Parses a Redis URL. Fails if `tls` has certificates that the URL does not use.
pub(crate) fn connection_info(url: &str, tls: &TlsSettings) -> Result<ConnectionInfo, Error> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    check_tls(scheme, cfg!(feature = "tls-rustls-no-provider"))?;
    // An unencoded `/`, `?` or `#` in the password ends the address early. The part before it would be taken
    // for a host, which messages show.
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    let end = address.find(['/', '?', '#']).unwrap_or(address.len());
    let is_socket = url.starts_with("unix:") || scheme.contains("unix");
    if !is_socket && address[end..].contains('@') {
        return Err(malformed("its user or password has a character that must be percent-encoded"));
    }
    if !is_socket && has_no_such_port(&address[..end]) {
        return Err(malformed("its port must be 1 to 65535"));
    }
    let info = url.into_connection_info().map_err(|error| malformed_by(&error))?;
    if let ConnectionAddr::TcpTls { insecure: true, .. } = info.addr() {
        return Err(Error::invalid(
            "the Redis URL ends with #insecure, which is not supported: anyone could pretend to be the server. Pass the \
             certificate of a private authority to RedisStoreBuilder::tls_ca_certificate instead",
        ));
    }
    tls.check(info.addr())?;
    Ok(info.set_tcp_settings(tcp_settings()))
}

/// Whether an address without its user and password ends with a number that no port has.
fn has_no_such_port(address: &str) -> bool {
    let host = address.rsplit_once('@').map_or(address, |(_, host)| host);
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let number = port.filter(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    number.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Turns off Nagle's algorithm, which redis-rs leaves on. With it, a call that is sent while another one is
/// under way on the same connection waits until the server has acknowledged that one: up to one more round
/// trip. Turns on the probes of silent sockets.
pub(crate) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive())
}

/// Parses the URLs of servers that belong together, and lists their addresses. Fails with the error `differ`
/// unless all have the same user, password and database.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) fn connection_infos(
    urls: &[String],
    tls: &TlsSettings,
    differ: &'static str,
) -> Result<(Vec<ConnectionInfo>, String), Error> {
    let infos: Vec<_> = urls.iter().map(|url| connection_info(url, tls)).collect::<Result<_, _>>()?;
    let is_same = |pair: &[ConnectionInfo]| {
        let [one, other] = [&pair[0], &pair[1]].map(ConnectionInfo::redis_settings);
        (one.username(), one.password(), one.db()) == (other.username(), other.password(), other.db())
    };
    ensure!(infos.windows(2).all(is_same), differ);
    let addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
    Ok((infos, addresses.join(", ")))
}

#[cfg(any(feature = "cluster", feature = "sentinel", feature = "tls-rustls-no-provider"))]
pub(crate) fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

fn check_tls(scheme: &str, is_supported: bool) -> Result<(), Error> {
    if is_supported || !["rediss", "valkeys"].contains(&scheme) {
        return Ok(());
    }
    Err(Error::invalid(
        "the Redis URL asks for TLS: turn on the feature `tls-rustls` of tower-ratelimit, or write redis:// for a server \
         without TLS",
    ))
}

/// The error for a URL that redis-rs does not accept.
pub(crate) fn malformed_by(error: &RedisError) -> Error {
    let text = error.to_string();
    let known = [
        ("database number", "the part after the address is not a database number"),
        ("wildcard", "0.0.0.0 and :: are not addresses of a server"),
        ("hostname", "it has no host; the URL of a socket is unix:///path"),
        ("#insecure", "nothing may follow a #"),
        ("UTF-8", "its user or password is not UTF-8"),
        ("rotocol", "its protocol must be resp2 or resp3"),
        ("Missing path", "it has no path of a socket; write redis+unix:///path?user=..&pass=..&db=.."),
    ];
    malformed(
        known.iter().find(|(part, _)| text.contains(part)).map_or("it is not a URL", |(_, problem)| problem),
    )
}

fn malformed(problem: &str) -> Error {
    invalid!(
        "the Redis URL is invalid ({problem}); write redis://[user:password@]host[:port][/database], or rediss:// for \
             TLS, with special characters in the password percent-encoded"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;

    #[test]
    fn a_url_with_tls_names_the_missing_feature() {
        for (scheme, is_supported, is_error) in [
            ("rediss", false, true),
            ("valkeys", false, true),
            ("redis", false, false),
            ("rediss", true, false),
        ] {
            let checked = check_tls(scheme, is_supported);
            assert_eq!(checked.is_err(), is_error, "{scheme} {is_supported}");
            if let Err(error) = checked {
                assert_eq!(error.kind(), ErrorKind::InvalidConfig);
                assert!(error.to_string().contains("`tls-rustls`"), "{error}");
            }
        }
    }
}
