//! Errors of Redis as errors of the crate.
//!
//! An error never has a `RedisError` as its source, because that shows the server's text too.

use redis::RedisError;

use super::{
    codes::parse,
    safe_text::{explain, io_kind, is_server_error, tls_remedy},
};
use crate::base::{Error, ErrorKind, Fault};

/// The error of a server that answered with the error `text`, or of one decision in a batch, which the script
/// caught.
pub(crate) fn from_server(text: &str) -> Error {
    let (fault, explanation) = parse(text);
    failed(fault, &explanation)
}

fn failed(fault: Fault, explanation: &str) -> Error {
    let kind = if fault == Fault::ForeignValue { ErrorKind::ForeignValue } else { ErrorKind::StoreFailed };
    Error::new(kind, format!("the command failed in Redis: {explanation}")).with_fault(fault)
}

/// The error of a command.
pub(crate) fn from_redis(error: &RedisError) -> Error {
    let (fault, explanation) = explain(error);
    // Before `is_broken`, because redis-rs reconnects on some of these.
    if let Some(fault) = fault.filter(|_| is_server_error(error)) {
        return failed(fault, &explanation);
    }
    let (kind, problem) = if error.is_timeout() {
        (ErrorKind::StoreTimeout, "Redis did not answer in time")
    } else if is_broken(error) {
        (ErrorKind::StoreDisconnected, "the connection to Redis broke")
    } else if matches!(error.kind(), redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType) {
        (ErrorKind::StoreReply, "the reply of Redis is invalid")
    } else {
        (ErrorKind::StoreFailed, "the command failed in Redis")
    };
    with_source(Error::new(kind, format!("{problem}: {explanation}")), error)
}

/// The error of a pool that cannot make a connection.
pub(crate) fn not_connected(error: &RedisError) -> Error {
    if is_server_error(error) { from_redis(error) } else { unconnected("", error, "") }
}

/// The error if no connection can be made. `address`, such as " at 10.0.0.1:6379", must not contain a
/// password.
pub(crate) fn unreachable(address: &str, error: &RedisError) -> Error {
    let remedy = match io_kind(error) {
        // The server or the provider of credentials has stated the reason.
        _ if tls_remedy(error).is_some() || explain(error).0.is_some() => "",
        Some(std::io::ErrorKind::TimedOut) => {
            "; check the address, firewalls, and whether the server expects TLS: write rediss:// if it does, and write \
             redis:// if it does not"
        }
        Some(std::io::ErrorKind::ConnectionReset) => {
            "; check whether the server expects TLS: write rediss:// if it does, with a certificate from \
             RedisStoreBuilder::tls_client_certificate if it requires one, and write redis:// if it does not; and whether \
             its clients have reached maxclients, which a server with TLS does not report"
        }
        _ => "; check the URL and that the server is running",
    };
    unconnected(address, error, remedy)
}

/// The error for a connection that could not be made: it has the fault that the server reported to the
/// handshake, or none if no server listens.
fn unconnected(address: &str, cause: &RedisError, remedy: &str) -> Error {
    let (fault, explanation) = explain(cause);
    let message = format!("cannot connect to Redis{address}: {explanation}{remedy}");
    let error = with_source(Error::new(ErrorKind::StoreUnreachable, message), cause);
    match fault {
        Some(fault) => error.with_fault(fault),
        None if io_kind(cause) == Some(std::io::ErrorKind::ConnectionRefused) => {
            error.with_fault(Fault::NotListening)
        }
        // A TLS handshake that failed has a known cause, other than one that takes long.
        None if tls_remedy(cause).is_some() => error.with_fault(Fault::Other),
        None => error,
    }
}

/// Adds a source only if it is an error of the operating system, whose text is safe.
fn with_source(error: Error, cause: &RedisError) -> Error {
    match io_kind(cause) {
        Some(kind) => error.with_source(std::io::Error::from(kind)),
        None => error,
    }
}

pub(crate) fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_an_algorithm_are_not_a_fault_of_the_server() {
        let rows = [
            "foo (CLUSTERDOWN)",
            "foo (MOVED)",
            "foo (WRONGTYPE)",
            "grant what RedisStore::acl_rule returns",
            "a key of the rate limit holds a value that the limiter did not write",
            "RATELIMIT-FOREIGN",
        ];
        for words in rows {
            let error = from_server(&format!("RATELIMIT-ALGORITHM {words}"));
            assert_eq!(error.to_string(), format!("the command failed in Redis: {words}"));
            assert_eq!((error.kind(), error.fault()), (ErrorKind::StoreFailed, Some(Fault::Algorithm)));
        }
    }
}
