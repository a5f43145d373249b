//! Texts about errors of Redis that are safe to show.
//!
//! A server, or a proxy in front of it, may quote what it was sent: the password of `HELLO`, or the identities in keys.
//! So a server's text is shown only if all of it is known to come from a script or from the server itself.

use redis::RedisError;

use super::codes::{code, parse};
use crate::base::Fault;

/// The text about `fault`. `shown` is what [`parse`] took from the server's text.
pub(super) fn text_of(fault: Fault, shown: &str) -> String {
    let explanation = match fault {
        Fault::Ask => "the key's slot is migrating to another node",
        Fault::Busy => "a script of another client has run for too long; end it with SCRIPT KILL",
        Fault::ClusterDown => "the Redis Cluster does not serve the key's slot; check CLUSTER INFO",
        Fault::CrossSlot => {
            "the keys of a decision are in several slots of the Redis Cluster; was a key made by hand?"
        }
        Fault::ExecAbort => "a transaction was aborted",
        Fault::Loading => "the server is loading its data from disk; wait until it is done",
        Fault::MasterDown => "the server is a replica without a primary",
        Fault::Misconf => "the server is read only because it cannot save to disk; check its log",
        Fault::Moved => {
            "the server is one node of a Redis Cluster; connect to all nodes with Servers::cluster and the \
             feature `cluster`"
        }
        Fault::NoAuth => "the server requires a password: add it to the URL, redis://:password@host",
        Fault::NoPermission => "the Redis user lacks a permission: grant what RedisStore::acl_rule returns",
        Fault::NoProto => "the server does not support this version of the protocol",
        Fault::NoReplicas => "the server is read only because too few replicas are connected",
        Fault::NoScript => "the server does not have the script",
        Fault::OutOfMemory => "the server's memory is full: raise maxmemory, or create fewer keys",
        Fault::ReadOnly => {
            "the server is a read-only replica; connect to an address that leads to the primary"
        }
        Fault::TryAgain => "the keys' slot is migrating to another node, and the keys are on both nodes",
        Fault::Unkillable => {
            "a script of another client has run for too long, and cannot be killed because it has written"
        }
        Fault::WrongPass => "the server does not accept this user and password",
        Fault::WrongType => {
            "a key of the rate limit holds a value of another type, which is kept; does another program use the prefix?"
        }
        Fault::Other => "the server gives no known reason; check its log",
        Fault::NoCommand if shown.is_empty() => {
            "the Redis user may not run a command that the script calls: grant what RedisStore::acl_rule returns"
        }
        Fault::NoCommand => {
            return format!(
                "the Redis user may not run {shown}: grant what RedisStore::acl_rule returns (NOPERM)"
            );
        }
        Fault::NoKey => {
            "the Redis user may not access a key: grant what RedisStore::acl_rule returns for this store's prefix"
        }
        Fault::NoPasswordSet => "the server has no password: remove it from the URL",
        Fault::NoCluster => "the server is not a node of a Redis Cluster: use RedisStore::connect",
        Fault::NoDatabase => "the server has no database with this number",
        Fault::TooManyClients => "the server has reached its limit of connections: raise maxclients",
        Fault::UnknownCommand => {
            return format!("the server does not support or does not allow the command {shown}");
        }
        Fault::ForeignValue => {
            "a key of the rate limit holds a value that the limiter did not write, which is kept; does another program \
             use the prefix?"
        }
        Fault::Algorithm => return shown.to_owned(),
        Fault::Lua => return format!("the Lua of an algorithm failed: {shown}"),
        Fault::Unknown => "the server answered with an unknown error; check its log",
        Fault::NotListening => "no server listens at this address",
        Fault::Slow => "the server is slower than the deadline",
    };
    if shown.is_empty() { explanation.to_owned() } else { format!("{explanation} ({shown})") }
}

/// Explains the server's error `text`.
fn explain(text: &str) -> String {
    let (fault, shown) = parse(text);
    text_of(fault, shown)
}

/// Describes the error without any text that the server chose.
pub(super) fn describe(error: &RedisError) -> String {
    if is_server_error(error) {
        return explain(&server_text(error));
    }
    match error.kind() {
        redis::ErrorKind::Io => match (error.detail(), io_kind(error)) {
            // All nodes of a Cluster failed: the text quotes their errors, including servers' texts.
            (Some(quoted), _) => explain_quoted(quoted),
            (None, Some(kind @ (std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::TimedOut))) => {
                std::io::Error::from(kind).to_string()
            }
            // A text of the operating system or the TLS library, such as an unknown host.
            (None, _) => tls_remedy(error).map_or_else(|| error.to_string(), ToOwned::to_owned),
        },
        redis::ErrorKind::AuthenticationFailed => match fault_of(error) {
            // redis-rs does not report which of the two it is.
            Some(Fault::WrongPass) => {
                "the server does not accept this user and password: correct them in the URL, or remove them if the server \
                 has no password"
                    .into()
            }
            _ => explain(error.detail().unwrap_or_default()),
        },
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
            "it does not answer as Redis does: is it a Redis server?".into()
        }
        redis::ErrorKind::MasterNameNotFoundBySentinel => {
            "the sentinels know no primary of this name that is up: check that it is the name in `sentinel monitor`"
                .into()
        }
        redis::ErrorKind::InvalidClientConfig if error.to_string().contains("does not point to a sentinel") => {
            "the server is not a sentinel: use RedisStore::connect".into()
        }
        redis::ErrorKind::InvalidClientConfig if error.to_string().contains("the sentinel requires a password") => {
            "the sentinel requires a password: set Servers::sentinel_credentials".into()
        }
        redis::ErrorKind::InvalidClientConfig => "the client is not configured for this".into(),
        _ => error.category().to_owned(),
    }
}

/// Why the server did not accept a connection, if it said so.
pub(super) fn fault_of(error: &RedisError) -> Option<Fault> {
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        _ if is_server_error(error) => Some(parse(&server_text(error)).0),
        redis::ErrorKind::AuthenticationFailed => match code(detail) {
            Some(Fault::Other) | None => Some(Fault::WrongPass),
            fault => fault,
        },
        redis::ErrorKind::Io => quoted_code(detail).map(|text| parse(text).0),
        _ => None,
    }
}

/// The code in a text in which redis-rs quotes errors of servers.
fn quoted_code(quoted: &str) -> Option<&'static str> {
    let known = [
        ("WRONGPASS", "WRONGPASS"),
        ("AuthenticationFailed", "WRONGPASS"),
        ("NOAUTH", "NOAUTH"),
        ("NoPerm", "NOPERM"),
        ("NOPERM", "NOPERM"),
        ("cluster support disabled", "cluster support disabled"),
        ("unauthenticated", "unauthenticated"),
        ("Authentication required", "NOAUTH"),
    ];
    known.iter().find(|(part, _)| quoted.contains(part)).map(|(_, text)| *text)
}

/// Explains a text in which redis-rs quotes errors of the operating system and of servers.
fn explain_quoted(quoted: &str) -> String {
    if let Some(text) = quoted_code(quoted) {
        return explain(text);
    }
    let system_errors =
        ["Connection refused", "Connection reset", "No route to host", "Network is unreachable"];
    match system_errors.iter().find(|text| quoted.contains(*text)) {
        Some(text) => format!("no node can be reached: {text}"),
        None => "no node can be reached".into(),
    }
}

/// What to do about an error of TLS.
pub(super) fn tls_remedy(error: &RedisError) -> Option<&'static str> {
    if error.kind() != redis::ErrorKind::Io || error.detail().is_some() {
        return None;
    }
    let text = error.to_string();
    let known = [
        (
            "UnknownIssuer",
            "the server's certificate is from an unknown authority: pass the authority's certificate to \
             RedisStoreBuilder::tls_ca_certificate, or install it in the system",
        ),
        (
            // An authority of the same name with another key.
            "BadSignature",
            "the server's certificate is not from the authority of RedisStoreBuilder::tls_ca_certificate: pass the \
             certificate of the authority that signed it",
        ),
        (
            "not valid for name",
            "the server's certificate is for another host: use a host that the certificate names in the URL",
        ),
        (
            "NotValidForName",
            "the server's certificate is for another host: use a host that the certificate names",
        ),
        ("xpired", "the server's certificate has expired: renew it, and check the clocks"),
        ("NotValidYet", "the server's certificate is not valid yet: check the clocks"),
        ("CaUsedAsEndEntity", "the server's certificate is an authority's: sign one for the server with it"),
        (
            "CertificateRequired",
            "the server requires a client certificate: pass one to RedisStoreBuilder::tls_client_certificate",
        ),
        (
            "fatal alert",
            "the server ended the TLS handshake: does it trust the authority of the client certificate, which \
             RedisStoreBuilder::tls_client_certificate sets?",
        ),
        ("InvalidContentType", "the server does not expect TLS: write redis:// instead of rediss://"),
        (
            "invalid peer certificate",
            "the server's certificate is invalid: see RedisStoreBuilder::tls_ca_certificate",
        ),
    ];
    known.iter().find(|(part, _)| text.contains(part)).map(|(_, explanation)| *explanation)
}

pub(super) fn io_kind(error: &RedisError) -> Option<std::io::ErrorKind> {
    if error.is_connection_refusal() {
        Some(std::io::ErrorKind::ConnectionRefused)
    } else if error.is_timeout() {
        Some(std::io::ErrorKind::TimedOut)
    } else if error.is_connection_dropped() {
        Some(std::io::ErrorKind::ConnectionReset)
    } else {
        None
    }
}

pub(super) fn is_server_error(error: &RedisError) -> bool {
    matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension)
}

/// The text of a server's error.
pub(super) fn server_text(error: &RedisError) -> String {
    format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_quotes_is_not_shown() {
        let rows = [
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2' ",
            "ERR unknown command `EVALSHA`, with args beginning with: `9c9f`, `hunter2`",
            "hunter2",
            "HUNTER2 hunter2",
            "ERR hunter2",
            "NOPERM User hunter2 has no permissions to run the 'evalsha' command",
            "WRONGPASS invalid username-password pair or user is disabled: hunter2",
            "-ERR wrong number of arguments for 'hunter2'",
            "@user_script: 3: -READONLY hunter2",
            "ERR Error running script (call to f_1): @user_script:3: hunter2",
            "NOAUTH hunter2",
        ];
        for text in rows {
            let explanation = explain(text);
            assert!(!explanation.to_lowercase().contains("hunter2"), "{text}: {explanation}");
            assert!(explanation.len() > 10, "{text}: {explanation}");
        }
        assert!(explain(rows[1]).ends_with("EVALSHA"), "{}", explain(rows[1]));
        assert!(explain(rows[5]).contains("EVALSHA"), "{}", explain(rows[5]));
    }

    #[test]
    fn only_known_words_of_a_quoted_error_are_shown() {
        let rows = [
            ("[] Connection refused (os error 111)", "Connection refused"),
            (
                "upstream: Connection refused (os error 111) while sending HELLO 3 AUTH hunter2",
                "Connection refused",
            ),
            ("Password authentication failed - AuthenticationFailed: hunter2", "user and password"),
            ("NOAUTH: hunter2", "requires a password"),
            ("hunter2", "no node can be reached"),
        ];
        for (quoted, part) in rows {
            let explanation = explain_quoted(quoted);
            assert!(
                explanation.contains(part) && !explanation.contains("hunter2"),
                "{quoted}: {explanation}"
            );
        }
    }

    #[test]
    fn an_error_in_an_algorithm_is_shown() {
        let rows = [
            ("RATELIMIT-ALGORITHM the algorithm x must plan", "the algorithm x must plan"),
            ("ERR user_script:12: attempt to index a nil value", "attempt to index"),
            ("ERR Error compiling script (new function): user_script:3: '=' expected", "'=' expected"),
            ("@user_script: 12: attempt to call local 'f'", "attempt to call local 'f'"),
        ];
        for (text, part) in rows {
            assert!(explain(text).contains(part), "{text}: {}", explain(text));
        }
    }
}
