//! Texts about errors of Redis that are safe to show.
//!
//! A server, or a proxy in front of it, may quote what it was sent: the password of `HELLO`, or the
//! identities in keys. So a server's text is shown only if all of it is known to come from a script or from
//! the server itself.

use redis::RedisError;

use super::codes::parse;
use crate::base::Fault;

/// Why a server did not carry out a command or accept a connection, if it reported that, and a description of
/// the error without any text that the server chose.
pub(super) fn explain(error: &RedisError) -> (Option<Fault>, String) {
    let detail = error.detail().unwrap_or_default();
    let said = |text: &str| {
        let (fault, explanation) = parse(text);
        (Some(fault), explanation)
    };
    let other = |text: &str| (None, text.to_owned());
    match error.kind() {
        _ if is_server_error(error) => said(&format!("{} {detail}", error.code().unwrap_or_default())),
        // All nodes of a Cluster failed: the text quotes their errors, including servers' texts.
        redis::ErrorKind::Io if error.detail().is_some() => match quoted_code(detail) {
            Some(text) => said(text),
            None => match of_provider(detail) {
                Some((fault, NOT_ACCEPTED)) => (Some(fault), NOT_ACCEPTED.to_owned()),
                Some((fault, problem)) => (Some(fault), format!("{problem}; see the log")),
                None => (None, unreachable_nodes(detail)),
            },
        },
        redis::ErrorKind::Io => match (io_kind(error), of_provider(&error.to_string())) {
            (None, Some((fault, _))) => (Some(fault), error.to_string()),
            (Some(_), _) if error.to_string().contains(NO_SOCKET) => other("the socket does not exist"),
            (Some(kind @ (std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::TimedOut)), _) => {
                (None, std::io::Error::from(kind).to_string())
            }
            // A text of the operating system or the TLS library, such as an unknown host.
            _ => tls_remedy(error).map_or_else(|| (None, error.to_string()), other),
        },
        redis::ErrorKind::AuthenticationFailed => match parse(detail).0 {
            // redis-rs does not report which of the two it is.
            Fault::Other | Fault::WrongPass => (
                Some(Fault::WrongPass),
                "the server does not accept this user and password: correct them in the URL, or remove them if the server \
                 has no password"
                    .into(),
            ),
            _ => said(detail),
        },
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
            other(NO_REDIS)
        }
        redis::ErrorKind::MasterNameNotFoundBySentinel => other(
            "the sentinels know no primary of this name that is up: check that it is the name in `sentinel monitor`",
        ),
        redis::ErrorKind::InvalidClientConfig => other("the client is not configured for this"),
        _ => other(error.category()),
    }
}

/// The error of a server that sends something else than replies.
pub(super) const NO_REDIS: &str = "it does not answer as Redis does: is it a Redis server?";

/// The beginnings of the errors of a credentials provider, which a Cluster client quotes among others.
pub(super) const FAILED: &str = "the credentials provider failed";
pub(super) const ENDED: &str =
    "the credentials provider returned credentials that have ended; check the clocks";
pub(super) const SILENT: &str = "the credentials provider does not answer";
pub(super) const NOT_ACCEPTED: &str =
    "the server does not accept the user and the password that the credentials provider returned";

/// The error of a credentials provider that `text` has or quotes.
fn of_provider(text: &str) -> Option<(Fault, &'static str)> {
    let known = [FAILED, ENDED, SILENT].map(|problem| (Fault::NoCredentials, problem));
    let mut known = known.into_iter().chain([(Fault::WrongPass, NOT_ACCEPTED)]);
    known.find(|(_, problem)| text.contains(problem))
}

/// The operating system's message if the path of a socket does not exist. redis-rs reports it as
/// `ConnectionRefused`.
const NO_SOCKET: &str = "No such file or directory";

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
        ("max number of clients", "max number of clients"),
        ("Redis is running in protected mode", "DENIED Redis is running in protected mode"),
    ];
    known.iter().find(|(part, _)| quoted.contains(part)).map(|(_, text)| *text)
}

/// Describes a text in which redis-rs quotes errors of the operating system.
fn unreachable_nodes(quoted: &str) -> String {
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
        let explain = |text: &str| parse(text).1;
        for text in rows {
            let explanation = explain(text);
            assert!(!explanation.to_lowercase().contains("hunter2"), "{text}: {explanation}");
            assert!(explanation.len() > 10, "{text}: {explanation}");
        }
        assert!(explain(rows[1]).contains("EVALSHA"), "{}", explain(rows[1]));
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
            let error = (redis::ErrorKind::Io, "no node", quoted.to_owned()).into();
            let (_, explanation) = explain(&error);
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
            let (_, explanation) = parse(text);
            assert!(explanation.contains(part), "{text}: {explanation}");
        }
    }
}
